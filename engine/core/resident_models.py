"""The models that are loaded, and the memory that their KV shares."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping

from engine.api.errors import EngineClosedError, EngineError
from engine.api.options import Offload
from engine.cache.budget import KVBudget
from engine.core.aside_models import AsideModels
from engine.core.model_loader import ModelOrigin, ResidentModel
from engine.device.faults import is_lost
from engine.device.memory import return_freed_memory
from engine.scheduler.config import SchedulerConfig
from engine.scheduler.cost_model import Load
from engine.tokenizer.tokenizer import Tokenizer

log = logging.getLogger(__name__)

_HOST_MEMORY_FROM = 0.6
"""Part of the KV budget in use from which host memory is taken for what will be evicted."""


class ResidentModels:
    """By key; used by the engine's thread alone."""

    def __init__(self, config: SchedulerConfig, kv_limit: Callable[[int], int]) -> None:
        """kv_limit: from the bytes that KV holds now to the most that it may take."""
        self._config = config
        self._kv_limit = kv_limit
        self._models: dict[int, ResidentModel] = {}
        self.aside = AsideModels()
        self.budget = KVBudget(kv_limit(0))
        self.context_limits: dict[int, int] = {}
        """Most tokens of a sequence, by key, where less was chosen than the model reads."""

    @property
    def by_key(self) -> Mapping[int, ResidentModel]:
        """A view that follows what is added and removed."""
        return self._models

    def __iter__(self) -> Iterator[ResidentModel]:
        return iter(self._models.values())

    def get(self, key: int) -> ResidentModel:
        """A resident model; raises `EngineClosedError` once removed and `EngineError` while it is aside."""
        model = self._models.get(key)
        if model is None and key in self.aside:
            raise EngineError("the model is paused; wake it before")
        if model is None:
            raise EngineClosedError("the model was unloaded; load it again")
        return model

    def tokenizer(self, key: int) -> Tokenizer:
        """Of a model that is resident or aside; raises `EngineClosedError` for another."""
        aside = self.aside.get(key)
        return self.get(key).tokenizer if aside is None else aside.origin.tokenizer

    def context_of(self, resident: ResidentModel) -> int:
        """Most tokens of a sequence that a model is asked to read."""
        return min(resident.context_length, self.context_limits.get(resident.key, resident.context_length))

    def touch(self, key: int, now: float) -> None:
        """A request of a model came or ended."""
        model = self._models.get(key) or self.aside.get(key)
        if model is not None:
            model.last_used = now

    def add(self, resident: ResidentModel) -> None:
        """Take in a loaded model, with KV blocks of its own."""
        self._models[resident.key] = resident
        resident.last_used = time.monotonic()
        resident.open_blocks(self.budget, self._config.max_prefill_tokens, debug=self._config.debug)

    def remove(self, key: int) -> ResidentModel | None:
        """Forget a model; None for one that is not there."""
        return self._models.pop(key, None)

    def start_over(self) -> None:
        """Forget what KV blocks hold: empty ones for every model, in a budget as large as before."""
        self.budget = KVBudget(self.budget.total_bytes)
        for resident in self:
            resident.open_blocks(self.budget, self._config.max_prefill_tokens, debug=self._config.debug)

    @property
    def kv_limit(self) -> int:
        """Bytes that KV may take now: what weights and graphs leave, or the settings' number."""
        # Runners of a processor count none: its KV takes memory as blocks are first written.
        return self._kv_limit(sum(model.runner.kv_bytes for model in self) or self.budget.used_bytes)

    def update_budget(self, least: int) -> None:
        """What KV may take changes with what weights take; never less than the answers at hand need."""
        self.budget.set_total(max(self.kv_limit, least))

    def make_room(self) -> None:
        """Give back the memory of cached KV."""
        for model in self:
            model.blocks.evict_all()
            model.runner.trim_kv(model.blocks.highest_used)

    def idle_work(self, idle: Callable[[], bool], learn: Callable[[int, Load, float], None]) -> bool:
        """A piece of what later passes would wait for, while nothing else is asked; whether there is more.

        learn: told of a model's key, a pass and the milliseconds that it took.
        """
        return any(self._piece_of(model, learn) for model in self if idle())

    def _piece_of(self, model: ResidentModel, learn: Callable[[int, Load, float], None]) -> bool:
        more, timings = model.runner.idle_work(), model.runner.notes.timings
        for load, ms in timings:
            learn(model.key, load, ms)
        timings.clear()
        return more

    def fit_memory(self) -> None:
        """Give back KV memory that is not needed, take host memory that will be; no tick depends on it."""
        for model in self:
            try:
                model.runner.trim_kv(model.blocks.highest_used)
                self._grow_host_memory(model)
            except Exception as error:
                if is_lost(error):
                    raise
                log.exception("memory of model %s keeps its size", model.name)

    def _grow_host_memory(self, model: ResidentModel) -> None:
        """Have as much host memory as the device holds of a model's KV, once memory becomes short."""
        if self._config.offload is Offload.NEVER or not self._config.host_kv_bytes:
            return
        short = self.budget.used_bytes > _HOST_MEMORY_FROM * self.budget.total_bytes
        blocks, part = model.blocks, self._config.host_kv_bytes // len(model.blocks.hosts)
        kinds = zip(blocks.hosts, model.runner.host_pools, blocks.num_kept, model.slot_bytes, strict=True)
        for index, pool, kept, size in kinds:
            if short:
                pool.grow_to(min(part // size, kept * 2))
            index.grow(min(part // size, pool.capacity))

    def reload(self, load: Callable[[ModelOrigin], ResidentModel]) -> None:
        """Load every model again from its file; their KV blocks are opened by `start_over`."""
        origins = [resident.origin for resident in self]
        self.close()
        return_freed_memory()
        for origin in origins:
            self._models[origin.key] = load(origin)

    def close(self) -> None:
        """Forget all models and wait until their memory is back."""
        self.aside.forget_copies()
        freed = [resident.runner.freed for resident in self]
        self.drop()
        for memory in freed:
            memory.wait()

    def drop(self) -> None:
        """Forget all models, whatever closing them raises."""
        for resident in self:
            try:
                resident.runner.close()
            except Exception:
                log.exception("closing a model failed")
        self._models.clear()
