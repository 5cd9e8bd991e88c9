"""Models make room for each other: what that would take, and doing it while the engine's ticks go on.

Weights move on the caller's thread, or on one of its own for a request that wakes its model. The
engine's thread only takes a model out of work and back into it, between two ticks.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from engine.api.errors import EngineClosedError, EngineError
from engine.api.load_plan import LoadPlan, Release
from engine.core.aside_models import AsideModel, working
from engine.core.loop import EngineLoop
from engine.core.model_loader import (
    LoadOptions,
    ResidentModel,
    choose_kv_type,
    rebuild_model,
    weights_of,
)
from engine.core.room import ModelUse, Speeds, Wanted, plan_room
from engine.core.split_loader import Dividing
from engine.device.faults import is_out_of_memory
from engine.device.fit_advice import LOAD_MARGIN, Need, does_not_fit
from engine.device.free_memory import free_host_bytes
from engine.device.memory import free_bytes, return_freed_memory
from engine.device.stream import on_device
from engine.footprint.device import expected_tok_s, rules_of
from engine.footprint.kv_choice import Room
from engine.footprint.rules import kv_bytes
from engine.footprint.shape import Footprint, read_footprint
from engine.footprint.split import parts_of
from engine.gguf.file import GGUFFile, open_gguf
from engine.model.config import read_config
from engine.model.split.placement import Placement
from engine.model.tensors import check_tensors
from engine.model.weights import Progress

log = logging.getLogger(__name__)

LEAST_TOKENS = 512
"""Of the shortest chat that a model is loaded for."""
_SAVE_WAIT_S = 3.0
_PINNING_SHARE = 0.25
"""Of a copy's speed, that of pinning memory and copying into it, before it was measured."""


@dataclass(frozen=True, slots=True)
class _Memory:
    """What the engine's thread says of memory between two ticks."""

    models: list[ModelUse]
    free_bytes: int
    answers_bytes: int


