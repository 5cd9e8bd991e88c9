"""A fetch under way: its state, its progress, and how to pause, go on and cancel.

    plan = make_plan("smollm2-135m", read_catalogue()[0])     # asks servers: call off the UI
    fetch = Fetches(models_folder).start(plan)                # returns at once
    forget = fetch.listen(show)                               # called on the fetch's own thread
    fetch.pause()                                             # and start(), cancel(), wait()

A pause ends the thread and holds nothing: going on afterwards and going on after a restart are the same.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from app.fetch.placing import already_there, check_disk, give_names
from app.fetch.speed import Speed
from app.transfer.download import Download
from app.transfer.errors import FetchError, disk_error
from app.transfer.parts import Part
from app.transfer.plan import Plan, RemoteFile
from app.transfer.web import Stop, Stopped, Web

_BEAT = 0.1
"""Seconds between two calls of a listener while bytes come."""


class State(StrEnum):
    """Where a fetch is. CHECKING: all bytes are there and are unpacked or looked at."""

    READY = "ready"
    RUNNING = "running"
    CHECKING = "checking"
    PAUSED = "paused"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Progress:
    """One moment of a fetch. Speeds are in bytes a second; None: not known.

    waiting: why nothing comes just now, or "". error: why it failed. paths: the model files once it is done;
    problem: why this model cannot be opened all the same.
    """

    state: State = State.READY
    done: int = 0
    total: int | None = None
    speed: float = 0.0
    seconds_left: float | None = None
    waiting: str = ""
    error: str | None = None
    paths: tuple[Path, ...] = ()
    problem: str | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing goes on by itself."""
        return self.state not in (State.RUNNING, State.CHECKING)


Listener = Callable[[Progress], None]


