"""The facade: one `Engine` a device, several models, any number of running requests.

    engine = Engine()
    model = engine.load("model.gguf")
    ids = model.template.encode([Message("user", "Hello")])
    for event in model.submit(Request(tuple(ids))).events(): ...
    engine.close()

Every method may be called from any thread. Nothing here waits for a tick except `logits`, `unload`,
what evicts or saves KV, plans or moves models, and the last step of `load`.
"""

import itertools
import secrets
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.api.constraint import Constraint
from engine.api.detail import DeviceUse, EngineDetail, TickRecord
from engine.api.errors import EngineClosedError, RequestError
from engine.api.generation import Generation
from engine.api.load_plan import LoadPlan
from engine.api.options import EngineOptions, Offload, check_context_length
from engine.api.request import Request, check_leaves_a_token, check_token_ids, without_tokens
from engine.api.stats import EngineStats
from engine.constraints.compiler import Constraints
from engine.core.device_choice import device_names, host_kv_bytes, operations_of, threads_beside
from engine.core.loop import EngineLoop
from engine.core.model_loader import (
    LoadOptions,
    ModelInfo,
    ModelOrigin,
    ResidentModel,
    build_model,
    rebuild_model,
)
from engine.core.model_moves import ModelMoves
from engine.core.split_loader import Dividing
from engine.device.fit_advice import LOAD_MARGIN, Holders
from engine.device.memory import (
    beyond_limit,
    default_kv_budget,
    device_bytes,
    device_kv_budget,
    forget_frames,
    free_bytes,
    freeze_garbage,
    kv_room,
    limit_device,
    note_circles,
    return_freed_memory,
    trim_host_memory,
)
from engine.device.nvml import device_use
from engine.device.stream import on_device
from engine.disk.store import KVStore
from engine.footprint.device import rules_of
from engine.model.weights import Progress
from engine.scheduler.config import TICK_FACTOR, SchedulerConfig
from engine.scheduler.sequence import Sequence, TokenMatcher
from engine.templates.chat_template import ChatTemplate
from engine.templates.renderer import SHARED as SHARED_RENDERER
from engine.tokenizer.tokenizer import Tokenizer
from kernels import machine_cache