class ModelMoves:
    """One engine's; every method may be called from any thread but the engine's."""

    def __init__(
        self, loop: EngineLoop, options: Callable[[], LoadOptions], loading: threading.RLock
    ) -> None:
        """options: of a load that begins now; loading: held while a model is loaded."""
        self._loop = loop
        self._options = options
        self._loading = loading
        self._moving = threading.RLock()
        """Held while a model is put aside or brought back; never waits for `loading`."""
        self._waking: set[int] = set()
        """Models that a thread brings back; changed on the engine's thread alone."""
        self.speeds = Speeds()
        loop.wanted = self._wanted

    def plan_load(
        self, path: Path, context_length: int | None, placement: Placement | None = None
    ) -> LoadPlan:
        """What loading a file would take; raises what a load raises for one that cannot be served.

        placement: that of a model that is loaded again.
        """
        options = self._options()
        dividing = options.dividing if placement is None else Dividing(placement=placement)
        with open_gguf(path) as file:
            config = read_config(file, context_length)
            footprint = read_footprint(file, config, check_tensors(file, config))
            plan = None if dividing.always else self._plan_part(file, footprint, options, divided=False)
            if plan is not None and plan.refusal is None:
                return plan
            memory = self._loop.call(self._memory)
            free = memory.free_bytes + sum(use.nbytes for use in memory.models if use.idle)
            room = Room(free - memory.answers_bytes, options.kv_budget_bytes)
            rules = rules_of(options.ops)
            split = dividing.split(options.file_name(path), footprint, rules, room)
            if split is None:
                return plan or self._plan_part(file, footprint, options, divided=False)
            here, _ = parts_of(footprint, split.placement)
            tok_s = expected_tok_s(split, rules, torch.get_num_threads())
            part = self._plan_part(file, here, options, divided=True)
            return replace(part, placement=split.text, tok_s=tok_s)

    def _plan_part(
        self, file: GGUFFile, footprint: Footprint, options: LoadOptions, *, divided: bool
    ) -> LoadPlan:
        """footprint: of what the device is to hold."""
        ops = options.ops.with_kv(choose_kv_type(footprint, options, divided=divided).kv_format)
        least = kv_bytes(footprint, rules_of(ops), min(LEAST_TOKENS, footprint.context_length))
        seconds = self.speeds.seconds("load", file.size_bytes)
        return self._plan(weights_of(file, footprint, options), least, seconds)

    def plan_wake(self, key: int) -> LoadPlan:
        """What bringing a model back would take: nothing for one that another request has brought back."""
        aside = self._loop.models.aside.get(key)
        if aside is None:
            return LoadPlan("", 0, 0)
        if aside.kept is None:
            origin = aside.origin
            return self.plan_load(origin.path, origin.context_length, origin.placement)
        need = Need(aside.stats.name, aside.nbytes, aside.kept.info.parameters)
        least = aside.stats.kv_bytes_per_token * LEAST_TOKENS
        return self._plan(need, least, self._copy_seconds("wake", aside.nbytes))

    def pause(self, key: int, *, unload: bool = False) -> None:
        """Put a model aside, with `unload` without a copy in host memory.

        Raises `EngineError` while it answers.
        """
        self._loop.check_elsewhere()
        with self._moving, self._place():
            aside = self._loop.models.aside.get(key)
            if aside is None:
                self._save(key)
                aside = self._loop.call(lambda: self._loop.put_aside(key))
                rests = not unload and self._rests(aside)
            else:
                rests = not unload
            try:
                if not rests:
                    self._unload(aside)
            finally:
                self._loop.call(self._loop.update_budget)

    def pause_idle(self, seconds: float, now: float | None = None) -> list[str]:
        """Put aside what has been idle for so long at clock `now`; returns names."""
        when = time.monotonic() if now is None else now

        def idle() -> list[tuple[int, str]]:
            loop = self._loop
            found = [m for m in loop.models if not working(m.key, loop.scheduler.sequences)]
            return [(m.key, m.name) for m in found if when - m.last_used >= seconds]

        paused = []
        for key, name in self._loop.call(idle):
            # One that began to work since then stays.
            with suppress(EngineError):
                self.pause(key)
                paused.append(name)
        return paused

    def wake(self, key: int, progress: Progress) -> None:
        """Bring a model back, idle ones making room; nothing happens for one that is there.

        Raises `EngineError` saying what would help when there is no room; it stays aside then.
        """
        self._loop.check_elsewhere()
        with self._loading, self._moving, self._place():
            aside = self._loop.models.aside.get(key)
            if aside is None:
                return
            plan = self.plan_wake(key)
            if plan.refusal is not None:
                raise EngineError(plan.refusal)
            self.make_room(plan.model_ids)
            resident = self._restore(aside, progress)
            self._loop.call(lambda: self._loop.take_back(resident))

    def make_room(self, keys: Iterable[int]) -> None:
        """Put models aside, one after another."""
        for key in keys:
            self.pause(key)

    def unload(self, key: int) -> threading.Event | None:
        """Forget a model; returns what is set when its memory is back, None for one that is not resident."""
        self._loop.check_elsewhere()
        with self._moving, self._place():
            self._save(key)
            return self._loop.call(lambda: self._loop.remove_model(key))

    def _place(self) -> AbstractContextManager[object]:
        """The caller's thread, or one of ours, moves weights of this engine's device."""
        return on_device(self._options().ops.device)

    def _save(self, key: int) -> None:
        """Let KV of a model's chats that is on the way to files get there, a few seconds at most."""
        if not self._loop.disk.enabled:
            return
        saved = self._loop.call(lambda: self._loop.disk.last_save(key))
        if saved is not None:
            saved.wait(_SAVE_WAIT_S)

    def _rests(self, aside: AsideModel) -> bool:
        """Have the weights of a model that was taken out of work wait in host memory, if they can."""
        resident, started = aside.kept, time.perf_counter()
        assert resident is not None
        copies = not _has_copy(resident)
        if self._way(resident) is Release.UNLOAD or not resident.runner.rest():
            return False
        if copies:
            self.speeds.measured("pause", aside.nbytes, time.perf_counter() - started)
        return True

    @staticmethod
    def _unload(aside: AsideModel) -> None:
        """Keep nothing of a model that is aside but where its file is."""
        resident, aside.kept = aside.kept, None
        if resident is None:
            return
        resident.runner.close()
        resident.runner.freed.wait()
        del resident
        return_freed_memory()

    def _restore(self, aside: AsideModel, progress: Progress) -> ResidentModel:
        options, started = self._options(), time.perf_counter()
        resident = aside.kept
        if resident is None:
            return rebuild_model(aside.origin, options, progress)
        options.make_room(aside.nbytes)
        try:
            resident.runner.wake()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            need = Need(aside.stats.name, aside.nbytes, resident.info.parameters)
            free = free_bytes(options.ops.device)
            raise does_not_fit(need, free, options.holders(), "memory ran out while it came back") from None
        self.speeds.measured("wake", aside.nbytes, time.perf_counter() - started)
        return resident

    def _plan(self, need: Need, least: int, seconds: float | None) -> LoadPlan:
        memory = self._loop.call(self._memory)
        wanted = Wanted(need, least, memory.answers_bytes)
        return plan_room(
            wanted, memory.free_bytes, memory.models, self._release, self._options().holders(), seconds
        )

    def _memory(self) -> _Memory:
        loop, ops = self._loop, self._options().ops
        uses = [
            ModelUse(
                *(model.key, model.name, str(model.path), model.info.weight_bytes),
                idle=not working(model.key, loop.scheduler.sequences),
                last_used=model.last_used,
            )
            for model in loop.models
        ]
        free = free_bytes(ops.device)
        if not ops.runs_ahead:
            # KV has its memory, whatever weights take beside it.
            return _Memory(uses, free, 0)
        held = sum(sum(model.blocks.held_bytes) for model in loop.models)
        mapped = sum(model.runner.kv_bytes for model in loop.models)
        return _Memory(uses, free + mapped, max(held, loop.answers_bytes))

    def _release(self, use: ModelUse) -> tuple[Release, float]:
        """How a model would give its memory back, and how long that takes."""
        resident = self._loop.models.by_key.get(use.model_id)
        if resident is None or self._way(resident) is Release.UNLOAD:
            return Release.UNLOAD, 0.0
        if _has_copy(resident):
            return Release.PAUSE, 0.0
        return Release.PAUSE, self._copy_seconds("pause", use.nbytes) or 0.0

    def _way(self, resident: ResidentModel) -> Release:
        """Pinned host memory is used where the device can give its own back and the host has enough."""
        if resident.runner.weights is None:
            return Release.UNLOAD
        room = free_host_bytes() > resident.info.weight_bytes + LOAD_MARGIN
        return Release.PAUSE if room or _has_copy(resident) else Release.UNLOAD

    def _copy_seconds(self, kind: str, nbytes: int) -> float | None:
        link = self._options().ops.host_gb_s
        share = _PINNING_SHARE if kind == "pause" else 1.0
        return self.speeds.seconds(kind, nbytes, None if link is None else link * 1e9 * share)

    def _wanted(self, key: int) -> None:
        if key not in self._waking:
            self._waking.add(key)
            threading.Thread(target=self._wake_for_request, args=(key,), name="waker", daemon=True).start()

    def _wake_for_request(self, key: int) -> None:
        cause: str | None = None
        try:
            self.wake(key, lambda _part, _what: self._loop.check_open())
        except Exception as error:
            if not isinstance(error, EngineError):
                log.exception("a model could not be brought back")
            cause = str(error) or type(error).__name__

        def woken() -> None:
            # With the requests that wait: one that comes now finds the model, or wakes it again.
            self._waking.discard(key)
            if cause is not None:
                self._loop.fail_waiting(key, cause)

        with suppress(EngineClosedError):
            self._loop.call(woken)


def _has_copy(resident: ResidentModel) -> bool:
    """Whether host memory has its weights already, so that they need not be copied again."""
    weights = resident.runner.weights
    return weights is not None and weights.host_bytes > 0
