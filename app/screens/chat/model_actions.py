"""The chat screen's actions on models: choose one, offer one, and say how fetches end."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from app.models.builtin import is_builtin, model_title
from app.screens.chat.tab_actions import TabActions
from app.settings.actions import label_of

if TYPE_CHECKING:
    from app.fetch.fetch import Fetch


class ModelActions(TabActions):
    """Opens the model picker, and tells of models that can be or were fetched."""

    def action_choose_model(self) -> None:
        """Show the model picker, at the model that the empty chat offers."""
        from app.screens.dialogs.models.model_keeper import ModelKeeper
        from app.screens.dialogs.models.model_picker import ModelPicker

        if not self.may_write():
            return
        context, session = self.context, self.active
        context.find_again()
        current = Path(session.conversation.model_path) if session.conversation.model_path else None
        wanted = self.offered[0].what if self.offered else ""
        self.ask(
            ModelPicker(
                context.model_search(),
                current,
                context.find_models,
                context.fetching,
                ModelKeeper(context.locations, context.copy, self.models_in_use, context.engine.stats),
                context.endpoints,
                wanted,
            ),
            session.open_model,
        )
        if self.offered:
            self.run_worker(self._end_offer(), group="offer")

    def models_in_use(self) -> dict[Path, str]:
        """Return, by its file, the title of a chat that has a model open or opens it."""
        found: dict[Path, str] = {}
        for session in self.tabs.sessions:
            opened = session.model.path if session.model is not None else None
            for path in (opened, session.models.loading_path):
                if path is not None:
                    found.setdefault(path, session.conversation.title)
        return found

    async def show_active(self) -> None:
        """And ask what its model waits for."""
        await super().show_active()
        self.ask_plan()

    def ask_plan(self) -> None:
        """Ask whether models of tabs may make room for that of the tab in front, if it waits for that."""
        session = self.active
        plan, path = session.models.asked, session.models.loading_path
        if plan is None or path is None:
            return
        from app.screens.dialogs.models.load_plan import LoadPlanScreen

        def answered(yes: bool) -> None:
            # Another model may have been chosen since.
            if session.models.asked is plan:
                session.models.agree() if yes else session.cancel_load()

        self.ask(LoadPlanScreen(model_title(path), plan), answered)

    def model_commands(self) -> list[tuple[str, str, Callable[[], None]]]:
        """What the palette offers for the memory of this chat's model: title, help and what does it."""
        put_aside = self.active.models.put_aside
        again = "it comes back with the next message"
        return [
            (
                "Pause model",
                f"Put this chat's model aside in host memory; {again}",
                partial(put_aside, unload=False),
            ),
            (
                "Unload model",
                f"Free all memory of this chat's model; {again}",
                partial(put_aside, unload=True),
            ),
        ]

    async def make_offer(self) -> None:
        """Offer models in the empty chat of a reader who has only the demo model."""
        if not is_builtin(self.context.model_path(self.active.conversation)):
            return
        from app.screens.chat.empty.offer import offer

        self.offered = await asyncio.to_thread(offer, self.context)
        if self.offered:
            self.show_welcome()

    async def _end_offer(self) -> None:
        from app.screens.chat.empty.offer import dismiss

        self.offered = ()
        self.show_welcome()
        await asyncio.to_thread(dismiss, self.context)

    def fetch_changed(self, fetch: "Fetch") -> None:
        """Show how a fetch goes on; say how it ended."""
        from app.fetch.fetch import State

        progress, title = fetch.progress, fetch.plan.title
        if progress.state is State.FAILED:
            self.say(f"{title}: {progress.error}", "error")
        elif progress.state is State.DONE and progress.problem is not None:
            self.say(f"{title} was fetched, but cannot be opened: {progress.problem}", "warning")
        elif progress.state is State.DONE:
            self.context.find_again()
            key = label_of("choose_model", self.context.settings.keys)
            self.say(f"{title} is here: {key} opens it")
        self.beat.draw()
