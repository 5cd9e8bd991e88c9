"""Which sequences hold KV blocks: admission, growth, pauses when memory is full, and the way back.

The first in the queue's order is never paused and, alone, always fits; so something always makes
progress. Blocks of a paused sequence stay cached under their tokens until they are needed; then they
go to host memory, where that is quicker to bring back than to compute again, or are forgotten. What
moves in one tick is bounded by the time that the tick has left.
"""

from collections.abc import Iterable, Mapping

from engine.api.errors import InvariantError
from engine.api.options import Offload
from engine.api.stats import SequenceState
from engine.cache.block_manager import BlockManager, KVMove
from engine.cache.window_pages import Pages
from engine.scheduler.block_tables import PrefixHit, find_prefix, give_back, take_blocks
from engine.scheduler.config import SchedulerConfig
from engine.scheduler.cost_model import CostModel
from engine.scheduler.limits import ScheduledModel
from engine.scheduler.plan import KVMoves, ModelBatch, PrefillChunk
from engine.scheduler.prefill.chunked_prefill import NO_LIMIT
from engine.scheduler.queue import SequenceQueue
from engine.scheduler.sequence import Sequence, WaitCause


class KVAdmission:
    """Gives blocks to sequences and takes them away, between two ticks."""

    def __init__(
        self,
        models: Mapping[int, ScheduledModel],
        queue: SequenceQueue,
        cost: CostModel,
        config: SchedulerConfig,
    ) -> None:
        self.host_gb_s: float | None = None
        """GB/s between device and host memory; None where KV is in host memory anyway."""
        self.preemptions = 0
        self._models = models
        self._queue = queue
        self._cost = cost
        self._config = config
        self._offload_ms = NO_LIMIT
        """Time left in this tick for moving evicted blocks to host memory."""
        self._blocked: tuple[int, int, int] | None = None
        """(sequence, KV version, how many run) of the last failed admission: it would fail again."""

    def begin(self) -> None:
        """Decide for each model whether evicted blocks go to host memory from now on."""
        for model in self._models.values():
            model.blocks.offloading = model.blocks.host.capacity > 0 and self._offload_pays(model)

    def end(self, moves: dict[int, KVMoves]) -> None:
        """Add the copies that evictions need to `moves`; evict without copies until the next `begin`."""
        for model in self._models.values():
            model.blocks.offloading = False
            offloads = model.blocks.take_offloads()
            if offloads:
                moves.setdefault(model.key, KVMoves()).offloads = offloads

    def fit_budget(self) -> None:
        """Take back what blocks hold beyond a budget that has shrunk."""
        for model in self._models.values():
            while not model.blocks.budget.fit():
                self._preempt(self._queue.victims()[0])

    def grow_rows(self) -> None:
        """Give each decode row the block of its next token; somebody may have to make room."""
        for sequence in self._queue.running[:]:
            if sequence.state is not SequenceState.DECODE:
                continue
            if sequence.at_limit:
                raise InvariantError(f"scheduler: sequence {sequence.sequence_id} was not ended at its limit")
            self._grow(sequence, sequence.num_computed + 1)

    def grow_chunks(self, chunks: Iterable[PrefillChunk]) -> list[PrefillChunk]:
        """Give chunks the pages of windows that they write to; returns those whose sequences keep blocks.

        Somebody may have to make room where pages that a window has passed are still in another's.
        """
        made = [chunk for chunk in chunks if self._grow(chunk.sequence, chunk.end)]
        return [chunk for chunk in made if chunk.sequence.block_table]

    def _grow(self, sequence: Sequence, tokens: int) -> bool:
        """Have a running sequence hold so many tokens, whoever must make room; False where it is itself."""
        blocks = self._models[sequence.model].blocks
        if sequence.windows and sequence.block_table:
            blocks.windows.slide(sequence.block_table, sequence.windows, sequence.num_computed)
        while sequence.block_table:
            if blocks.grow(sequence.block_table, sequence.windows, tokens):
                return True
            self._preempt(self._victim(blocks))
        return False

    def grow_ahead(self, batch: ModelBatch, ahead: int) -> bool:
        """Take the blocks that a further tick of decode rows writes to, with `ahead` ticks in flight.

        False, with nothing taken, where a row would reach its limit or no block is left.
        """
        blocks = self._models[batch.model].blocks
        missing = []
        for sequence in batch.decode:
            tokens = len(sequence.token_ids) + ahead
            if tokens >= sequence.limit:
                return False
            if tokens > len(sequence.block_table) * blocks.block_size:
                missing.append(sequence)
        for sequence in missing if blocks.windows else ():
            # Ticks in flight have what is behind `num_computed`: they see no less than this.
            blocks.windows.slide(sequence.block_table, sequence.windows, sequence.num_computed)
        if missing and not self._fits_between_ticks(len(missing), blocks):
            return False
        for sequence in missing:
            blocks.grow(sequence.block_table, sequence.windows, len(sequence.token_ids) + ahead)
        return True

    def grow_for_draft(self, sequence: Sequence, num_draft: int) -> int:
        """How many of `num_draft` tokens may stand behind a decode row; takes the blocks they are written to.

        A pass may give one token more than its drafts. Blocks are taken only where each running sequence
        would still find one.
        """
        blocks = self._models[sequence.model].blocks
        num_draft = min(num_draft, sequence.limit - sequence.num_target - 1)
        missing = blocks.blocks_for(sequence.num_target + num_draft) - len(sequence.block_table)
        if missing > 0 and self._fits_between_ticks(missing + len(self._queue.running), blocks):
            blocks.grow(sequence.block_table, sequence.windows, sequence.num_target + num_draft)
        return max(0, min(num_draft, len(sequence.block_table) * blocks.block_size - sequence.num_target))

    @staticmethod
    def _fits_between_ticks(count: int, blocks: BlockManager) -> bool:
        # With host memory behind them, blocks are evicted when a tick is planned and at no other time.
        pages = [Pages(0, count) for _ in blocks.windows.kinds]
        return blocks.fits(count, (), pages, evicting=not blocks.host.capacity)

    def admit(self, now: float, spare_ms: float) -> None:
        """Let waiting sequences in, in order, while there is room for them.

        spare_ms: most time that moving evicted blocks to host memory may take in this tick.
        """
        self._offload_ms = spare_ms
        before = self.preemptions
        # Who was paused for somebody sits this tick out.
        while self.preemptions == before and self._queue.num_active < self._config.max_sequences:
            sequence = self._queue.next_waiting()
            if sequence is None or not self._admit_one(sequence, now):
                return

    def reload(self, spare_ms: float, moves: dict[int, KVMoves]) -> float:
        """Bring blocks back from host memory, as many as `spare_ms` allows, at least one.

        Returns the milliseconds left.
        """
        moved = False
        for sequence in self._queue.active():
            blocks = self._models[sequence.model].blocks
            while sequence.reloads and (spare_ms > 0.0 or not moved):
                copies = self._reload_one(sequence, blocks)
                if copies:
                    moves.setdefault(sequence.model, KVMoves()).reloads += copies
                    spare_ms -= self._move_ms(blocks)
                    moved = True
        return max(spare_ms, 0.0)

    def _reload_one(self, sequence: Sequence, blocks: BlockManager) -> list[KVMove]:
        """What to copy for the next block; nothing when a slot was given up meanwhile."""
        node, index = sequence.reloads.pop(0), sequence.num_computed // blocks.block_size
        pages = [sequence.block_table[index]]
        pages += [own.pages[index] if index >= own.first else 0 for own in sequence.windows]
        copies = []
        for pool, page in enumerate(pages):
            slot = blocks.hosts[pool].use(node) if page else None
            if page and slot is None:
                self._give_up_reloads(sequence)
                return []
            if slot is not None:
                copies.append((pool, page, slot))
        sequence.num_computed += blocks.block_size
        blocks.commit_full(sequence.block_table, sequence.token_ids, sequence.num_computed)
        return copies

    def _give_up_reloads(self, sequence: Sequence) -> None:
        """What was to come back is computed again: from here on, or all where windows lack what is before."""
        sequence.reloads = []
        if sequence.windows:
            self._preempt(sequence)

    def _admit_one(self, sequence: Sequence, now: float) -> bool:
        blocks = self._models[sequence.model].blocks
        situation = (sequence.sequence_id, blocks.budget.version, self._queue.num_active)
        if situation == self._blocked:
            sequence.wait_cause = WaitCause.KV_MEMORY
            return False
        hit = find_prefix(sequence, blocks)
        while not blocks.fits(hit.missing + self._reserve(sequence, blocks), hit.blocks, hit.pages):
            victim = self._gives_way(sequence, now)
            if victim is None:
                self._refuse(sequence, None if self._queue.is_focused(sequence) else situation)
                return False
            self._preempt(victim)
            hit = find_prefix(sequence, blocks)
        if not self._evict_in_time(hit, blocks):
            sequence.wait_cause = WaitCause.KV_MOVES
            return False
        self._start(sequence, hit, blocks, now)
        return True

    def _start(self, sequence: Sequence, hit: PrefixHit, blocks: BlockManager, now: float) -> None:
        take_blocks(sequence, hit, blocks)
        if not sequence.preemptions:
            sequence.cached_tokens = (len(hit.blocks) + len(hit.hosted)) * blocks.block_size
            sequence.saved_ms = self._cost.reading_ms(sequence.model, sequence.cached_tokens)
        sequence.state, sequence.wait_cause = SequenceState.PREFILL, None
        sequence.running_since = sequence.read_at = now
        self._queue.start(sequence)

    def _refuse(self, sequence: Sequence, situation: tuple[int, int, int] | None) -> None:
        self._blocked = situation
        sequence.wait_cause = WaitCause.KV_MEMORY

    def _gives_way(self, waiting: Sequence, now: float) -> Sequence | None:
        """Who makes room for `waiting`: who was paused on request, and for a focused one the newest."""
        victims = self._queue.victims()
        if victims and victims[0].user_paused:
            return victims[0]
        if not self._queue.is_focused(waiting) or not victims:
            return None
        settled = now - victims[0].running_since >= self._config.min_stay_s
        return victims[0] if settled else None

    def _reserve(self, sequence: Sequence, blocks: BlockManager) -> int:
        """Blocks that must stay free when `sequence` starts: none if nothing else runs."""
        if not self._queue.running:
            return 0
        part = self._config.return_reserve if sequence.preemptions else self._config.reserve
        return max(1 + len(self._queue.running), int(part * blocks.capacity))

    def _victim(self, blocks: BlockManager) -> Sequence:
        """The first that gives way and whose blocks help: of the same model when numbers are short."""
        own_only = blocks.out_of_numbers
        for sequence in self._queue.victims():
            if not own_only or self._models[sequence.model].blocks is blocks:
                return sequence
        raise InvariantError("scheduler: a decode row finds no block although nothing holds any")

    def _preempt(self, sequence: Sequence) -> None:
        """Free a sequence's blocks; what of its KV is lost meanwhile is computed again later."""
        give_back(sequence, self._models[sequence.model].blocks)
        sequence.num_computed = 0
        sequence.reloads = []
        sequence.state = SequenceState.PAUSED
        sequence.wait_cause = WaitCause.REQUEST if sequence.user_paused else WaitCause.KV_MEMORY
        sequence.preemptions += 1
        self.preemptions += 1
        self._queue.stop(sequence)

    def _evict_in_time(self, hit: PrefixHit, blocks: BlockManager) -> bool:
        """Whether a sequence may start now: else as many of the evictions it needs as there is time for."""
        if not blocks.offloading or self._offload_ms == NO_LIMIT:
            return True
        budget = blocks.budget
        need = hit.missing * blocks.block_bytes + blocks.windows.bytes_of(hit.pages)
        bytes_short = max(budget.used_bytes + need - budget.total_bytes, 0) // blocks.block_bytes
        numbers_short = hit.missing - blocks.free
        short = max(bytes_short, numbers_short)
        most = max(1, int(self._offload_ms / self._move_ms(blocks)))
        self._offload_ms = max(0.0, self._offload_ms - max(short, 0) * self._move_ms(blocks))
        if short <= most:
            return True
        blocks.touch(hit.blocks)
        owner = budget if bytes_short > numbers_short else blocks
        for _ in range(most):
            owner.evict_oldest()
        return False

    def _move_ms(self, blocks: BlockManager) -> float:
        """Milliseconds to copy a block to host memory or back."""
        rate = self.host_gb_s
        return blocks.block_bytes / (rate * 1e6) if rate else 1e-3

    def _offload_pays(self, model: ScheduledModel) -> bool:
        if self._config.offload is not Offload.AUTO or self.host_gb_s is None:
            return self._config.offload is Offload.ALWAYS
        again = self._cost.token_ms(model.key, 0, model.blocks.block_size) * model.blocks.block_size
        return 2.0 * self._move_ms(model.blocks) < again
