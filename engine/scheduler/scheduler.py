"""Which tokens run in the next tick.

A tick is `plan` → the step on the device → `commit`. `plan` takes every block that the step writes
to, so a step cannot fail for KV memory. Between the two, what ends is only marked: blocks of a step
in flight are released by `commit`, once. Not thread-safe.

Every sequence ends exactly once: either `finish` returns True, or `commit` returns it.
"""

from collections import deque
from collections.abc import Collection, Mapping

from engine.api.errors import InvariantError, RequestError
from engine.api.request import FinishReason, Priority, Request
from engine.api.stats import SequenceState
from engine.cache.block_manager import BlockManager
from engine.scheduler.block_tables import give_back
from engine.scheduler.buckets import padded_load
from engine.scheduler.config import SchedulerConfig, SlowPasses
from engine.scheduler.cost_model import CostModel, Load
from engine.scheduler.invariants import check_counts, check_invariants
from engine.scheduler.kv_admission import KVAdmission
from engine.scheduler.limits import ScheduledModel
from engine.scheduler.plan import ModelBatch, TickPlan, take_accepted
from engine.scheduler.prefill.chunked_prefill import NO_LIMIT, tick_limit
from engine.scheduler.prefill.prompt_planner import PromptPlanner
from engine.scheduler.prefill.wait_estimate import wait_seconds
from engine.scheduler.queue import SequenceQueue
from engine.scheduler.sequence import Sequence

_ERRORS_KEPT = 256
NO_FAILURES: Mapping[int, str] = {}
NO_DRAFTS: Mapping[int, list[int]] = {}


