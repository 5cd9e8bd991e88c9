"""Owns the engine and loads models on a thread of its own.

The engine is made on that thread, and only once `start` has been called: importing torch holds the
interpreter for about a second, so it must not happen before the first frame is on the screen.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from app.models.backends.local import LocalModel
from app.models.backends.port import ChatModel
from app.models.endpoint_keys import endpoint_model
from app.models.fit.plan_words import PAUSED, resident_states
from app.models.port import EngineFactory, EnginePort, ModelPort
from app.models.stores.ollama import weights_of
from engine import DeviceUse, EngineDetail, EngineError, EngineStats, LoadPlan, TickRecord

log = logging.getLogger(__name__)

Deliver = Callable[[Callable[[], None]], None]
"""Runs a function on the user interface's thread, soon; callable from any thread."""
_PROGRESS_STEP = 0.01
_IDLE_CHECK_S = 10.0
"""How often models are looked for that nobody has asked for long."""


class Elsewhere(Protocol):
    """Who opens models that have no file here."""

    def open(self, path: Path, opened: Callable[[ChatModel], None], failed: Callable[[str], None]) -> None:
        """Open what a key stands for; one of both is called, on another thread."""


class LoadCancelled(Exception):
    """Raised inside a load's progress callback to end the load."""


@dataclass(eq=False)
class LoadJob:
    """One wish for a model. The callbacks run on the user interface's thread."""

    path: Path
    on_loaded: Callable[[ChatModel], None]
    on_failed: Callable[[str], None]
    on_progress: Callable[[float, str], None]
    on_plan: Callable[[LoadPlan], None]
    """Told who would make room where that takes consent; `EngineService.agree` goes on."""
    agreed: frozenset[int] = frozenset()
    """Ids of models that may be put aside although a tab uses them."""
    cancelled: threading.Event = field(default_factory=threading.Event)

    def cancel(self) -> None:
        """Give the wish up; no callback runs any more."""
        self.cancelled.set()


