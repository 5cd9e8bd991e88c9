"""The chat screen's actions that steer answers: several at once, compared, gone on with, by branches."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from app.chat.answers.branches import branches_of
from app.chat.conversation import Role, Status
from app.chat.session import ChatSession
from app.models.builtin import model_title
from app.models.choice import ModelChoiceError, resolve_model
from app.screens.chat.tab_actions import TabActions
from app.screens.context import AppContext
from app.settings import actions
from app.settings.words import count_text
from app.writing.fan import MOST, FanError, Variant, read_wish

if TYPE_CHECKING:
    from collections.abc import Callable

    from app.chat.events import SessionEvent
    from app.screens.dialogs.queue import Decision


class SteerActions(TabActions):
    """Fan out, compare, continue, branch, pause everything, and what waits its turn."""

    def __init__(self, context: AppContext, report: "Callable[[ChatSession, SessionEvent], None]") -> None:
        super().__init__(context, report)

    async def action_fan(self, rest: str = "") -> bool:
        """Have what is written, or the last message, answered several times; tell whether that begins."""
        session = self.active
        if not self.may_write():
            return False
        if session.writing.editing is not None:
            self.say(f"Send the other wording first, or leave it with {session.key('stop')}.", "warning")
            return False
        try:
            wish = read_wish(rest, session.conversation.sampling.seed)
            variants = await self._with_paths(wish.variants)
        except (FanError, ModelChoiceError) as error:
            self.say(str(error), "warning")
            return False
        written = "" if rest else self.composer.draft.message
        text = wish.message or written
        if session is not self.active or not session.fan_out(text if text.strip() else None, variants):
            return False
        if written.strip():
            self.composer.put("")
        self._show_columns(None)
        return True

    async def _with_paths(self, variants: Sequence[Variant]) -> list[Variant]:
        """Find the files of models that are named."""
        found = []
        for variant in variants:
            if variant.model is not None:
                path = await self._model_path(variant.model)
                variant = replace(variant, label=model_title(path), model=str(path))
            found.append(variant)
        return found

    async def _model_path(self, name: str) -> Path:
        search = self.context.model_search()
        return await asyncio.to_thread(resolve_model, name, search)

    def action_columns(self) -> None:
        """Show the alternatives of the last answer in columns."""
        session = self.active
        if session.fan is not None and not session.fan.over:
            self._show_columns(None)
            return
        for node in reversed(session.conversation.path()):
            siblings = session.conversation.siblings(node.id)
            if node.role is Role.ASSISTANT and len(siblings) > 1:
                at = [sibling.id for sibling in siblings].index(node.id)
                first = max(0, min(at, len(siblings) - MOST))
                self._show_columns([sibling.id for sibling in siblings[first : first + MOST]])
                return
        self.say(f"No answer here has alternatives; {session.key('fan')} writes several.")

    def _show_columns(self, node_ids: Sequence[str] | None) -> None:
        from app.screens.compare.alternatives import AlternativesView

        session = self.active
        view = self.over = AlternativesView(session, self.context.engine, node_ids)

        def closed(node_id: str | None) -> int:
            if node_id is not None and node_id in session.conversation.nodes and self.may_write():
                session.promote(node_id)
            return self.tabs.position

        self.cover(view, closed, shown=True)

    async def action_compare(self, rest: str = "") -> bool:
        """Show two chats turn by turn; tell whether there are two."""
        word, _, name = rest.strip().partition(" ")
        if word.casefold() in ("model", "models"):
            return await self._compare_model(name.strip())
        count = len(self.tabs.sessions)
        other = int(word) - 1 if word.isdecimal() else (self.tabs.position + 1) % count
        if word and not word.isdecimal():
            self.say(f"/compare: {word!r} is not known; write /compare 2 or /compare model NAME.", "warning")
        elif count < 2:
            self.say("There is one tab only; /compare model NAME goes on with a fork of it.", "warning")
        elif not 0 <= other < count or other == self.tabs.position:
            self.say(f"/compare {word}: write the number of another tab, from 1 to {count}.", "warning")
        else:
            self._compare(self.active, self.tabs.sessions[other])
            return True
        return False

    async def _compare_model(self, name: str) -> bool:
        if not name:
            self.say("/compare model: write a model's name behind it.", "warning")
            return False
        try:
            path = await self._model_path(name)
        except ModelChoiceError as error:
            self.say(str(error), "warning")
            return False
        session = self.active
        fork = session.conversation.fork()
        fork.model_path = str(path)
        await self.open_in_tab(fork, self.tabs.sessions.index(session) + 1)
        self._compare(session, self.active)
        return True

    def _compare(self, left: ChatSession, right: ChatSession) -> None:
        from app.screens.compare.two_chats import CompareView

        def may_write() -> bool:
            if left.read_only or right.read_only:
                self.say("One of these chats is open in another window and only read here.", "warning")
            return not (left.read_only or right.read_only)

        view = self.over = CompareView(left, right, self.context.engine, may_write)
        self.cover(view, lambda _: self.tabs.position)

    def action_resume(self) -> None:
        """Go on with an answer that was stopped or cut off."""
        if self.may_write():
            self.active.resume()

    def action_edit_message(self) -> None:
        """Ask for a message and write it differently."""
        from app.screens.dialogs.pick_message import PickMessage

        session = self.active
        if not self.may_write():
            return
        shown = session.conversation.path()
        # What a tool has given back is nobody's wording.
        path = [n for n in shown if n.status is not Status.STREAMING and n.role is not Role.TOOL]
        if not path or session.busy:
            stop = f"Press {session.key('stop')} to stop the answer first."
            self.say(stop if session.busy else "There is no message to edit yet.")
            return

        def chosen(node_id: str) -> None:
            self.keep_draft()
            session.writing.edit(node_id, session.conversation.nodes[node_id].text)
            self.show_draft()
            self.composer.focus()
            self.beat.draw()

        keys = actions.keys_of(actions.named("edit_message"), self.context.settings.keys)
        foot = "An answer goes on from your words · Esc leaves"
        self.ask(PickMessage(path, "Write which message differently?", foot, keys), chosen)

    def action_branches(self) -> None:
        """Show every branch of the chat."""
        from app.screens.dialogs.branches import BranchesScreen

        session = self.active
        branches = branches_of(session.conversation)
        if not branches:
            self.say("There is no message yet.")
            return

        def go(node_id: str) -> None:
            if session.busy:
                self.say(f"Press {session.key('stop')} to stop the answer before you go to another branch.")
            elif self.may_write():
                session.show_branch(node_id)

        self.ask(BranchesScreen(branches), go)

    def action_pause_all(self) -> None:
        """Pause the answers of all chats, or let all that are paused go on."""
        busy = [session for session in self.tabs.sessions if session.busy]
        writing = [session for session in busy if not session.paused]
        for session in writing or busy:
            session.pause()
        if not busy:
            self.say("There is no answer to pause.")
            return
        count = len(writing or busy)
        chats = count_text(count).capitalize() + (" chat" if count == 1 else " chats")
        key = self.active.key("pause_all")
        self.say(f"{chats} paused; {key} lets all go on." if writing else f"{chats} on the way again.")

    def action_queue(self) -> None:
        """Show what waits its turn."""
        from app.screens.dialogs.queue import QueueScreen

        session = self.active
        if not session.queued:
            self.say("No message waits here: what is sent while an answer is written waits for its end.")
            return

        def decided(decision: "Decision") -> None:
            self._decide(session, decision)

        self.ask(QueueScreen(lambda: session.queued, session.take_queued), decided)

    def _decide(self, session: ChatSession, decision: "Decision") -> None:
        from app.screens.dialogs.queue import Wanted

        edits = decision.wanted is Wanted.EDIT
        if not (session.take_queued if edits else session.send_now)(decision.text):
            self.say("This message was sent meanwhile.")
        elif edits:
            self.keep_draft()
            session.writing.take_back(decision.text)
            if session is self.active:
                self.show_draft()
                self.composer.focus()