class Engine:
    """Runs every request of every resident model on one device, in one thread."""

    def __init__(self, device: str = "auto", **options: Any) -> None:
        """Start the engine's thread.

        options: the other fields of `EngineOptions`. Raises `EngineError` naming one that cannot be served.
        """
        chosen = EngineOptions(device, **options)
        name = device_names(device)[0]
        machine_cache.keep_in(chosen.cache_folder)
        torch.set_num_threads(chosen.threads or threads_beside(name))
        self._ops = operations_of(name, chosen)
        self.device = str(self._ops.device)
        self.rules = (rules_of(self._ops),)
        self._options = chosen
        if chosen.vram_limit_bytes is not None and self._ops.device.type == "cuda":
            limit_device(self._ops.device, chosen.vram_limit_bytes)
        self._scratch_bytes = 0
        """Of the longest pass of any model so far."""
        self._cpu_budget_bytes = 0 if self._ops.runs_ahead else default_kv_budget(self._ops.device)
        config = SchedulerConfig(
            tick_factor=chosen.tick_factor or TICK_FACTOR,
            tick_extra_ms=self._ops.tick_extra_ms,
            max_prefill_tokens=chosen.max_prefill_tokens or self._ops.max_prefill_tokens,
            fill_passes=self._ops.runs_ahead,
            few_tokens=self._ops.few_tokens,
            offload=Offload(chosen.kv_offload),
            host_kv_bytes=host_kv_bytes(chosen.host_kv_bytes, self._ops.device),
            speculation=chosen.speculation == "auto",
            debug=chosen.debug,
        )
        store = KVStore(chosen.kv_disk_folder, chosen.kv_disk_bytes) if chosen.kv_disk_folder else None
        self._loop = EngineLoop(config, self._ops, self._kv_limit, self._rebuild, store, chosen.elsewhere)
        self._model_keys = itertools.count(chosen.first_id, chosen.id_step)
        self._sequence_ids = itertools.count(chosen.first_id, chosen.id_step)
        self._loading = threading.RLock()
        self._moves = ModelMoves(self._loop, self._load_options, self._loading)
        self._loop.start()

    def plan_load(self, path: str | Path, *, context_length: int | None = None) -> LoadPlan:
        """What loading a file would take of memory and who would make room; nothing is changed.

        Raises what `load` raises for a file that cannot be served.
        """
        check_context_length(context_length)
        return self._moves.plan_load(Path(path).expanduser(), context_length)

    def load(
        self,
        path: str | Path,
        *,
        context_length: int | None = None,
        progress: Progress | None = None,
        pause: Iterable[int] = (),
    ) -> "Model":
        """Load a GGUF file beside the models that are resident; their ticks go on meanwhile.

        context_length: most tokens of a sequence, at least 1; the file's own when that is less.
        pause: ids of models to be put aside before, as `plan_load` names them.
        progress: called with (fraction, what) on the caller's thread; raising from it abandons the load, and
        so does `close`. Raises `ModelFileError`, `UnsupportedModelError`, `TokenizerError` or `EngineError`.
        """
        check_context_length(context_length)

        def report(fraction: float, what: str) -> None:
            self._loop.check_open()
            if progress is not None:
                progress(fraction, what)

        # Its templates' process starts while the file is read.
        SHARED_RENDERER.start()
        with self._loading, on_device(self._ops.device):
            try:
                self._moves.make_room(pause)
                return self._load(Path(path).expanduser(), context_length, report)
            except BaseException as error:
                forget_frames(error)
                return_freed_memory()
                raise

    def _load(self, file: Path, context_length: int | None, progress: Progress) -> "Model":
        started = time.perf_counter()
        resident = build_model(next(self._model_keys), file, context_length, self._load_options(), progress)
        self._scratch_bytes = max(self._scratch_bytes, resident.runner.scratch_bytes)
        self._moves.speeds.measured("load", resident.info.size_bytes, time.perf_counter() - started)
        try:
            if not self._loop.stats().models:
                freeze_garbage()
            self._loop.call(lambda: self._loop.add_model(resident))
        except BaseException:
            # Interrupted while waiting: nobody would hold the model that is added all the same.
            self._loop.drop_model(resident)
            raise
        return Model(self, resident)

    def pause_model(self, model_id: int, *, unload: bool = False) -> None:
        """Put an idle model aside: its memory comes free, its handles stay, a request wakes it.

        On a GPU its weights wait in pinned host memory where there is enough; else, with `unload`, and on
        a CPU, its file is read again. Raises `EngineError` while it answers.
        """
        self._moves.pause(model_id, unload=unload)

    def plan_wake(self, model_id: int) -> LoadPlan:
        """What `wake_model` would take of memory: nothing for a model that is not aside."""
        return self._moves.plan_wake(model_id)

    def wake_model(self, model_id: int, progress: Progress | None = None) -> None:
        """Bring a model back, idle ones making room; `EngineError` says what would help where none is."""
        self._moves.wake(model_id, progress or (lambda _part, _what: self._loop.check_open()))

    def pause_idle(self, seconds: float, now: float | None = None) -> list[str]:
        """Put aside models whose last request ended `seconds` before the monotonic `now`; returns names."""
        return self._moves.pause_idle(seconds, now)

    def stats(self) -> EngineStats:
        """The latest snapshot, at most a few ticks old."""
        return self._loop.stats()

    def detail(self) -> EngineDetail | None:
        """The close look that was last taken, with every KV block; None: the first is on its way.

        Asking has the next one taken, at most one each 50 ms; nothing is taken while nobody asks.
        """
        return self._loop.detail()

    def device_use(self) -> DeviceUse | None:
        """What the GPU's driver tells of memory and power, if it can be asked; it may take milliseconds."""
        return device_use(self._ops.device)

    def tick_log(self) -> list[TickRecord]:
        """What the last few thousand ticks did and how long they took, the oldest first."""
        return self._loop.ticks.records()

    def focus(self, sequence_id: int | None) -> None:
        """Read one generation's prompt before others', and never pause it for want of KV; None: nobody's."""
        self._loop.focus(sequence_id)

    def evict_kv(self, owner: str) -> int:
        """Forget what is kept of an owner's contexts; returns its bytes. `EngineError` while it answers."""
        return self._loop.call(lambda: self._loop.evict(owner))

    def save_kv(self, owner: str) -> int:
        """Begin to save an owner's running and paused answers on disk; returns how many tokens."""
        return self._loop.call(lambda: self._loop.save(owner))

    def close(self, timeout: float = 5.0) -> None:
        """End every request as cancelled and stop the thread; waits at most `timeout` seconds."""
        self._loop.stop(timeout)
        note_circles()
        trim_host_memory()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _rebuild(self, origin: ModelOrigin, progress: Progress) -> ResidentModel:
        """Load a model again on the engine's thread, which holds no KV then."""
        options = LoadOptions(self._ops, self._most_kv(), lambda _needed: None, name_of=self._options.name_of)
        return rebuild_model(origin, options, progress)

    def _kv_limit(self, held: int) -> int:
        """Bytes that KV may take now, where it holds `held`."""
        if self._options.kv_budget_bytes is not None:
            return self._options.kv_budget_bytes
        if self._ops.device.type != "cuda":
            return min(self._cpu_budget_bytes, held + kv_room(self._cpu_budget_bytes, self._ops.device))
        return device_kv_budget(self._ops.device, held, self._scratch_bytes)

    def _most_kv(self) -> int:
        """Bytes that KV could take if no weights were there."""
        if self._options.kv_budget_bytes is None and self._ops.runs_ahead:
            return self._options.vram_limit_bytes or device_bytes(self._ops.device)
        return self._options.kv_budget_bytes or self._cpu_budget_bytes

    def _make_room(self, needed: int) -> None:
        """Let cached KV give way to weights that would not fit beside it."""
        if self._ops.runs_ahead and free_bytes(self._ops.device) < needed + LOAD_MARGIN:
            self._loop.call(self._loop.models.make_room)

    def _load_options(self) -> LoadOptions:
        self._loop.check_open()
        host_layers = self._options.forced_host_layers if self._ops.runs_ahead else 0
        return LoadOptions(
            *(self._ops, self._most_kv(), self._make_room, self._holders),
            name_of=self._options.name_of,
            cached_kv=self._cached_kv,
            dividing=Dividing(host_layers),
        )

    def _cached_kv(self) -> int:
        """Of a GPU's memory; KV beside a limit is none of what is counted as taken."""
        counted = self._ops.runs_ahead and self._options.vram_limit_bytes is None
        return self.stats().kv_bytes_cached if counted else 0

    def _holders(self) -> Holders:
        """Who has memory that a model to be loaded could have."""
        stats, limit = self.stats(), self._options.vram_limit_bytes
        models = tuple((model.name, model.weight_bytes) for model in stats.models)
        if limit is None or self._ops.device.type != "cuda":
            return Holders(models, stats.kv_bytes_used)
        return Holders(models, stats.kv_bytes_used, limit, beyond_limit(self._ops.device))

    def _submit(
        self, key: int, vocab_size: int, request: Request, matcher: TokenMatcher | None
    ) -> Generation:
        self._loop.check_open()
        check_token_ids(request.prompt_ids, vocab_size)
        check_leaves_a_token(request.sampling, vocab_size)
        try:
            self._loop.scheduler.check_fits(request, key)
        except RequestError:
            # One that is aside, since when the check began perhaps, is checked when it is back.
            if key not in self._loop.models.aside:
                raise
        seed = request.sampling.seed
        sequence = Sequence(
            sequence_id=next(self._sequence_ids),
            model=key,
            request=request,
            arrival=time.monotonic(),
            seed=secrets.randbits(64) if seed is None else seed,
            matcher=matcher,
        )
        sequence.follow()
        generation = Generation(sequence.sequence_id, request, self._loop.control)
        self._loop.submit(sequence, generation.stream)
        return generation


