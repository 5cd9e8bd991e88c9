"""`Engines`: every request of every model on several GPUs, each with an engine and a thread of its own.

A model is on one GPU, and whoever asks it has nothing to do with the others: a tick of one waits for no
tick of another. Only what they share is one: the process, host memory, the folder of saved KV.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeAlias

import torch

from engine.api.detail import DeviceUse, EngineDetail, TickRecord
from engine.api.errors import EngineFailedError
from engine.api.load_plan import LoadPlan
from engine.api.stats import EngineStats
from engine.core.device_choice import device_names, host_kv_bytes, threads_beside
from engine.engine import Engine, Model
from engine.footprint.rules import DeviceRules
from engine.model.weights import Progress
from engine.several.merged import merged_detail, merged_stats, merged_use
from engine.several.placing import place


class Engines:
    """What `Engine` is for one device, for several; ids of models and sequences are unique among all."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        """engines: number i of n, from 0, begins with the id i + 1 and goes on in steps of n."""
        self._engines = tuple(engines)
        self.device = ", ".join(engine.device for engine in engines)
        self.rules: tuple[DeviceRules, ...] = tuple(rules for engine in engines for rules in engine.rules)
        self._placing = threading.RLock()
        """A model's place is chosen by the memory that is left once the one before it is there."""
        self._merged: tuple[tuple[EngineStats, ...], EngineStats] | None = None

    def plan_load(self, path: str | Path, *, context_length: int | None = None) -> LoadPlan:
        """What loading a file would take, on which device, and who would make room there."""
        engine, plan = self._place(path, context_length)
        return replace(plan, device=engine.device)

    def load(
        self,
        path: str | Path,
        *,
        context_length: int | None = None,
        progress: Progress | None = None,
        pause: Iterable[int] = (),
    ) -> Model:
        """Load a file where its plan says, or where the models are that make room for it.

        Raises what `Engine.load` raises.
        """
        with self._placing:
            aside = tuple(pause)
            engine = self._of(aside[0]) if aside else self._place(path, context_length)[0]
            for model_id in aside:
                self.pause_model(model_id)
            return engine.load(path, context_length=context_length, progress=progress)

    def _place(self, path: str | Path, context_length: int | None) -> tuple[Engine, LoadPlan]:
        return place(self._engines, lambda engine: engine.plan_load(path, context_length=context_length))

    def pause_model(self, model_id: int, *, unload: bool = False) -> None:
        """Put an idle model aside."""
        self._of(model_id).pause_model(model_id, unload=unload)

    def plan_wake(self, model_id: int) -> LoadPlan:
        """What `wake_model` would take of its device's memory."""
        engine = self._of(model_id)
        return replace(engine.plan_wake(model_id), device=engine.device)

    def wake_model(self, model_id: int, progress: Progress | None = None) -> None:
        """Bring a model back, on the device where it was."""
        self._of(model_id).wake_model(model_id, progress)

    def pause_idle(self, seconds: float, now: float | None = None) -> list[str]:
        """Put aside every model that nobody has asked for so long; returns their names."""
        paused: list[str] = []
        for engine in self._engines:
            # Models of a device that is lost have no memory to give.
            with suppress(EngineFailedError):
                paused += engine.pause_idle(seconds, now)
        return paused

    def stats(self) -> EngineStats:
        """The latest snapshots together, and each device's as `parts`."""
        latest = tuple(engine.stats() for engine in self._engines)
        merged = self._merged
        if merged is None or any(new is not old for new, old in zip(latest, merged[0], strict=True)):
            merged = self._merged = latest, merged_stats(latest)
        return merged[1]

    def detail(self) -> EngineDetail | None:
        """The close looks that were last taken, together; None: the first ones are on their way."""
        taken = [detail for engine in self._engines if (detail := engine.detail()) is not None]
        return merged_detail(taken) if len(taken) == len(self._engines) else None

    def device_use(self) -> DeviceUse | None:
        """What the driver tells of all GPUs, and of each."""
        uses = ((engine.device, engine.device_use()) for engine in self._engines)
        return merged_use([replace(use, device=device) for device, use in uses if use is not None])

    def tick_log(self) -> list[TickRecord]:
        """The last ticks of all devices, the oldest first."""
        records = [record for engine in self._engines for record in engine.tick_log()]
        return sorted(records, key=attrgetter("ended_at"))

    def focus(self, sequence_id: int | None) -> None:
        """Serve one generation before all others of its device; None: nobody."""
        own = self._of(sequence_id) if sequence_id is not None else None
        for engine in self._engines:
            engine.focus(sequence_id if engine is own else None)

    def evict_kv(self, owner: str) -> int:
        """Forget what is kept of an owner's contexts on every device; returns its bytes."""
        return self._sum(lambda engine: engine.evict_kv(owner))

    def save_kv(self, owner: str) -> int:
        """Begin to save an owner's running and paused answers of every device; returns how many tokens."""
        return self._sum(lambda engine: engine.save_kv(owner))

    def close(self, timeout: float = 5.0) -> None:
        """End every request as cancelled and stop all threads; waits at most `timeout` seconds."""
        closing = [threading.Thread(target=engine.close, args=(timeout,)) for engine in self._engines]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()

    def __enter__(self) -> "Engines":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _sum(self, work: Callable[[Engine], int]) -> int:
        """Of all devices; one that is lost has nothing."""
        total = 0
        for engine in self._engines:
            with suppress(EngineFailedError):
                total += work(engine)
        return total

    def _of(self, number: int) -> Engine:
        """Whose model or sequence has an id."""
        return self._engines[(number - 1) % len(self._engines)]


AnyEngine: TypeAlias = Engine | Engines
"""What `open_engine` gives."""


def open_engine(device: str = "auto", **options: Any) -> AnyEngine:
    """Start an engine for a device, or one for each where a choice stands for several.

    options: the other fields of `EngineOptions`, which hold for each device. Raises `EngineError` naming one
    that cannot be served.
    """
    names = device_names(device)
    if len(names) == 1:
        return Engine(names[0], **options)
    # What they share of the computer is counted once, and host memory is shared out.
    shared: dict[str, Any] = {}
    if options.get("threads") is None:
        shared["threads"] = threads_beside(names[0])
    if options.get("host_kv_bytes") is None:
        shared["host_kv_bytes"] = host_kv_bytes(None, torch.device(names[0])) // len(names)
    with ExitStack() as undo:
        engines: list[Engine] = []
        for number, name in enumerate(names, start=1):
            shared["elsewhere"] = partial(_others, engines, number - 1)
            engines.append(Engine(name, **options | shared, first_id=number, id_step=len(names)))
            undo.callback(engines[-1].close)
        undo.pop_all()
    return Engines(engines)


def _others(engines: list[Engine], own: int) -> str:
    """Names of the devices that still serve, but for one."""
    return " or ".join(
        engine.device for index, engine in enumerate(engines) if index != own and not engine.stats().failure
    )