class EngineService:
    """Loads, shares and unloads models; public methods are for the UI's thread, the rest for its own."""

    def __init__(
        self,
        factory: EngineFactory,
        deliver: Deliver,
        *,
        idle_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        elsewhere: Elsewhere | None = None,
        context_of: Callable[[Path], int | None] = lambda _path: None,
    ) -> None:
        """idle_seconds: after so long models that nobody asks are put aside; 0: never.

        context_of: how many tokens of context were chosen of a model file; None: all.
        """
        self._context_of = context_of
        self._elsewhere = elsewhere
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._factory = factory
        self._deliver = deliver
        self._jobs: queue.Queue[LoadJob | Callable[[], None] | None] = queue.Queue()
        self._engine: EnginePort | None = None
        self._resident: dict[Path, LocalModel] = {}
        self._users: dict[Path, int] = {}
        self._failure: str | None = None
        self._last_used: Path | None = None
        self._thread = threading.Thread(target=self._run, name="model-loader", daemon=True)
        self._closed = threading.Event()

    def start(self) -> None:
        """Begin to import and make the engine; call it after the first frame."""
        self._thread.start()

    def load(
        self,
        path: Path,
        on_loaded: Callable[[ChatModel], None],
        on_failed: Callable[[str], None],
        on_progress: Callable[[float, str], None],
        on_plan: Callable[[LoadPlan], None],
    ) -> LoadJob:
        """Bring a model in (or share the resident one) and count a user of it."""
        job = LoadJob(path, on_loaded, on_failed, on_progress, on_plan)
        if self._elsewhere is not None and endpoint_model(path) is not None:
            self._elsewhere.open(path, partial(self._give, job), partial(self._fail, job))
        else:
            self._jobs.put(job)
        return job

    def agree(self, job: LoadJob, plan: LoadPlan) -> None:
        """Go on with a load whose plan was asked about."""
        job.agreed |= frozenset(plan.model_ids)
        self._jobs.put(job)

    def put_aside(self, model: ChatModel, on_done: Callable[[str | None], None], *, unload: bool) -> None:
        """Free a model's memory until it is asked again; on_done: told why that cannot be, or None."""
        local = model.local

        def work() -> None:
            reason: str | None = None
            try:
                if self._engine is not None and local is not None:
                    self._engine.pause_model(local.id, unload=unload)
            except EngineError as error:
                reason = str(error)
            self._deliver(lambda: on_done(reason))

        self._jobs.put(work)

    def states(self) -> dict[Path, str]:
        """Where each model is that was loaded, in words: `loaded`, `idle 5 min` or `paused`."""
        states = resident_states(self.stats(), self._clock())
        files = {path: model.local.path for path, model in list(self._resident.items())}
        return states | {path: states[file] for path, file in files.items() if file in states}

    def is_paused(self, model: ChatModel) -> bool:
        """Tell whether a model is aside."""
        return self.states().get(model.path) == PAUSED

    def can_move(self, model: ChatModel) -> bool:
        """Tell whether a model went with its device and opening it again has another one load it."""
        stats, local = self.stats(), model.local
        return stats is not None and local is not None and stats.can_move(local.id)

    def resident(self) -> list[ModelPort]:
        """Return the models that are loaded or aside; any thread may ask."""
        return list({id(model.local): model.local for model in list(self._resident.values())}.values())

    def release(self, model: ChatModel) -> None:
        """Give up one use of a model; unused ones are unloaded, but for the last one used."""
        if model.local is not None:
            self._jobs.put(lambda: self._drop(model.path))

    def stats(self) -> EngineStats | None:
        """Return the engine's snapshot, or None before there is an engine."""
        return self._engine.stats() if self._engine is not None else None

    def detail(self) -> EngineDetail | None:
        """Return the last close look and have the next one taken; None before the first."""
        return self._engine.detail() if self._engine is not None else None

    def tick_log(self) -> list[TickRecord]:
        """Return what the last ticks did, the oldest first."""
        return self._engine.tick_log() if self._engine is not None else []

    def device_use(self) -> DeviceUse | None:
        """Return what the GPU's driver tells; not for the user interface's thread."""
        return self._engine.device_use() if self._engine is not None else None

    def evict_kv(self, owner: str) -> int:
        """Forget what is kept of a chat's contexts and return its bytes; blocking, by any thread."""
        return self._engine.evict_kv(owner) if self._engine is not None else 0

    def save_kv(self, owner: str) -> int:
        """Begin to save a chat's answers on disk and return how many tokens; blocking, by any thread."""
        return self._engine.save_kv(owner) if self._engine is not None else 0

    def focus(self, sequence_id: int | None) -> None:
        """Have one answer served before all others; None: nobody."""
        if self._engine is not None:
            self._engine.focus(sequence_id)

    def close(self, timeout: float = 5.0) -> None:
        """End the engine within `timeout` seconds."""
        self._closed.set()
        self._jobs.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout)
        if self._engine is not None:
            self._engine.close(timeout)

    def _run(self) -> None:
        try:
            self._engine = self._factory()
        except Exception as error:
            log.exception("the engine could not start")
            self._failure = f"The engine could not start: {str(error) or type(error).__name__}"
        while (job := self._next_job()) is not None:
            try:
                self._load(job) if isinstance(job, LoadJob) else job()
            except Exception:
                log.exception("a load or an unload failed")

    def _next_job(self) -> LoadJob | Callable[[], None] | None:
        """Wait for one; looking for idle models is one too."""
        try:
            return self._jobs.get(timeout=_IDLE_CHECK_S if self._idle_seconds else None)
        except queue.Empty:
            return self._pause_idle

    def _pause_idle(self) -> None:
        if self._engine is not None:
            self._engine.pause_idle(self._idle_seconds, self._clock())

    def _load(self, job: LoadJob) -> None:
        if job.cancelled.is_set():
            return
        try:
            model = self._bring(job)
        except LoadCancelled:
            return
        except EngineError as error:
            self._fail(job, str(error))
        except FileNotFoundError:
            self._fail(job, f"{job.path} does not exist; choose another model file")
        except Exception as error:
            log.exception("loading %s", job.path)
            self._fail(job, f"{job.path.name} could not be loaded: {str(error) or type(error).__name__}")
        else:
            if model is not None:
                self._hand_over(job, model)

    def _bring(self, job: LoadJob) -> LocalModel | None:
        """Load a model, or wake it; None where somebody has to agree first to who makes room."""
        engine = self._engine
        if engine is None:
            raise EngineError(self._failure or "The engine is closed.")
        model = self._named(job.path)
        if model is not None and self.can_move(model):
            self._forget(model.local)
            model = None
        if model is not None and not self.is_paused(model):
            return model
        file = weights_of(job.path)
        plan = engine.plan_load(file) if model is None else engine.plan_wake(model.local.id)
        if plan.refusal is not None:
            raise EngineError(plan.refusal)
        if self._takes_consent(plan, job):
            self._deliver(lambda: None if job.cancelled.is_set() else job.on_plan(plan))
            return None
        progress = self._progress(job)
        if model is None:
            loaded = engine.load(file, progress=progress, pause=plan.model_ids)
            if (chosen := self._context_of(file)) is not None:
                loaded.limit_context(chosen)
            model = self._resident[job.path] = LocalModel(loaded, job.path)
        else:
            engine.wake_model(model.local.id, progress)
        return model

    def _forget(self, lost: ModelPort) -> None:
        """Drop every name of a model, so that its file is loaded anew."""
        for path in [path for path, model in self._resident.items() if model.local is lost]:
            del self._resident[path]

    def _named(self, path: Path) -> LocalModel | None:
        """The resident model of a path, also where it was loaded under another name of its file."""
        if path not in self._resident:
            file = weights_of(path)
            other = next((one for one in self._resident.values() if one.local.path == file), None)
            if other is None:
                return None
            self._resident[path] = LocalModel(other.local, path)
        return self._resident[path]

    def _takes_consent(self, plan: LoadPlan, job: LoadJob) -> bool:
        """Whether a model of some tab would make room that nobody has agreed to yet."""
        used = {model.local.id for path, model in self._resident.items() if self._users.get(path)}
        return not used.isdisjoint(set(plan.model_ids) - job.agreed)

    def _progress(self, job: LoadJob) -> Callable[[float, str], None]:
        shown = -1.0

        def progress(fraction: float, what: str) -> None:
            nonlocal shown
            if job.cancelled.is_set() or self._closed.is_set():
                raise LoadCancelled
            if fraction - shown >= _PROGRESS_STEP:
                shown = fraction
                self._deliver(lambda: None if job.cancelled.is_set() else job.on_progress(fraction, what))

        return progress

    def _hand_over(self, job: LoadJob, model: ChatModel) -> None:
        self._users[job.path] = self._users.get(job.path, 0) + 1
        self._give(job, model)

    def _give(self, job: LoadJob, model: ChatModel) -> None:
        def deliver() -> None:
            if job.cancelled.is_set():
                self.release(model)
            else:
                job.on_loaded(model)

        self._deliver(deliver)

    def _fail(self, job: LoadJob, reason: str) -> None:
        self._deliver(lambda: None if job.cancelled.is_set() else job.on_failed(reason))

    def _drop(self, path: Path) -> None:
        """Take one use away; unload what has no users, but for the model used last."""
        self._users[path] = max(0, self._users.get(path, 0) - 1)
        if not self._users[path]:
            self._last_used = path
        for idle in [path for path in self._resident if not self._users.get(path)]:
            if idle == self._last_used:
                continue
            left = self._resident.pop(idle).local
            if any(other.local is left for other in self._resident.values()):
                continue
            try:
                left.unload()
            except EngineError as error:
                log.warning("unloading %s: %s", idle, error)