class Fetch:
    """Fetches one plan into the models' folder, on a thread of its own; any thread may call its methods."""

    def __init__(self, plan: Plan, models: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.plan = plan
        self._folder = models / plan.folder
        self._clock = clock
        self._lock = threading.RLock()
        self._listeners: list[Listener] = []
        self._progress = Progress(total=plan.size)
        self._thread: threading.Thread | None = None
        self._stop = Stop()
        self._cancelled = False
        self._speed = Speed()
        self._received = self._before = 0
        self._told = float("-inf")

    @property
    def progress(self) -> Progress:
        """How far it is; its speed is that of now, also while nothing comes."""
        with self._lock:
            if self._progress.state is not State.RUNNING:
                return self._progress
            now, total = self._clock(), self._progress.total
            missing = None if total is None else total - self._progress.done
            return replace(
                self._progress,
                speed=self._speed.rate(now),
                seconds_left=self._speed.seconds_left(now, missing),
            )

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Have `listener` called with every change, on the fetch's thread; return what ends that.

        It is called at most ten times a second while bytes come, and always for a change of state; in a
        silence of the server ask for `progress`.
        """
        with self._lock:
            self._listeners.append(listener)
        return lambda: self._forget(listener)

    def start(self) -> None:
        """Begin, or go on after a pause, a failure or a cancel; nothing while it runs."""
        with self._lock:
            running = self._thread is not None and self._thread.is_alive()
            if running and not self._progress.ended:
                return
            before = self._thread
            self._stop, self._cancelled = Stop(), False
            self._speed, self._received = Speed(), 0
            self._progress = Progress(State.RUNNING, self._progress.done, self._progress.total)
            self._thread = threading.Thread(target=self._run, args=(before,), name="fetch", daemon=True)
            self._thread.start()

    def pause(self) -> None:
        """Stop soon and keep what is there."""
        self._stop.set()

    def cancel(self) -> None:
        """Stop soon and delete what is there of an unfinished fetch."""
        with self._lock:
            self._cancelled = True
            self._stop.set()
            if not self._progress.ended or self._progress.state is State.DONE:
                return
            self._delete()
            self._set(state=State.CANCELLED, done=0, error=None)
        self._tell()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is over, one way or another; False when `timeout` seconds were not enough."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout)
        return self.progress.ended

    def _forget(self, listener: Listener) -> None:
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)

    def _run(self, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()
        try:
            self._change(state=State.RUNNING)
            paths = self._fetched()
            self._change(state=State.CHECKING, waiting="")
            problem = _problem(paths[0])
            self._change(state=State.DONE, paths=paths, problem=problem)
        except Stopped:
            self._stopped()
        except FetchError as error:
            self._failed(str(error))
        except OSError as error:
            self._failed(str(disk_error(error, self._folder)))
        except Exception as error:
            # A thread has nobody to raise to: what is not known is said as it is.
            self._failed(f"unexpected {type(error).__name__}: {' '.join(str(error).split())}")

    def _failed(self, why: str) -> None:
        self._change(state=State.FAILED, error=why, waiting="")

    def _stopped(self) -> None:
        # Under one lock: a cancel comes either before this, or after it and sees that all is over.
        with self._lock:
            if self._cancelled:
                self._delete()
                self._set(state=State.CANCELLED, done=0, waiting="")
            else:
                self._set(state=State.PAUSED, waiting="")
        self._tell()

    def _fetched(self) -> tuple[Path, ...]:
        """Fetch, unpack and name all files; return those of the model."""
        plan = self.plan
        if plan.present:
            return plan.present
        if there := already_there(plan, self._folder):
            return there
        self._folder.mkdir(parents=True, exist_ok=True)
        check_disk(plan, self._folder)
        self._before = 0
        for file in plan.files:
            part = self._download(file)
            self._before += part.done
        if plan.unpack is None:
            return give_names(plan, self._folder, [file.name for file in plan.files])
        self._change(state=State.CHECKING)
        paths = [Part(self._folder, file.name).path for file in plan.files]
        try:
            names = plan.unpack(paths, self._folder, plan.expected, self._stop.check)
            found = give_names(plan, self._folder, names)
        except FetchError as error:
            if error.useless:
                self._delete()
            raise
        self._delete()
        return found

    def _download(self, file: RemoteFile) -> Part:
        part = Part(self._folder, file.name)
        Download(
            file,
            part,
            self.plan.what,
            web=Web(self._stop, certificates=self.plan.certificates),
            stop=self._stop,
            on_bytes=self._on_bytes,
            on_wait=lambda why: self._change(waiting=why),
        ).run()
        return part

    def _on_bytes(self, done: int, received: int) -> None:
        now = self._clock()
        with self._lock:
            self._received += received
            self._speed.note(now, self._received)
            self._progress = replace(self._progress, done=self._before + done)
        if now - self._told >= _BEAT:
            self._told = now
            self._tell()

    def _change(self, **fields: object) -> None:
        self._set(**fields)
        self._tell()

    def _set(self, **fields: object) -> None:
        with self._lock:
            self._progress = replace(self._progress, **fields)  # type: ignore[arg-type]

    def _tell(self) -> None:
        progress = self.progress
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            try:
                listener(progress)
            except Exception:
                # One whose screen has gone must not end the fetch.
                self._forget(listener)

    def _delete(self) -> None:
        for file in self.plan.files:
            Part(self._folder, file.name).forget()


class Fetches:
    """All fetches of the program, several at once, into one models' folder."""

    def __init__(self, models: Path) -> None:
        self._models = models
        self._fetches: list[Fetch] = []

    @property
    def active(self) -> list[Fetch]:
        """Those under way."""
        return [fetch for fetch in self._fetches if not fetch.progress.ended]

    def start(self, plan: Plan) -> Fetch:
        """Begin a fetch, or return the one of this plan that is under way already."""
        for fetch in self.active:
            if fetch.plan.what == plan.what:
                return fetch
        fetch = Fetch(plan, self._models)
        self._fetches = [*self.active, fetch]
        fetch.start()
        return fetch

    def close(self, timeout: float | None = None) -> None:
        """Pause what is under way and wait for it: at the next start it can go on."""
        active = self.active
        for fetch in active:
            fetch.pause()
        for fetch in active:
            fetch.wait(timeout)


def _problem(path: Path) -> str | None:
    """Why the engine cannot open a model, from its header."""
    from engine import summarize

    summary = summarize(path)
    return None if summary.supported else summary.problem or "This file is not supported."
