"""Runs what a tick has planned and keeps what goes wrong to the sequences that it belongs to."""

import logging
import time
from collections.abc import Container, Mapping
from dataclasses import dataclass, field

import torch

from engine.api.errors import DeviceLostError
from engine.cache.block_manager import KVMove
from engine.core.model_loader import ResidentModel
from engine.core.recovery.block_table_check import mend_tables
from engine.core.recovery.pass_recovery import PassRecovery, part_of
from engine.device.faults import describe, is_lost, is_out_of_memory
from engine.device.memory import return_freed_memory
from engine.runner.base import Runner
from engine.runner.sampler import Sampled
from engine.scheduler.plan import ModelBatch, TickPlan

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Executed:
    """What a plan gave, and what is to be learned of it."""

    sampled: Sampled
    """An id or a cause for every sequence that reached its target, a cause for each that was lost."""
    timings: list[tuple[ModelBatch, float]] = field(default_factory=list)
    """Passes that went as planned, and their milliseconds."""
    out_of_memory: list[int] = field(default_factory=list)
    """Prompt tokens of passes for which the device had no memory."""


class Executor:
    """The passes of all resident models. Every method may raise `DeviceLostError`, nothing else.

    It knows of sequences what plans say, and tells the scheduler nothing: its caller does.
    """

    def __init__(self, models: Mapping[int, ResidentModel], device: torch.device) -> None:
        self._models = models
        self._recovery = PassRecovery(device, self._free_memory)

    def run(self, plan: TickPlan) -> Executed:
        """Move blocks, then run one pass for each model."""
        result = Executed(Sampled({}, self._move_blocks(plan)))
        for batch in plan.batches:
            self._run(batch, plan, result)
        return result

    def may_multi_step(self, batch: ModelBatch, plan: TickPlan) -> bool:
        """Whether ticks of decode rows can be queued: the device can, and every block table is right."""
        resident = self._models[batch.model]
        return bool(resident.runner.max_ahead) and not resident.table_check.faults(batch, plan.live)

    def recover(self, batch: ModelBatch, alive: Container[int], error: Exception) -> Sampled:
        """One tick of the rows that are still alive, after ticks that were queued ahead have failed."""
        runner = self._models[batch.model].runner
        rows = [s.sequence_id for s in batch.decode if s.sequence_id in alive]
        return self._recovery.run(runner, part_of(batch, rows), error)

    def committed(self, plan: TickPlan) -> None:
        """Take note of what the tick gave, masks of the next one first; call after every commit."""
        for batch in plan.batches:
            resident = self._models.get(batch.model)
            if resident is not None:
                resident.table_check.computed()
            for sequence in batch.sequences:
                sequence.follow()

    def _run(self, batch: ModelBatch, plan: TickPlan, result: Executed) -> None:
        resident = self._models[batch.model]
        wrong = resident.table_check.faults(batch, plan.live)
        if wrong:
            batch = self._without(batch, wrong, plan)
        if batch.sequences:
            started = time.perf_counter()
            try:
                sampled = resident.runner.run(batch)
            except Exception as error:
                if is_out_of_memory(error):
                    result.out_of_memory.append(sum(chunk.length for chunk in batch.prefill))
                sampled = self._recovery.run(resident.runner, batch, error)
            else:
                if sampled.timed and not plan.moves:
                    # Copies of KV in the same tick would be taken for the pass's own time.
                    result.timings.append((batch, (time.perf_counter() - started) * 1e3))
            result.sampled.update(sampled)
        result.sampled.failed.update(wrong)

    def _without(self, batch: ModelBatch, wrong: dict[int, str], plan: TickPlan) -> ModelBatch:
        """The batch without sequences whose tables are wrong; these can be released afterwards."""
        for sequence_id, cause in wrong.items():
            log.error("sequence %s ends: %s", sequence_id, cause)
        victims = [sequence for sequence in batch.sequences if sequence.sequence_id in wrong]
        others = [s for s in plan.holders(batch.model) if s.sequence_id not in wrong]
        mend_tables(victims, others, self._models[batch.model].blocks)
        return part_of(batch, {sequence.sequence_id for sequence in others})

    def _move_blocks(self, plan: TickPlan) -> dict[int, str]:
        """Copy KV to host memory and back; returns a cause for each sequence that has lost its KV."""
        failed: dict[int, str] = {}
        for key, moves in plan.moves.items():
            resident = self._models[key]
            try:
                resident.runner.offload_blocks(moves.offloads)
                _reload_blocks(resident.runner, moves.reloads)
                resident.table_check.moved(moves)
            except Exception as error:
                if is_lost(error):
                    raise DeviceLostError(describe(error)) from error
                log.exception("moving KV blocks failed")
                resident.blocks.clear_hosts()
                lost = {page for pool, page, _ in moves.reloads if pool == 0}
                cause = f"its KV could not be brought back from host memory: {describe(error)}"
                for sequence in plan.holders(key):
                    if not lost.isdisjoint(sequence.block_table):
                        failed[sequence.sequence_id] = cause
        return failed

    def _free_memory(self, batch: ModelBatch) -> None:
        """Give the device what is only cached: freed scratch, and KV that nobody holds."""
        return_freed_memory()
        resident = self._models[batch.model]
        if resident.runner.kv_bytes:
            resident.blocks.evict_all()
            resident.runner.trim_kv(resident.blocks.highest_used)


def _reload_blocks(runner: Runner, moves: list[KVMove]) -> None:
    """Copy host slots to KV blocks, twice if need be: nothing has read or written them in between."""
    try:
        runner.reload_blocks(moves)
    except Exception as error:
        if is_lost(error):
            raise
        log.warning("KV blocks are loaded again", exc_info=error)
        runner.reload_blocks(moves)
