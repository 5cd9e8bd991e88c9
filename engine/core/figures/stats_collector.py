"""Takes the engine's frozen statistics, on its thread, at most every 50 ms."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping

from engine.api.detail import EngineDetail
from engine.api.stats import EngineStats, KVDiskStats, KVGroupStats, ModelStats, SequenceState, SequenceStats
from engine.core.aside_models import working
from engine.core.figures.detail_collector import DetailCollector
from engine.core.model_loader import ResidentModel
from engine.core.output_processor import RATE_WINDOW, OutputProcessor, RateMeter
from engine.core.resident_models import ResidentModels
from engine.device.memory import process_bytes
from engine.scheduler.plan import TickPlan
from engine.scheduler.prefill.chunked_prefill import NO_LIMIT
from engine.scheduler.scheduler import Scheduler
from engine.scheduler.sequence import Sequence
from kernels.contract import Operations

log = logging.getLogger(__name__)

_INTERVAL = 0.05
_MEMORY_INTERVAL = 0.5
_SMOOTHING = 0.1
_WAITING = (SequenceState.QUEUED, SequenceState.PAUSED)


class StatsCollector:
    """Accumulates what ticks did and publishes `EngineStats`."""

    def __init__(
        self,
        ops: Operations,
        models: ResidentModels,
        scheduler: Scheduler,
        disk: Callable[[], KVDiskStats | None],
    ) -> None:
        self._ops = ops
        self._disk = disk
        self._models = models
        self._ticks = 0
        self._tick_ms = 0.0
        self._rows = 0
        self._prefill_tokens = 0
        self._decode_rate = RateMeter()
        self._prefill_rate = RateMeter()
        self._taken_at = 0.0
        self._memory = (0.0, 0)
        self.failure = ""
        """Why nothing is served any more."""
        self._lost_models: tuple[int, ...] = ()
        self.details = DetailCollector(models)
        self.latest = self._build(scheduler, {}, time.monotonic())

    def tick(self, plan: TickPlan, accepted: int, seconds: float, now: float) -> None:
        """Account one tick, in which `accepted` draft tokens were accepted."""
        self._ticks += 1
        self._rows = sum(len(batch.decode) for batch in plan.batches)
        self._prefill_tokens = sum(chunk.length for batch in plan.batches for chunk in batch.prefill)
        self._tick_ms += (seconds * 1e3 - self._tick_ms) * (_SMOOTHING if self._ticks > 1 else 1.0)
        if self._rows:
            self._decode_rate.add(now, self._rows + accepted)
        if self._prefill_tokens:
            self._prefill_rate.add(now, self._prefill_tokens)

    def given_up(self, cause: str) -> None:
        """The device serves nothing any more; call it while its models are known."""
        aside = [model.stats.model_id for model in self._models.aside]
        self.failure, self._lost_models = cause, (*(model.key for model in self._models), *aside)

    def due(self, now: float) -> bool:
        """Whether the last snapshot is old enough."""
        return now - self._taken_at >= _INTERVAL

    def settles_in(self) -> float | None:
        """Seconds until the speeds of an idle engine have run out; None: they have."""
        running = self.latest.decode_tok_s or self.latest.prefill_tok_s
        return RATE_WINDOW if running else None

    def detail(self, wake: Callable[[], object]) -> EngineDetail | None:
        """Return the latest close look, and have one taken with the next snapshot; `wake` an idle engine."""
        latest, idle = self.details.latest, all(s.user_paused for s in self.latest.sequences)
        self.details.wanted = not idle or latest is None or latest.stats is not self.latest
        if idle and self.details.wanted:
            wake()
        return latest

    def take(
        self,
        scheduler: Scheduler,
        outputs: Mapping[int, OutputProcessor],
        now: float,
    ) -> None:
        """Publish a snapshot; where that fails the last one stays."""
        self._taken_at = now
        if not outputs:
            self._rows = self._prefill_tokens = 0
        try:
            self.latest = self._build(scheduler, outputs, now)
            if self.details.wanted:
                self.details.take(self.latest, [output.sequence for output in outputs.values()])
        except Exception:
            log.exception("taking the statistics failed")

    def _build(
        self,
        scheduler: Scheduler,
        outputs: Mapping[int, OutputProcessor],
        now: float,
    ) -> EngineStats:
        residents = list(self._models)
        waits = scheduler.wait_seconds()
        sequences = tuple(
            self._sequence(scheduler, output, waits, now)
            if (aside := self._models.aside.get(output.sequence.model)) is None
            else _parked(output.sequence, aside.stats)
            for output in outputs.values()
        )
        used = sum(sum(m.blocks.held_bytes) for m in residents)
        cached = sum(m.blocks.cached_bytes for m in residents)
        return EngineStats(
            device=str(self._ops.device),
            kernels=self._ops.name,
            kv_dtype=", ".join(dict.fromkeys(m.info.kv_dtype for m in residents)) or self._ops.kv_format,
            block_size=self._ops.block_size,
            kv_bytes_total=self._models.budget.total_bytes,
            kv_bytes_used=used,
            kv_bytes_cached=cached,
            blocks_used=sum(m.blocks.held for m in residents),
            blocks_cached=sum(m.blocks.cached for m in residents),
            rows=self._rows,
            prefill_tokens=self._prefill_tokens,
            tick_ms=self._tick_ms,
            ticks=self._ticks,
            queue_length=sum(s.state in _WAITING and not s.user_paused for s in sequences),
            decode_tok_s=self._decode_rate.rate(now),
            prefill_tok_s=self._prefill_rate.rate(now),
            process_bytes=self._process_bytes(now),
            preemptions=scheduler.preemptions,
            sequences=sequences,
            models=(
                *(
                    _model(m, self._models.context_of(m), working(m.key, scheduler.sequences))
                    for m in residents
                ),
                *self._models.aside.stats(),
            ),
            kv_bytes_host=sum(m.blocks.hosted_bytes for m in residents),
            tick_limit_ms=_finite(scheduler.tick_limit_ms) if self._rows else 0.0,
            tick_error=_p95(scheduler.errors),
            fallbacks=tuple(self._ops.fallbacks),
            kv_disk=self._disk(),
            failure=self.failure,
            lost_models=self._lost_models,
        )

    def _sequence(
        self,
        scheduler: Scheduler,
        output: OutputProcessor,
        waits: Mapping[int, float],
        now: float,
    ) -> SequenceStats:
        sequence: Sequence = output.sequence
        model = self._models.get(sequence.model)
        shared = model.blocks.count_shared(sequence.block_table)
        return SequenceStats(
            sequence_id=sequence.sequence_id,
            model=model.name,
            label=sequence.request.label,
            state=sequence.state,
            prompt_tokens=sequence.prompt_len,
            computed_tokens=sequence.num_computed,
            context_tokens=len(sequence.token_ids),
            context_length=self._models.context_of(model),
            blocks_own=len(sequence.block_table) - shared,
            blocks_shared=shared,
            tok_s=output.rate.rate(now),
            queue_position=scheduler.queue_position(sequence),
            note=sequence.note,
            priority=sequence.priority,
            focused=scheduler.focused == sequence.sequence_id,
            user_paused=sequence.user_paused,
            wait_s=waits.get(sequence.sequence_id),
            blocks_host=_hosted(sequence, model),
            drafted=sequence.drafted,
            accepted=sequence.accepted,
        )

    def _process_bytes(self, now: float) -> int:
        if now - self._memory[0] >= _MEMORY_INTERVAL or not self._memory[1]:
            self._memory = (now, process_bytes())
        return self._memory[1]


def _parked(sequence: Sequence, model: ModelStats) -> SequenceStats:
    """Of one that waits for its model."""
    return SequenceStats(
        sequence_id=sequence.sequence_id,
        model=model.name,
        label=sequence.request.label,
        state=sequence.state,
        prompt_tokens=sequence.prompt_len,
        computed_tokens=0,
        context_tokens=len(sequence.token_ids),
        context_length=model.context_length,
        blocks_own=0,
        blocks_shared=0,
        tok_s=0.0,
        queue_position=0,
        note=sequence.note,
        priority=sequence.priority,
        user_paused=sequence.user_paused,
    )


def _hosted(sequence: Sequence, model: ResidentModel) -> int:
    """Blocks of a sequence that wait in host memory."""
    if sequence.block_table or not model.blocks.host.used:
        return len(sequence.reloads)
    return len(model.blocks.match(sequence.token_ids)[1])


def _finite(milliseconds: float) -> float:
    return milliseconds if milliseconds != NO_LIMIT else 0.0


def _p95(errors: Iterable[float]) -> float:
    ordered = sorted(errors)
    return ordered[int(0.95 * (len(ordered) - 1))] if ordered else 0.0


def _model(model: ResidentModel, context_length: int, works: bool) -> ModelStats:
    return ModelStats(
        model_id=model.key,
        idle_since=None if works else model.last_used,
        name=model.name,
        path=str(model.path),
        weight_bytes=model.info.weight_bytes,
        kv_bytes_per_token=model.info.kv_bytes_per_token,
        context_length=context_length,
        kv_dtype=model.info.kv_dtype,
        kv_note=model.info.kv_note,
        placement=model.info.placement,
        by_torch=model.ops.by_torch,
        kv_groups=_kv_groups(model),
    )


def _kv_groups(model: ResidentModel) -> tuple[KVGroupStats, ...]:
    blocks = model.blocks
    windows = [0, *(kind.shape.tokens for kind in blocks.windows.kinds)]
    kinds = zip(windows, blocks.pool_bytes, blocks.held_bytes, blocks.num_kept, strict=True)
    return tuple(
        KVGroupStats(window, size // blocks.block_size, held, kept * size - held)
        for window, size, held, kept in kinds
    )
