"""Which tokens run in the next tick.

A tick is `plan` → the step on the device → `commit`. `plan` takes every block that the step writes
to, so a step cannot fail for KV memory. Between the two, what ends is only marked: blocks of a step
in flight are released by `commit`, once. Not thread-safe; this module imports no torch.

Every sequence ends exactly once: either `finish` / `cancel` return True, or `commit` returns it.
"""

from bisect import insort
from collections.abc import Mapping

from engine.admission import (
    ModelSlot,
    SchedulerConfig,
    WaitingQueue,
    check_books,
    find_prefix,
    take_blocks,
)
from engine.cost_model import CostModel
from engine.errors import RequestError
from engine.kv_cache import BlockManager, InvariantError
from engine.prefill_share import plan_chunks
from engine.request import FinishReason, Priority, Request
from engine.sequence import Sequence
from engine.stats import SequenceState
from engine.tick_plan import ModelBatch, PrefillChunk, TickPlan

__all__ = ["ModelBatch", "PrefillChunk", "Scheduler", "SchedulerConfig", "TickPlan"]

NO_FAILURES: Mapping[int, str] = {}


class Scheduler:
    """Sequences of all resident models, one tick budget and one KV budget.

    `rank` orders everything: the head of the queue is admitted first, and when a decode row finds no
    block the last in rank of those that run goes back to the queue. The first in rank is never
    preempted and, alone, always fits; so something always makes progress. Sequences that are paused
    on request give their blocks before anybody who runs or could.
    """

    def __init__(self, cost: CostModel, config: SchedulerConfig) -> None:
        self.cost = cost
        self.config = config
        self.preemptions = 0
        self._models: dict[int, ModelSlot] = {}
        self._sequences: dict[int, Sequence] = {}
        self._queue = WaitingQueue(config.head_start_s)
        self._running: list[Sequence] = []
        """Sequences that hold blocks, by rank."""
        self._in_flight: TickPlan | None = None
        self._ending: dict[int, tuple[FinishReason, str | None, bool]] = {}
        """What ended while a tick was in flight: reason, error, whether its KV may be rubbish."""
        self._focus: int | None = None
        self._copies: dict[int, tuple[int, int]] = {}
        """Copies that this tick's admissions need, by sequence."""
        self._blocked: tuple[int, int, int] | None = None
        """(sequence, KV version, running) of the last failed admission: the same would fail again."""

    @property
    def sequences(self) -> Mapping[int, Sequence]:
        """All live sequences by id."""
        return self._sequences

    @property
    def running(self) -> list[Sequence]:
        """Sequences that hold blocks, by rank."""
        return list(self._running)

    @property
    def waiting(self) -> list[Sequence]:
        """Sequences in the queue, the next one first."""
        return list(self._queue)

    def add_model(self, key: int, blocks: BlockManager, context_length: int) -> None:
        """Make a model schedulable."""
        if key in self._models:
            raise InvariantError(f"scheduler: model {key} was added twice")
        self._models[key] = ModelSlot(key, blocks, context_length)

    def remove_model(self, key: int) -> list[Sequence]:
        """Forget a model and give its memory back; returns its sequences, all ended by this call.

        Raises `InvariantError` for an unknown key, or while a tick is in flight.
        """
        if self._in_flight is not None or key not in self._models:
            raise InvariantError(f"scheduler: model {key} cannot be removed now")
        ended = [sequence for sequence in self._sequences.values() if sequence.model == key]
        for sequence in ended:
            self._end(sequence, FinishReason.CANCELLED, "the model was unloaded")
        self._models.pop(key).blocks.close()
        self.cost.forget(key)
        return ended

    def limit_for(self, request: Request, model: int) -> int:
        """Most tokens, prompt included, that `request` may have in total."""
        return self._slot(model).limit_for(request)

    def check_fits(self, request: Request, model: int) -> None:
        """Raise `RequestError`, with numbers, for a request that could never run to its end.

        Reads only what never changes while a model is resident: any thread may call it.
        """
        self._slot(model).check_fits(request)

    def submit(self, sequence: Sequence) -> None:
        """Queue a new sequence; raises `RequestError` if it can never fit or too many wait."""
        slot = self._slot(sequence.model)
        slot.check_fits(sequence.request)
        if len(self._queue) >= self.config.max_queue:
            raise RequestError(f"queue: {len(self._queue)} requests wait already; try again later")
        if sequence.sequence_id in self._sequences:
            raise InvariantError(f"scheduler: sequence {sequence.sequence_id} was submitted twice")
        sequence.limit = slot.limit_for(sequence.request)
        sequence.rank = self._queue.rank(sequence)
        sequence.state = SequenceState.QUEUED
        self._sequences[sequence.sequence_id] = sequence
        self._queue.add(sequence)

    def cancel(self, sequence_id: int) -> bool:
        """End a sequence; True if it ended now, False if `commit` will return it or it has ended."""
        sequence = self._sequences.get(sequence_id)
        return sequence is not None and self.finish(sequence, FinishReason.CANCELLED)

    def focus(self, sequence_id: int | None) -> None:
        """Put one sequence before all others; an id that is not live means nobody."""
        self._focus = sequence_id

    @property
    def focused(self) -> int | None:
        """The sequence that comes first."""
        return self._focus

    def hold(self, sequence_id: int) -> None:
        """Compute nothing more for a sequence until `let_go`; it keeps its KV while nobody needs it.

        Raises `InvariantError` while a tick is in flight.
        """
        sequence = self._steerable(sequence_id)
        if sequence is not None and not sequence.held:
            sequence.held = True
            sequence.state, sequence.note = SequenceState.PAUSED, "paused on request"

    def let_go(self, sequence_id: int) -> None:
        """Undo `hold`."""
        sequence = self._steerable(sequence_id)
        if sequence is None or not sequence.held:
            return
        sequence.held, sequence.note = False, ""
        if sequence.block_table:
            reads = sequence.remaining > 1 or not sequence.num_generated
            sequence.state = SequenceState.PREFILL if reads else SequenceState.DECODE
        else:
            sequence.state = SequenceState.PAUSED if sequence.preemptions else SequenceState.QUEUED

    def set_priority(self, sequence_id: int, priority: Priority) -> None:
        """Change a sequence's share and its place in the order."""
        sequence = self._steerable(sequence_id)
        if sequence is None or sequence.priority is priority:
            return
        sequence.priority = priority
        if sequence.block_table:
            self._running.remove(sequence)
            sequence.rank = self._queue.rank(sequence)
            insort(self._running, sequence, key=lambda item: item.rank)
        else:
            self._queue.remove(sequence)
            sequence.rank = self._queue.rank(sequence)
            self._queue.add(sequence)

    @property
    def idle(self) -> bool:
        """Whether nothing can run: no sequence, or all of them paused on request."""
        return all(sequence.held for sequence in self._sequences.values())

    def finish(
        self, sequence: Sequence, reason: FinishReason = FinishReason.STOP, error: str | None = None
    ) -> bool:
        """End a sequence and free its blocks; the result is that of `cancel`.

        While a tick is in flight, a running sequence ends in `commit`; the first reason counts.
        """
        if self._sequences.get(sequence.sequence_id) is not sequence:
            return False
        if self._in_flight is not None and sequence.block_table:
            self._ending.setdefault(sequence.sequence_id, (reason, error, False))
            return False
        self._end(sequence, reason, error)
        return True

    def extend(self, plan: TickPlan, ahead: int) -> bool:
        """Whether the plan in flight may run again before the ids of its last `ahead` ticks are known.

        For a plan of decode rows of one model alone; takes the blocks that the tick writes to. False
        once a row has ended or would reach its limit, or when no block is left.
        """
        if plan is not self._in_flight or self._ending:
            return False
        batch = plan.batches[0]
        blocks = self._models[batch.model].blocks
        missing = []
        for sequence in batch.decode:
            tokens = len(sequence.token_ids) + ahead
            if tokens >= sequence.limit:
                return False
            if tokens > len(sequence.block_table) * blocks.block_size:
                missing.append(sequence)
        if missing and not blocks.fits(len(missing)):
            return False
        for sequence in missing:
            sequence.block_table += blocks.allocate(1, sequence.block_table[-1]) or []
        return True

    def queue_position(self, sequence: Sequence) -> int:
        """1 for the next one to be admitted; 0 for one that does not wait."""
        return self._queue.position(sequence)

    def observe(self, batch: ModelBatch, ms: float) -> None:
        """Teach the cost model one measured pass; before `commit`, which changes the sequences."""
        self.cost.observe(batch.model, batch.load, ms)

    def plan(self, now: float) -> TickPlan:
        """What to compute in the tick at clock `now`: every decode row, then prompts.

        A plan that is not empty must be given to `commit`. Raises `InvariantError` when the last one
        was not, or when nothing can run although something waits.
        """
        if self._in_flight is not None:
            raise InvariantError("scheduler: plan was called while a tick is in flight")
        before = self.preemptions
        self._grow_decode_rows()
        if self.preemptions == before:
            # Who was paused sits this tick out, even if sharing another's copies would let it back at once.
            self._admit()
        batches = self._decode_batches()
        self._add_prefill(batches, now)
        plan = TickPlan([batch for batch in batches.values() if batch.decode or batch.prefill])
        if plan.empty and not self.idle:
            raise InvariantError("scheduler: sequences wait but none can run")
        self._in_flight = None if plan.empty else plan
        return plan

    def commit(
        self,
        plan: TickPlan,
        sampled: Mapping[int, int],
        failed: Mapping[int, str] = NO_FAILURES,
        now: float | None = None,
        *,
        more: bool = False,
    ) -> list[Sequence]:
        """Account a step: advance, append sampled ids, index full blocks; returns what ended here.

        With `more` the plan stays in flight, run again: nothing ends before its last step.

        `sampled` has an id for every sequence whose known tokens are all computed now. `failed` gives
        the cause for sequences whose step failed: they end with `ERROR` and their blocks, which may
        hold rubbish, are forgotten. What was finished or cancelled during the tick ends here too, its
        sampled id dropped; and so does, as failed, a sequence that should have an id but has none.
        """
        if plan.empty:
            return []
        if plan is not self._in_flight:
            raise InvariantError("scheduler: commit needs the plan that is in flight")
        for batch in plan.batches:
            slot = self._models[batch.model]
            for sequence in batch.decode:
                self._advance(slot, sequence, 1, sampled, failed, now)
            for chunk in batch.prefill:
                self._advance(slot, chunk.sequence, chunk.length, sampled, failed, now)
        if more:
            return []
        self._in_flight = None
        ended: list[Sequence] = []
        for sequence_id, (reason, error, discard) in self._ending.items():
            sequence = self._sequences[sequence_id]
            self._end(sequence, reason, error, discard=discard)
            ended.append(sequence)
        self._ending.clear()
        self.check()
        return ended

    def check(self) -> None:
        """Raise `InvariantError` if the books do not balance; thorough with `config.debug`."""
        if len(self._running) + len(self._queue) != len(self._sequences):
            raise InvariantError(
                f"scheduler: {len(self._running)} running and {len(self._queue)} waiting sequences "
                f"are not {len(self._sequences)}"
            )
        for slot in self._models.values():
            slot.blocks.check_counts()
        if self.config.debug:
            check_books(self._models, self._running, self._queue)

    def _steerable(self, sequence_id: int) -> Sequence | None:
        if self._in_flight is not None:
            raise InvariantError("scheduler: sequences are steered between ticks")
        return self._sequences.get(sequence_id)

    def _slot(self, model: int) -> ModelSlot:
        slot = self._models.get(model)
        if slot is None:
            raise RequestError(f"model: {model} is not loaded; load it before submitting to it")
        return slot

    def _grow_decode_rows(self) -> None:
        """Give each decode row the block of its next token; the last in rank make room."""
        for sequence in self._running[:]:
            if sequence.state is not SequenceState.DECODE:
                continue
            if sequence.at_limit:
                raise InvariantError(f"scheduler: sequence {sequence.sequence_id} was not ended at its limit")
            blocks = self._models[sequence.model].blocks
            if sequence.num_computed < len(sequence.block_table) * blocks.block_size:
                continue
            while sequence.block_table:
                grown = blocks.allocate(1, sequence.block_table[-1])
                if grown is not None:
                    sequence.block_table += grown
                    break
                self._preempt(self._victim(blocks))

    def _victim(self, blocks: BlockManager) -> Sequence:
        """The last in rank whose blocks help, paused ones first; of the same model when numbers are short."""
        own_only = not blocks.free and not blocks.cached
        for sequence in sorted(self._running, key=lambda item: (item.held, item.rank), reverse=True):
            if not own_only or self._models[sequence.model].blocks is blocks:
                return sequence
        raise InvariantError("scheduler: a decode row finds no block although nothing holds any")

    def _preempt(self, sequence: Sequence) -> None:
        """Free a sequence's blocks; it reads prompt and answer again when there is room."""
        self._models[sequence.model].blocks.release(sequence.block_table)
        sequence.num_computed = 0
        sequence.state = SequenceState.PAUSED
        sequence.note = "paused: the KV memory is full"
        sequence.preemptions += 1
        self.preemptions += 1
        self._running.remove(sequence)
        self._queue.add(sequence)

    def _admit(self) -> None:
        while sum(not running.held for running in self._running) < self.config.max_sequences:
            sequence = self._queue.head()
            if sequence is None:
                return
            if not self._admit_one(sequence):
                holder = next((running for running in reversed(self._running) if running.held), None)
                if holder is None:
                    return
                self._preempt(holder)

    def _admit_one(self, sequence: Sequence) -> bool:
        blocks = self._models[sequence.model].blocks
        situation = (sequence.sequence_id, blocks.budget.version, len(self._running))
        if situation == self._blocked:
            return False
        parent = self._sequences.get(sequence.parent) if sequence.parent is not None else None
        hit = find_prefix(sequence, parent, blocks)
        if not blocks.fits(hit.missing + self._reserve(sequence, blocks), hit.blocks):
            self._blocked = situation
            if sequence.state is SequenceState.QUEUED:
                sequence.note = f"waits for KV memory for {sequence.num_target} tokens"
            return False
        copy = take_blocks(sequence, hit, blocks)
        if copy is not None:
            self._copies[sequence.sequence_id] = copy
        if not sequence.preemptions:
            sequence.cached_tokens = hit.tokens
        sequence.state = SequenceState.PREFILL
        sequence.note = ""
        self._queue.remove(sequence)
        insort(self._running, sequence, key=lambda item: item.rank)
        return True

    def _reserve(self, sequence: Sequence, blocks: BlockManager) -> int:
        """Blocks that must stay free when `sequence` starts: none if nothing else runs."""
        if not self._running:
            return 0
        part = self.config.return_reserve if sequence.preemptions else self.config.reserve
        return max(1 + len(self._running), int(part * blocks.capacity))

    def _decode_batches(self) -> dict[int, ModelBatch]:
        batches = {key: ModelBatch(key) for key in self._models}
        for sequence in self._running:
            if sequence.state is SequenceState.DECODE:
                batches[sequence.model].decode.append(sequence)
        return batches

    def _add_prefill(self, batches: dict[int, ModelBatch], now: float) -> None:
        reading = [s for s in self._running if s.state is SequenceState.PREFILL]
        if not reading:
            return
        loads = {key: batch.load for key, batch in batches.items() if batch.decode}
        chunks = plan_chunks(reading, loads, self.cost, self.config)
        if self._copies:
            self._add_copies(batches, chunks)
        for chunk in chunks:
            if chunk.sequence.admitted_at is None:
                chunk.sequence.admitted_at = now
            batches[chunk.sequence.model].prefill.append(chunk)

    def _add_copies(self, batches: dict[int, ModelBatch], chunks: list[PrefillChunk]) -> None:
        """Copies of this tick's admissions, each with a chunk of at least one token.

        The source may be written or freed after this tick, so no copy can wait for a share.
        """
        planned = {chunk.sequence.sequence_id for chunk in chunks}
        for sequence_id, copy in self._copies.items():
            sequence = self._sequences[sequence_id]
            batches[sequence.model].copies.append(copy)
            if sequence_id not in planned:
                chunks.append(PrefillChunk(sequence, sequence.num_computed, 1))
        self._copies.clear()

    def _advance(
        self,
        slot: ModelSlot,
        sequence: Sequence,
        length: int,
        sampled: Mapping[int, int],
        failed: Mapping[int, str],
        now: float | None,
    ) -> None:
        sequence_id = sequence.sequence_id
        if sequence_id in failed:
            reason, error, _ = self._ending.get(sequence_id, (FinishReason.ERROR, failed[sequence_id], True))
            self._ending[sequence_id] = (reason, error, True)
            return
        if not sequence.remaining:
            # A surplus tick of a row that ended in an earlier one: its input was never kept.
            return
        before = sequence.num_computed
        sequence.num_computed = before + length
        size = slot.blocks.block_size
        if sequence.num_computed // size > before // size:
            slot.blocks.commit_full(sequence.block_table, sequence.token_ids, sequence.num_computed)
        if sequence.remaining or sequence_id in self._ending:
            return
        token_id = sampled.get(sequence_id)
        if token_id is None:
            cause = "the step gave no token for this sequence"
            self._ending[sequence_id] = (FinishReason.ERROR, cause, False)
            return
        sequence.token_ids.append(token_id)
        sequence.state = SequenceState.DECODE
        if sequence.first_token_at is None:
            sequence.first_token_at = now

    def _end(
        self, sequence: Sequence, reason: FinishReason, error: str | None, *, discard: bool = False
    ) -> None:
        del self._sequences[sequence.sequence_id]
        if sequence.block_table:
            self._running.remove(sequence)
            self._models[sequence.model].blocks.release(sequence.block_table, discard=discard)
        else:
            self._queue.remove(sequence)
        sequence.finish_reason = reason
        sequence.error = error
