"""Runs what a tick has planned and keeps what goes wrong to the sequences that it belongs to."""

import logging
import time
from collections.abc import Container, Mapping

import torch

from engine.api.errors import DeviceLostError
from engine.core.block_table_check import mend_tables
from engine.core.model_loader import ResidentModel
from engine.core.pass_recovery import Recovery, part_of
from engine.core.tick_log import TickLog
from engine.device.faults import describe, is_lost, is_out_of_memory
from engine.device.memory import return_freed_memory
from engine.runner.eager_runner import Runner
from engine.runner.sampler import Sampled
from engine.scheduler.scheduler import ModelBatch, Scheduler, TickPlan

log = logging.getLogger(__name__)


class Passes:
    """The passes of all resident models. Every method may raise `DeviceLostError`, nothing else."""

    def __init__(self, models: Mapping[int, ResidentModel], device: torch.device, ticks: TickLog) -> None:
        self._models = models
        self._ticks = ticks
        self._recovery = Recovery(device, self._free_memory)

    def run(self, plan: TickPlan, scheduler: Scheduler) -> Sampled:
        """An id or a cause for every sequence that reached its target, a cause for each that was lost."""
        result = Sampled({}, self._move_blocks(plan, scheduler))
        for batch in plan.batches:
            result.update(self._run(batch, scheduler, learn=not plan.moves))
        return result

    def may_run_ahead(self, batch: ModelBatch, scheduler: Scheduler) -> bool:
        """Whether ticks of decode rows can be queued: the device can, and every block table is right."""
        resident = self._models[batch.model]
        return bool(resident.runner.max_ahead) and not resident.pages.faults(batch, scheduler.sequences)

    def recover(self, batch: ModelBatch, alive: Container[int], error: Exception) -> Sampled:
        """One tick of the rows that are still alive, after ticks that were queued ahead have failed."""
        runner = self._models[batch.model].runner
        rows = [s.sequence_id for s in batch.decode if s.sequence_id in alive]
        return self._recovery.run(runner, part_of(batch, rows), error)

    def learn(self, batch: ModelBatch, seconds: float, scheduler: Scheduler) -> None:
        """Compare a measured pass with what was predicted; before the tick's commit."""
        self._ticks.expect(scheduler.observe(batch, seconds * 1e3))

    def committed(self, plan: TickPlan) -> None:
        """Take note of what the tick computed; call after every commit."""
        for batch in plan.batches:
            resident = self._models.get(batch.model)
            if resident is not None:
                resident.pages.computed()

    def _run(self, batch: ModelBatch, scheduler: Scheduler, *, learn: bool) -> Sampled:
        resident = self._models[batch.model]
        wrong = resident.pages.faults(batch, scheduler.sequences)
        if wrong:
            batch = self._without(batch, wrong, scheduler)
        if not batch.sequences:
            return Sampled({}, wrong)
        started = time.perf_counter()
        try:
            result = resident.runner.run(batch)
        except Exception as error:
            if is_out_of_memory(error):
                scheduler.prefill_cap.short(sum(chunk.length for chunk in batch.prefill))
            result = self._recovery.run(resident.runner, batch, error)
            learn = False
        if learn:
            # Copies of KV in the same tick would be taken for the pass's own time.
            self.learn(batch, time.perf_counter() - started, scheduler)
        result.failed.update(wrong)
        return result

    def _without(self, batch: ModelBatch, wrong: dict[int, str], scheduler: Scheduler) -> ModelBatch:
        """The batch without sequences whose tables are wrong; these can be released afterwards."""
        for sequence_id, cause in wrong.items():
            log.error("sequence %s ends: %s", sequence_id, cause)
        blocks = self._models[batch.model].blocks
        victims = [sequence for sequence in batch.sequences if sequence.sequence_id in wrong]
        others = [s for s in scheduler.running if s.model == batch.model and s.sequence_id not in wrong]
        mend_tables(victims, others, blocks)
        return part_of(batch, {sequence.sequence_id for sequence in others})

    def _move_blocks(self, plan: TickPlan, scheduler: Scheduler) -> dict[int, str]:
        """Copy KV to host memory and back; returns a cause for each sequence that has lost its KV."""
        failed: dict[int, str] = {}
        for key, moves in plan.moves.items():
            resident = self._models[key]
            try:
                resident.runner.save_blocks(moves.saves)
                _load_blocks(resident.runner, moves.loads)
                resident.pages.moved(moves)
            except Exception as error:
                if is_lost(error):
                    raise DeviceLostError(describe(error)) from error
                log.exception("moving KV blocks failed")
                resident.blocks.host.clear()
                lost = {block for block, _ in moves.loads}
                cause = f"its KV could not be brought back from host memory: {describe(error)}"
                for sequence in scheduler.running:
                    if sequence.model == key and not lost.isdisjoint(sequence.block_table):
                        failed[sequence.sequence_id] = cause
        return failed

    def _free_memory(self, batch: ModelBatch) -> None:
        """Give the device what is only cached: freed scratch, and KV that nobody holds."""
        return_freed_memory()
        resident = self._models[batch.model]
        if resident.runner.kv_bytes and not batch.copies:
            # What a copy reads may be cached and nothing else.
            resident.blocks.evict_all()
            resident.runner.trim_kv(resident.blocks.highest_used + 1)


def _load_blocks(runner: Runner, pairs: list[tuple[int, int]]) -> None:
    """Copy host slots to KV blocks, twice if need be: nothing has read or written them in between."""
    try:
        runner.load_blocks(pairs)
    except Exception as error:
        if is_lost(error):
            raise
        log.warning("KV blocks are loaded again", exc_info=error)
        runner.load_blocks(pairs)
