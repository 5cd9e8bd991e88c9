"""The model of one tab: opening one, switching to another, and giving back what is left behind."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from app.chat.events import Changed, Notice, PlanAsked, SessionEvent
from app.models.backends.port import ChatModel
from app.models.builtin import model_title
from app.models.loader import EngineService, LoadJob
from engine import LoadPlan


class ModelSlot:
    """Holds the tab's model; a switch keeps the present one until the new one is there.

    `opened` receives each new model; `unable` is called when there will be none to answer with;
    `choose_key` is the key that opens the model picker.
    """

    def __init__(
        self,
        engine: EngineService,
        opened: Callable[[ChatModel], None],
        unable: Callable[[], None],
        tell: Callable[[SessionEvent], None],
        *,
        choose_key: str,
    ) -> None:
        self.current: ChatModel | None = None
        self.warnings: list[str] = []
        """What stays unusual: of the last prompt first, then of the model."""
        self.error: str | None = None
        self.progress: tuple[float, str] = (0.0, "")
        self.loading_path: Path | None = None
        self.asked: LoadPlan | None = None
        """What has to be agreed to before the load goes on."""
        self._engine = engine
        self._opened = opened
        self._unable = unable
        self._tell = tell
        self._choose_key = choose_key
        self._job: LoadJob | None = None
        self._retired: list[ChatModel] = []
        self._prompt_warning: str | None = None
        self._ended: asyncio.Future[bool] | None = None
        """What waits for the end of a load: whether a model came of it."""

    @property
    def loading(self) -> bool:
        """Whether a load is under way."""
        return self._job is not None

    @property
    def waking(self) -> bool:
        """Whether the tab's own model is being brought back."""
        return self.current is not None and self.loading_path == self.current.path

    def open(self, path: Path) -> None:
        """Load the model of `path` in place of a load that is under way."""
        self.cancel()
        self.loading_path = path
        self.error = None
        self.progress = (0.0, "waiting")
        self._job = self._engine.load(
            path, self._on_loaded, self._on_failed, self._on_progress, self._on_plan
        )
        self._tell(Changed())

    async def awake(self) -> ChatModel | None:
        """Return the model once it is there to answer; None where it stays aside or the task is cancelled.

        One that went with its device is loaded on another one.
        Who makes room for it is asked about as for a switch.
        """
        current = self.current
        if current is None or not (self._engine.is_paused(current) or self._engine.can_move(current)):
            return current
        if not self.loading:
            self.open(current.path)
        self._ended = asyncio.get_running_loop().create_future()
        try:
            return self.current if await self._ended else None
        except asyncio.CancelledError:
            if self.waking:
                self.cancel()
            return None

    def agree(self) -> None:
        """Let models make room as was asked, and go on loading."""
        plan, self.asked = self.asked, None
        if self._job is not None and plan is not None:
            self._engine.agree(self._job, plan)

    def put_aside(self, *, unload: bool) -> None:
        """Free the model's memory until it is asked again, and say how that went."""
        model = self.current
        if model is None:
            self._tell(Notice(f"No model is open; press {self._choose_key} to choose one.", "information"))
            return
        title = model_title(model.path)
        if model.local is None:
            self._tell(Notice(f"{title} runs at an endpoint; it takes no memory here.", "information"))
            return
        does = "is unloaded" if unload else "pauses"

        def done(reason: str | None) -> None:
            said = f"{title} {does}; its next message brings it back."
            self._tell(Notice(reason or said, "warning" if reason else "information"))

        self._engine.put_aside(model, done, unload=unload)

    def cancel(self) -> bool:
        """Give up a load that is under way; tell whether there was one."""
        if self._job is None:
            return False
        self._job.cancel()
        self._end(there=False)
        if self.current is None:
            self.error = f"No model is open: loading was stopped. Press {self._choose_key} to choose one."
        self._unable()
        self._tell(Changed())
        return True

    def prompt_made(self, warning: str | None) -> None:
        """Show what is unusual about the newest prompt for as long as it is that, and say what is new."""
        before, self._prompt_warning = self._prompt_warning, warning
        if before is not None and before in self.warnings:
            self.warnings.remove(before)
        if warning is not None:
            self.warnings.insert(0, warning)
            if warning != before:
                self._tell(Notice(warning))

    def release_retired(self) -> None:
        """Give back the models that were switched away from; no answer of this tab may run on them."""
        for model in self._retired:
            self._engine.release(model)
        self._retired.clear()

    def release(self) -> None:
        """Give back every model."""
        self.release_retired()
        if self.current is not None:
            self._engine.release(self.current)
            self.current = None

    def _on_progress(self, fraction: float, what: str) -> None:
        self.progress = (fraction, what)

    def _on_plan(self, plan: LoadPlan) -> None:
        self.progress, self.asked = (0.0, "waits for memory"), plan
        self._tell(PlanAsked())

    def _on_loaded(self, model: ChatModel) -> None:
        if self.current is not None:
            self._retired.append(self.current)
        self.current = model
        self._prompt_warning = None
        self.warnings = list(model.warnings)
        self._end(there=True)
        self._opened(model)

    def _on_failed(self, reason: str) -> None:
        goes_on = self.current is not None and not self.waking
        self._end(there=False)
        if self.current is not None:
            on = f" This chat goes on with {model_title(self.current.path)}." if goes_on else ""
            self._tell(Notice(f"{reason}{on}", "error"))
        else:
            self.error = reason
            self._unable()
        self._tell(Changed())

    def _end(self, *, there: bool) -> None:
        """No load is under way any more; whoever waits for the model goes on."""
        self._job = self.loading_path = self.asked = None
        ended, self._ended = self._ended, None
        if ended is not None and not ended.done():
            ended.set_result(there)