class Scheduler:
    """Sequences of all resident models, one tick budget and one KV budget.

    `engine.scheduler.queue` says who comes first, `engine.scheduler.kv_admission` who holds blocks,
    `engine.scheduler.prefill.prompt_planner` whose prompt is read; this class puts ticks together and
    accounts them.
    """

    def __init__(self, cost: CostModel, config: SchedulerConfig) -> None:
        self.cost = cost
        self.config = config
        self.tick_limit_ms = NO_LIMIT
        """Longest that the last planned tick was to take; infinite when nobody decoded."""
        self.errors: deque[float] = deque(maxlen=_ERRORS_KEPT)
        """|predicted − measured| of the last passes, relative to what was measured."""
        self._prompts = PromptPlanner(cost, config)
        self.prefill_limit = self._prompts.limit
        self._models: dict[int, ScheduledModel] = {}
        self._sequences: dict[int, Sequence] = {}
        self._queue = SequenceQueue(config.head_start_s)
        self.kv_admission = KVAdmission(self._models, self._queue, cost, config)
        self._in_flight: TickPlan | None = None
        self._ending: dict[int, tuple[FinishReason, str | None, bool]] = {}
        """What ended while a tick was in flight: reason, error, whether its KV may be rubbish."""

    @property
    def preemptions(self) -> int:
        """How often a sequence made room for others because KV memory was full."""
        return self.kv_admission.preemptions

    @property
    def sequences(self) -> Mapping[int, Sequence]:
        """All live sequences by id."""
        return self._sequences

    @property
    def models(self) -> Collection[int]:
        """Keys of the models that can be scheduled."""
        return self._models.keys()

    def add_model(
        self, key: int, blocks: BlockManager, context_length: int, slow: SlowPasses | None = None
    ) -> None:
        """Make a model schedulable."""
        if key in self._models:
            raise InvariantError(f"scheduler: model {key} was added twice")
        self._models[key] = ScheduledModel(key, blocks, context_length)
        if slow is not None:
            self._prompts.slow.add(key, slow)

    def remove_model(self, key: int) -> list[Sequence]:
        """Forget a model and give its memory back; returns its sequences, all ended by this call.

        Raises `InvariantError` for an unknown key, or while a tick is in flight.
        """
        ended = self.set_aside(key)
        for sequence in ended:
            sequence.finish_reason, sequence.error = FinishReason.CANCELLED, "the model was unloaded"
        self.cost.forget(key)
        return ended

    def set_aside(self, key: int) -> list[Sequence]:
        """As `remove_model`, but the sequences have not ended: submit them again when the model is back."""
        if self._in_flight is not None or key not in self._models:
            raise InvariantError(f"scheduler: model {key} cannot be removed now")
        left = [sequence for sequence in self._sequences.values() if sequence.model == key]
        for sequence in left:
            self._leave(sequence)
        self._models.pop(key).blocks.close()
        self._prompts.slow.remove(key)
        return left

    def check_fits(self, request: Request, model: int) -> None:
        """Raise `RequestError`, with numbers, for a request that could never run to its end.

        Reads numbers alone: any thread may call it. The KV budget may have moved when the request is queued.
        """
        self.model(model).check_fits(request)

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence; raises `RequestError` for a new one that does not fit, or if too many wait.

        One that was accepted before, by a scheduler that is gone, stays accepted.
        """
        model = self.model(sequence.model)
        if not sequence.preemptions:
            model.check_fits(sequence.request)
            waiting = len(self._queue.waiting)
            if waiting >= self.config.max_queue:
                raise RequestError(f"queue: {waiting} requests wait already; try again later")
        if sequence.sequence_id in self._sequences:
            raise InvariantError(f"scheduler: sequence {sequence.sequence_id} was submitted twice")
        sequence.limit = model.limit_of(sequence.request)
        self._sequences[sequence.sequence_id] = sequence
        self._queue.enter(sequence)

    def fit_budget(self) -> list[Sequence]:
        """Set every sequence's limit anew after the KV budget has moved.

        Returns those that have as many tokens already; they are to be ended: none where it is at least
        `answers_bytes`. What the others hold beyond it is taken back by `plan`.
        """
        if self._in_flight is not None:
            raise InvariantError("scheduler: the KV budget moves between ticks")
        for sequence in self._sequences.values():
            sequence.limit = self._models[sequence.model].limit_of(sequence.request)
        return [sequence for sequence in self._sequences.values() if sequence.at_limit]

    def focus(self, sequence_id: int | None) -> None:
        """Put one sequence before all others; an id that is not live means nobody."""
        self._queue.focus = sequence_id

    @property
    def focused(self) -> int | None:
        """The sequence that comes first."""
        return self._queue.focus

    def pause(self, sequence_id: int) -> None:
        """Compute nothing more for a sequence until `resume`; it keeps its KV while nobody needs it.

        Ids that are not live are ignored, here and in the next two; all raise `InvariantError` during a tick.
        """
        for sequence in self._controllable(sequence_id):
            self._queue.pause(sequence)

    def resume(self, sequence_id: int) -> None:
        """Undo `pause`."""
        for sequence in self._controllable(sequence_id):
            self._queue.resume(sequence)

    def set_priority(self, sequence_id: int, priority: Priority) -> None:
        """Change a sequence's share and its place in the order."""
        for sequence in self._controllable(sequence_id):
            self._queue.set_priority(sequence, priority)

    @property
    def idle(self) -> bool:
        """Whether nothing can run: no sequence, or all of them paused on request."""
        return all(sequence.user_paused for sequence in self._sequences.values())

    def finish(
        self, sequence: Sequence, reason: FinishReason = FinishReason.STOP, error: str | None = None
    ) -> bool:
        """End a sequence and free its blocks.

        Returns True if it ended now, False if `commit` will return it or it has ended already: while a tick
        is in flight, a running sequence ends in `commit`; the first reason counts.
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
        if plan is not self._in_flight or self._ending or not self._prompts.pace.may_repeat(ahead):
            return False
        return self.kv_admission.grow_ahead(plan.batches[0], ahead)

    def make_room(self, sequence: Sequence, num_draft: int) -> int:
        """How many of `num_draft` tokens may stand behind a decode row of the plan in flight."""
        return self.kv_admission.grow_for_draft(sequence, num_draft)

    def queue_position(self, sequence: Sequence) -> int:
        """1 for the next one to be admitted; 0 for one that does not wait."""
        return self._queue.waiting.position(sequence)

    def wait_seconds(self) -> dict[int, float]:
        """Estimates of the time to the first token, by sequence; none for who decodes or was paused."""
        loads, limit_ms = self._loads(self._decode_batches()), self.tick_limit_ms
        cycle_ms = self._prompts.pace.cycle_ms(limit_ms, self.cost.idle_ms(loads))
        return wait_seconds(self._sequences.values(), self._queue, loads, limit_ms, cycle_ms, self.cost)

    def observe(self, batch: ModelBatch, ms: float) -> float:
        """Teach the cost model one measured pass, before `commit`; returns what it had predicted."""
        load = self._load(batch)
        predicted = self.cost.predict(batch.model, load)
        if ms > 0.0:
            self.errors.append(abs(predicted - ms) / ms)
        self._prompts.observe(batch, load, ms)
        return predicted

    def plan(self, now: float) -> TickPlan:
        """What to compute in the tick at clock `now`: every decode row, then prompts.

        One that is not empty must be given to `commit`. Raises `InvariantError` when the last was not, or
        when nothing can run although something waits.
        """
        if self._in_flight is not None:
            raise InvariantError("scheduler: plan was called while a tick is in flight")
        plan, kv_admission, before = TickPlan(live=self._sequences), self.kv_admission, self.preemptions
        kv_admission.begin()
        kv_admission.fit_budget()
        kv_admission.grow_rows()
        batches, preemptions = self._decode_batches(), self.preemptions
        loads = self._loads(batches)
        self.tick_limit_ms = tick_limit(loads, self.cost, self.config)
        spare_ms = self.tick_limit_ms - self.cost.idle_ms(loads)
        if preemptions == before or not self._queue.running:
            # Who was preempted for another sits this tick out, even if sharing would let it back at once.
            kv_admission.admit(now, spare_ms)
        spare_ms = kv_admission.reload(spare_ms, plan.moves)
        if self.preemptions != preemptions:
            batches = self._decode_batches()
        self._add_prefill(batches, loads, spare_ms, now)
        kv_admission.end(plan.moves)
        plan.batches = [batch for batch in batches.values() if batch.decode or batch.prefill]
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
        accepted: Mapping[int, list[int]] = NO_DRAFTS,
        held: Collection[int] = (),
        unfinished: Collection[int] = (),
        more: bool = False,
    ) -> list[Sequence]:
        """Account a step: advance, append sampled ids, index full blocks; returns what ended here.

        With `more` the plan stays in flight, run again: nothing ends before its last step. `sampled` has an
        id for every sequence whose known tokens are all computed now, `accepted` the draft tokens that the
        model confirmed, which stand before that id. `held` has those who get no id and compute their last
        token again. `failed` gives the cause for sequences whose step failed: they end with `ERROR` and
        their blocks, which may hold rubbish, are forgotten. What was finished or cancelled during the tick
        ends here too; so does, as failed, who should have an id. `unfinished`: models whose chunks wait.
        """
        if plan.empty:
            return []
        if plan is not self._in_flight:
            raise InvariantError("scheduler: commit needs the plan that is in flight")
        for sequence_id in failed.keys() & self._sequences.keys():
            reason, error, _ = self._ending.get(sequence_id, (FinishReason.ERROR, failed[sequence_id], True))
            self._ending[sequence_id] = (reason, error, True)
        self._prompts.done(plan.batches, unfinished, now)
        for batch in plan.batches:
            model = self._models[batch.model]
            for sequence in (one for one in batch.decode if one.sequence_id not in held):
                taken = take_accepted(batch, sequence, accepted) if batch.drafts else 0
                self._advance(model, sequence, 1 + taken, sampled, failed, now)
            for chunk in batch.prefill:
                length = chunk.length - (chunk.sequence.sequence_id in held)
                self._advance(model, chunk.sequence, length, sampled, failed, now)
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
        """Raise `InvariantError` if what must hold does not; thorough with `config.debug`."""
        running, queue = self._queue.running, self._queue.waiting
        check_counts(self._models, len(running), len(queue), len(self._sequences))
        if self.config.debug:
            check_invariants(self._models, running, queue)

    def _controllable(self, sequence_id: int) -> list[Sequence]:
        if self._in_flight is not None:
            raise InvariantError("scheduler: sequences are controlled between ticks")
        return [self._sequences[sequence_id]] if sequence_id in self._sequences else []

    def model(self, key: int) -> ScheduledModel:
        """A resident model's limits and blocks; raises `RequestError` for one that is not loaded."""
        if key not in self._models:
            raise RequestError(f"model: {key} is not loaded; load it before submitting to it")
        return self._models[key]

    def _decode_batches(self) -> dict[int, ModelBatch]:
        batches = {key: ModelBatch(key) for key in self._models}
        for sequence in self._queue.running:
            if sequence.state is SequenceState.DECODE:
                batches[sequence.model].decode.append(sequence)
        return batches

    def _loads(self, batches: Mapping[int, ModelBatch]) -> dict[int, Load]:
        """The decode rows of a tick, by model."""
        return {key: self._load(batch) for key, batch in batches.items() if batch.decode}

    def _load(self, batch: ModelBatch) -> Load:
        pads = self.config.fill_passes and batch.model not in self._prompts.slow
        return padded_load(batch.load, bool(batch.drafts)) if pads else batch.load

    def _add_prefill(
        self, batches: dict[int, ModelBatch], loads: dict[int, Load], spare_ms: float, now: float
    ) -> None:
        reading = [s for s in self._queue.active() if s.state is SequenceState.PREFILL and not s.reloads]
        chunks = self._prompts.plan(reading, self._queue.focus, loads, spare_ms, now)
        for chunk in self.kv_admission.grow_chunks(chunks):
            sequence = chunk.sequence
            sequence.read_at = now
            if sequence.admitted_at is None:
                sequence.admitted_at = now
            batches[sequence.model].prefill.append(chunk)
        self._prompts.slow.limit(batches, loads)
        for batch in batches.values():
            # Who made room for another's chunk.
            batch.decode = [sequence for sequence in batch.decode if sequence.block_table]

    def _advance(
        self,
        model: ScheduledModel,
        sequence: Sequence,
        length: int,
        sampled: Mapping[int, int],
        failed: Mapping[int, str],
        now: float | None,
    ) -> None:
        sequence_id = sequence.sequence_id
        if sequence_id in failed:
            return
        if not sequence.remaining:
            # A surplus tick of a row that ended in an earlier one: its input was never kept.
            return
        before = sequence.num_computed
        sequence.num_computed = before + length
        size = model.blocks.block_size
        if sequence.num_computed // size > before // size:
            model.blocks.commit_full(sequence.block_table, sequence.token_ids, sequence.num_computed)
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
        self._leave(sequence, discard=discard)
        sequence.finish_reason = reason
        sequence.error = error

    def _leave(self, sequence: Sequence, *, discard: bool = False) -> None:
        del self._sequences[sequence.sequence_id]
        self._queue.leave(sequence)
        give_back(sequence, self._models[sequence.model].blocks, discard=discard)
