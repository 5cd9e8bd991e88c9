"""Random workloads for the scheduler, with the device simulated.

KV contents are hashes of all tokens up to a slot (see `tests.support.block_fuzz`), so that every read of a
block that is not the sequence's own or shared by equal tokens is seen.
"""

from collections import Counter
from random import Random

from engine.api.errors import RequestError
from engine.api.options import Offload
from engine.api.request import FinishReason, Priority, Request
from engine.api.stats import SequenceState
from engine.cache.block_manager import BlockManager
from engine.cache.budget import KVBudget
from engine.cache.window_pages import WindowShape
from engine.scheduler.config import SchedulerConfig
from engine.scheduler.cost_model import CostModel
from engine.scheduler.limits import ANSWER_ROOM, answers_bytes
from engine.scheduler.plan import KVMoves, ModelBatch
from engine.scheduler.scheduler import Scheduler
from engine.scheduler.sequence import Sequence
from tests.support.block_fuzz import chain

EOG = 0


class SchedulerFuzzer:
    """One random workload; `step` is a tick with random submits, cancels and faults around it."""

    def __init__(self, random: Random, requests: int = 12, *, faults: bool = True) -> None:
        self.random = random
        self.faults = faults
        self.size = random.choice([1, 2, 4, 8])
        self.models = list(range(random.choice([1, 1, 2, 3])))
        blocks = random.choice([12, 20, 40, 100])
        self.most_bytes = blocks * random.choice([10, 15])
        self.budget = KVBudget(self.most_bytes)
        config = SchedulerConfig(
            max_prefill_tokens=random.choice([1, 5, 64]),
            min_prefill_tokens=random.choice([1, 4, 16]),
            max_sequences=random.choice([2, 8, 64]),
            head_start_s=random.choice([0.0, 5.0]),
            starve_s=random.choice([0.02, 0.5]),
            min_stay_s=random.choice([0.0, 0.1]),
            offload=random.choice([Offload.NEVER, Offload.ALWAYS]),
            debug=True,
        )
        self.scheduler = Scheduler(CostModel(), config)
        self.scheduler.kv_admission.host_gb_s = random.choice([None, 1e-6, 1e-3])
        self.shapes: dict[int, tuple[int, bool, list[WindowShape]]] = {}
        """Of each model's KV: bytes of a block, order of numbers, windows."""
        self.memory: dict[int, list[list[list[int]]]] = {}
        """By model, pool and page."""
        self.host: dict[int, list[list[list[int]]]] = {}
        self.blocks, self.chunk = blocks, config.max_prefill_tokens
        self.contexts = {key: random.choice([30, 60, 1000]) for key in self.models}
        for key in self.models:
            self.add(key)
        self.left = requests
        self.longest = random.choice([6, 15, 40])
        self.rate = random.choice([0.1, 0.5, 0.9])
        self.eog = random.choice([0.002, 0.02, 0.1])
        self.moving = random.choice([0.0, 0.02, 0.2])
        self.controlling = random.choice([0.0, 0.05, 0.3])
        self.ids = 0
        self.now = 0.0
        self.live: dict[int, Sequence] = {}
        self.ended: Counter[int] = Counter()
        self.refused = self.ticks = self.tokens = self.pauses = self.offloads = self.reloads = 0
        self.drafted = self.accepted = self.outgrown = self.shrunk = 0
        self.asides = 0
        self.drafting = random.choice([0.0, 0.3, 0.9])
        self.prompts = [[random.randrange(1, 4) for _ in range(60)] for _ in range(2)]

    def add(self, key: int) -> None:
        """A model with empty KV."""
        manager = self.manager(key, self.blocks, self.chunk)
        pages = [self.blocks + 1, *(kind.shape.num_pages for kind in manager.windows.kinds)]
        self.memory[key] = [[[0] * self.size for _ in range(count)] for count in pages]
        slots = self.random.choice([1, 5, 200])
        self.host[key] = [[[0] * self.size for _ in range(slots)] for _ in pages]
        for host in manager.hosts:
            host.grow(slots)
        self.scheduler.add_model(key, manager, self.contexts[key])

    def manager(self, key: int, blocks: int, chunk: int) -> BlockManager:
        """Blocks of a model with no windows, or one or two kinds; of the same shape every time."""
        random = self.random
        if key not in self.shapes:
            windows = random.choice([(), (), (5,), (3, 17)])
            shapes = [WindowShape(w, random.choice([blocks + 1, blocks // 2]), 4) for w in windows]
            self.shapes[key] = random.choice([5, 10]), random.random() < 0.5, shapes
        block_bytes, lowest_first, shapes = self.shapes[key]
        return BlockManager(
            *(blocks + 1, self.size, block_bytes, self.budget, bytes([key])),
            lowest_first=lowest_first,
            windows=shapes,
            chunk=chunk,
        )

    @property
    def done(self) -> bool:
        return not self.left and not self.live

    def run(self) -> None:
        while not self.done:
            self.step()
            assert self.ticks < 20_000, "the workload does not come to an end"
        self.finish()

    def finish(self) -> None:
        assert all(count == 1 for count in self.ended.values()) and len(self.ended) + self.refused == self.ids
        assert not self.scheduler.sequences
        for key in self.models:
            self.scheduler.remove_model(key)
        assert self.budget.used_bytes == 0, "blocks were leaked"

    def step(self) -> None:
        self.now += 0.01
        while self.left and self.random.random() < self.rate:
            self.submit()
        self.maybe_cancel(0.03)
        if self.random.random() < self.moving:
            self.move_budget()
        if self.random.random() < self.controlling:
            self.control()
        if self.random.random() < self.moving:
            self.put_aside()
        held = {i for i, s in self.live.items() if s.user_paused}
        decoding = {i: s.preemptions for i, s in self.live.items() if s.state is SequenceState.DECODE}
        plan = self.scheduler.plan(self.now)
        assert not plan.empty or held == self.live.keys()
        assert not plan.batches or held != self.live.keys()
        assert plan.empty or self.budget.used_bytes <= self.budget.total_bytes
        if plan.empty:
            self.release_one()
            return
        self.ticks += 1
        planned = {s.sequence_id for batch in plan.batches for s in batch.decode}
        preempted = {i for i, before in decoding.items() if self.live[i].preemptions > before}
        assert decoding.keys() - preempted == planned, "a decode row was skipped"
        run = {s.sequence_id for batch in plan.batches for s in batch.sequences}
        assert not held & run, "a sequence paused on request was computed"
        for key, moves in plan.moves.items():
            self.move(self.memory[key], self.host[key], moves)
        for batch in plan.batches:
            self.draft(batch)
        self.maybe_cancel(0.05)
        sampled, failed, accepted = {}, {}, {}
        for batch in plan.batches:
            self.run_batch(batch, sampled, failed, accepted)
            self.scheduler.observe(batch, self.milliseconds(batch))
        self.maybe_cancel(0.05)
        if self.left and self.random.random() < 0.2:
            self.submit()
        for sequence in self.scheduler.commit(plan, sampled, failed, self.now, accepted=accepted):
            self.end(sequence)
        for sequence_id, token_id in sampled.items():
            self.deliver(sequence_id, [*accepted.get(sequence_id, ()), token_id])

    def draft(self, batch: ModelBatch) -> None:
        for sequence in batch.decode:
            if self.random.random() >= self.drafting:
                continue
            wanted, before = self.random.choice([1, 3, 9]), len(sequence.block_table)
            count = self.scheduler.make_room(sequence, wanted)
            end, room = sequence.num_target + count, len(sequence.block_table) * self.size
            assert count <= wanted and end < sequence.limit and end <= room
            assert len(sequence.block_table) == before or end > room - self.size, "a block that nothing needs"
            if count:
                batch.drafts[sequence.sequence_id] = [self.random.randrange(1, 4) for _ in range(count)]

    def submit(self) -> None:
        self.left -= 1
        self.ids += 1
        if self.live and self.random.random() < 0.3:
            origin = self.random.choice(list(self.live.values()))
            ids = origin.token_ids[: self.random.randint(1, origin.num_target)]
        else:
            ids = self.random.choice(self.prompts)[: self.random.randint(1, self.longest)]
        ids = ids + [self.random.randrange(1, 4) for _ in range(self.random.choice([0, 1, 5]))]
        request = Request(
            tuple(ids),
            max_tokens=self.random.choice([None, 1, 3, 20]),
            priority=self.random.choice(list(Priority)),
        )
        sequence = Sequence(self.ids, self.random.choice(self.models), request, self.now)
        try:
            self.scheduler.submit(sequence)
        except RequestError:
            self.refused += 1
            return
        self.live[self.ids] = sequence

    def move_budget(self) -> None:
        """What a model that is loaded or unloaded does to the memory of the others' KV."""
        total = self.most_bytes * self.random.choice([0, 10, 30, 60, 100, 100]) // 100
        least = answers_bytes(self.live.values(), self.scheduler.model)
        heeds_answers = self.random.random() < 0.7
        self.budget.set_total(max(total, least) if heeds_answers else total)
        self.shrunk += heeds_answers and total < least
        before = {i: list(s.token_ids) for i, s in self.live.items()}
        goals = {i: min(s.limit, s.num_target + ANSWER_ROOM) for i, s in self.live.items()}
        outgrown = self.scheduler.fit_budget()
        if heeds_answers:
            assert not outgrown, "a budget that left answers their room has ended one"
            assert all(s.limit >= goals[i] for i, s in self.live.items()), "an answer lost its room"
        for sequence in outgrown:
            model = self.scheduler.model(sequence.model)
            assert sequence.num_target >= model.max_tokens and sequence.limit == model.max_tokens
            assert sequence.token_ids == before[sequence.sequence_id]
            assert self.scheduler.finish(sequence, FinishReason.LENGTH)
            # It has what it got while there was room.
            sequence.limit = max(sequence.limit, sequence.num_target)
            self.end(sequence)
            self.outgrown += 1
        assert all(s.num_target < s.limit for s in self.live.values())

    def put_aside(self) -> None:
        """A model that nothing runs on goes, and comes back after the budget has moved; nobody ends of it."""
        key = self.random.choice(self.models)
        own = [s for s in self.live.values() if s.model == key]
        if not all(s.user_paused for s in own):
            return
        self.asides += 1
        others = {i: list(s.token_ids) for i, s in self.live.items() if s.model != key}
        known = {s.sequence_id: (list(s.token_ids), s.limit) for s in own}
        assert self.scheduler.set_aside(key) == own
        least = answers_bytes((self.live[i] for i in others), self.scheduler.model)
        self.budget.set_total(max(least, self.most_bytes * self.random.choice([10, 50, 100]) // 100))
        assert not self.scheduler.fit_budget()
        assert {i: s.token_ids for i, s in self.live.items() if s.model != key} == others
        self.add(key)
        model = self.scheduler.model(key)
        self.budget.set_total(max([self.budget.total_bytes, least, *map(model.least_bytes, own)]))
        for sequence in own:
            assert not sequence.block_table and not sequence.finished
            sequence.num_computed, sequence.reloads, sequence.user_paused = 0, [], False
            sequence.preemptions += 1
            self.scheduler.submit(sequence)
            self.scheduler.pause(sequence.sequence_id)
            ids, limit = known[sequence.sequence_id]
            assert sequence.token_ids == ids and sequence.limit >= min(limit, len(ids) + ANSWER_ROOM)

    def control(self) -> None:
        """What a user does to answers between two ticks; ids that have ended are harmless."""
        chosen = self.random.choice([*self.live, self.random.randint(0, self.ids)])
        sequence = self.live.get(chosen)
        what = self.random.randrange(5)
        if what == 0:
            self.scheduler.pause(chosen)
            self.pauses += sequence is not None
            assert sequence is None or (sequence.user_paused and sequence.state is SequenceState.PAUSED)
        elif what <= 2:
            self.release_one()
        elif what == 3:
            self.scheduler.focus(self.random.choice([None, chosen]))
        else:
            priority = self.random.choice(list(Priority))
            self.scheduler.set_priority(chosen, priority)
            assert sequence is None or sequence.priority is priority

    def release_one(self) -> None:
        """Resume one of those that are paused on request."""
        held = [i for i, s in self.live.items() if s.user_paused]
        if held:
            chosen = self.random.choice(held)
            self.scheduler.resume(chosen)
            assert not self.live[chosen].user_paused

    def maybe_cancel(self, chance: float) -> None:
        if self.live and self.random.random() < chance:
            sequence = self.random.choice(list(self.live.values()))
            for _ in range(self.random.choice([1, 2])):
                if self.scheduler.finish(sequence, FinishReason.CANCELLED):
                    self.end(sequence)

    def move(self, memory: list[list[list[int]]], host: list[list[list[int]]], moves: KVMoves) -> None:
        self.offloads += len(moves.offloads)
        self.reloads += len(moves.reloads)
        for pool, page, slot in moves.offloads:
            host[pool][slot] = list(memory[pool][page])
        for pool, page, slot in moves.reloads:
            memory[pool][page] = list(host[pool][slot])

    def run_batch(
        self,
        batch: ModelBatch,
        sampled: dict[int, int],
        failed: dict[int, str],
        accepted: dict[int, list[int]],
    ) -> None:
        pools = self.memory[batch.model]
        kinds = self.scheduler.model(batch.model).blocks.windows.kinds
        spans = [(s, s.num_computed, s.num_computed + 1) for s in batch.decode]
        spans += [(c.sequence, c.start, c.end) for c in batch.prefill]
        assert len({s.sequence_id for s, _, _ in spans}) == len(spans) > 0
        rubbish = self.faults and self.random.random() < 0.02
        written: set[tuple[int, int, int]] = set()
        drafts = {s.sequence_id: batch.drafts.get(s.sequence_id, []) for s, _, _ in spans}
        contents = {s.sequence_id: chain(s.token_ids + drafts[s.sequence_id]) for s, _, _ in spans}
        for sequence, start, end in spans:
            assert start == sequence.num_computed < end <= sequence.num_target
            end += len(drafts[sequence.sequence_id])
            victim = rubbish or (self.faults and self.random.random() < 0.01)
            if victim:
                failed[sequence.sequence_id] = "injected"
            for position in range(start, end):
                tables = [sequence.block_table, *(own.pages for own in sequence.windows)]
                for pool, table in enumerate(tables):
                    page, at = table[position // self.size], position % self.size
                    assert page != 0 and (pool, page, at) not in written, "two sequences write one slot"
                    written.add((pool, page, at))
                    pools[pool][page][at] = -1 if victim else contents[sequence.sequence_id][position]
        for sequence, start, end in spans:
            self.tokens += 1
            if sequence.sequence_id in failed:
                continue
            draft = drafts[sequence.sequence_id]
            shown = [value for block in sequence.block_table for value in pools[0][block]]
            read, expected = end + len(draft), contents[sequence.sequence_id]
            assert shown[:read] == expected[:read], "another sequence's tokens were read"
            for kind, own, pages in zip(kinds, sequence.windows, pools[1:], strict=True):
                first = max(0, start - kind.shape.tokens + 1)
                seen = [pages[own.pages[p // self.size]][p % self.size] for p in range(first, read)]
                assert seen == expected[first:read], "a window shows another sequence's tokens"
            if end == sequence.num_target:
                true = self.random.choice([0, len(draft), self.random.randint(0, len(draft))])
                if true:
                    accepted[sequence.sequence_id] = draft[:true]
                self.drafted += len(draft)
                self.accepted += true
                sampled[sequence.sequence_id] = (
                    EOG if self.random.random() < self.eog else self.random.randrange(1, 4)
                )

    def milliseconds(self, batch: ModelBatch) -> float:
        load = batch.load
        ms = 2.0 + 0.2 * load.rows + 0.1 * load.prefill_tokens + 0.001 * load.context
        return ms * self.random.uniform(0.9, 1.1) * (10.0 if self.random.random() < 0.01 else 1.0)

    def deliver(self, sequence_id: int, token_ids: list[int]) -> None:
        sequence = self.live.get(sequence_id)
        if sequence is None:
            return
        assert sequence.token_ids[-len(token_ids) :] == token_ids and sequence.remaining == 1
        token_id = token_ids[-1]
        if token_id == EOG or sequence.at_limit:
            reason = FinishReason.STOP if token_id == EOG else FinishReason.LENGTH
            assert self.scheduler.finish(sequence, reason)
            assert not self.scheduler.finish(sequence, FinishReason.CANCELLED)
            self.end(sequence)

    def end(self, sequence: Sequence) -> None:
        assert sequence.finished and not sequence.block_table
        assert sequence.num_target <= sequence.limit
        self.ended[sequence.sequence_id] += 1
        del self.live[sequence.sequence_id]