class Model:
    """A resident model: submit requests to it until it is unloaded."""

    def __init__(self, engine: Engine, resident: ResidentModel) -> None:
        # The loop alone holds the resident model: a handle that outlives `unload` keeps no weights.
        self._engine = engine
        self._key = resident.key
        self._vocab_size = resident.config.vocab_size
        self._constraints = Constraints(resident.tokenizer, self._vocab_size)
        self._unloaded = False
        self.device: str = engine.device
        self.name: str = resident.name
        self.path: Path = resident.path
        self.longest_context = self.context_length = resident.context_length
        self.info: ModelInfo = resident.info
        self.tokenizer: Tokenizer = resident.tokenizer
        self.template: ChatTemplate = resident.template
        self.warnings: tuple[str, ...] = tuple(resident.warnings)

    @property
    def id(self) -> int:
        """What `pause_model` and plans call it."""
        return self._key

    @property
    def max_tokens(self) -> int:
        """Most tokens of one sequence: the context length, or what the KV budget holds if that is less."""
        try:
            return self._engine._loop.scheduler.model(self._key).max_tokens
        except RequestError:
            return self.context_length

    def submit(self, request: Request) -> Generation:
        """Queue a request; it joins at the next tick.

        Raises `RequestError` with numbers when it can never fit and `EngineClosedError` after
        `unload` or `close`. One with a constraint is for `check_constraint` first, where others wait.
        """
        self._check_loaded()
        if self.tokenizer.suppressed_ids:
            request = without_tokens(request, self.tokenizer.suppressed_ids)
        constraint = request.constraint
        matcher = None if constraint is None else self._constraints.matcher(constraint)
        return self._engine._submit(self._key, self._vocab_size, request, matcher)

    def limit_context(self, tokens: int) -> None:
        """Let sequences have so many tokens from now on; who has as many ends. `EngineError` if aside."""
        check_context_length(tokens)
        self._check_loaded()
        loop, most = self._engine._loop, min(tokens, self.longest_context)
        loop.call(lambda: loop.limit_context(self._key, most))
        self.context_length = most

    def check_constraint(self, constraint: Constraint) -> None:
        """Compile it, which may take a second, so that `submit` need not; raises `ConstraintError`."""
        self._constraints.matcher(constraint)

    def logits(self, token_ids: list[int]) -> Tensor:
        """float32 [T, vocab] of every position of one prompt, computed between ticks.

        Raises `RequestError` for ids that the model does not have or more than its context holds.
        """
        self._check_loaded()
        ids, loop = list(token_ids), self._engine._loop
        check_token_ids(tuple(ids), self._vocab_size)
        if not 1 <= len(ids) <= self.context_length:
            raise RequestError(f"token_ids: give 1 to {self.context_length} tokens, not {len(ids)}")
        if self._key in loop.models.aside:
            self._engine.wake_model(self._key)
        return loop.call(lambda: loop.models.get(self._key).runner.logits(ids))

    def compiling(self) -> bool:
        """Whether later passes are still being made ready: compiled, captured or rehearsed."""
        self._check_loaded()
        loop = self._engine._loop
        return loop.call(lambda: loop.models.get(self._key).runner.compiling)

    def unload(self) -> None:
        """Cancel the model's requests and free its weights and KV; harmless when it was closed.

        Other models' ticks go on while it waits for kernels of this one that are being compiled, and, a few
        seconds at most, for the KV of its chats on the way to files.
        """
        self._unloaded = True
        loop = self._engine._loop
        with suppress(EngineClosedError):
            if (freed := self._engine._moves.unload(self._key)) is not None:
                freed.wait()
            return_freed_memory()
            loop.call(loop.update_budget)

    def _check_loaded(self) -> None:
        if self._unloaded:
            raise EngineClosedError(f"{self.name}: the model was unloaded; load it again")
