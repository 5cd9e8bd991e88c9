"""KV of a request's prompt comes back from files before the request is queued.

A thread reads and checks blocks, the engine's thread puts them among the cached ones, a few between two
ticks; so nothing but the cache changes, and the scheduler finds the prefix there as if it had never been
away. What files lack, or what memory has no room for, is read by the model.
"""

import logging
import threading
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.api.request import Action, Priority
from engine.cache.prefix_cache import PrefixNode
from engine.cache.window_pages import WindowTable
from engine.core.model_loader import ResidentModel
from engine.core.saved_kv.kv_disk_log import KVDiskLog
from engine.core.saved_kv.kv_staging import Staging
from engine.device.faults import describe, is_lost
from engine.device.stream import DONE
from engine.disk.fingerprint import Fingerprint
from engine.disk.segment import TOKEN_TYPE, Refused, Segment
from engine.disk.store import KVStore, Place
from engine.scheduler.sequence import Sequence

log = logging.getLogger(__name__)

Wish = Action | Priority


@dataclass(eq=False, slots=True)
class _Restore:
    """One request that waits."""

    sequence: Sequence
    model: ResidentModel
    fingerprint: Fingerprint
    token_ids: "array[int]"
    """Of the full blocks that are of use: at least one token is left to compute."""
    first: int
    """Number of the first block that memory lacks."""
    most: int
    """Blocks for which there is room."""
    node: PrefixNode
    """The last block that is in memory."""
    staging: Staging
    filled: deque[tuple[int, int, int]] = field(default_factory=deque)
    """Blocks that were read: number, mask of pages, slot."""
    over: bool = False
    """Whether nothing more will be read; set after the last of `filled`."""
    cancelled: bool = False
    blocks: list[int] = field(default_factory=list)
    """That came back."""
    wishes: list[Wish] = field(default_factory=list)
    """What was asked of the request meanwhile."""


class KVRestores:
    """The engine's thread calls the public methods; `_read` and what it calls run on a request's own."""

    def __init__(self, store: KVStore, counts: KVDiskLog, wake: Callable[[], None]) -> None:
        """wake: called by a thread when there is something to do."""
        self._store = store
        self._counts = counts
        self._wake = wake
        self._jobs: dict[int, _Restore] = {}

    @property
    def ready(self) -> bool:
        """Whether a block was read, or a request need not wait any more."""
        return any(job.filled or job.over for job in self._jobs.values())

    def hold(self, sequence: Sequence, model: ResidentModel, fingerprint: Fingerprint, least: int) -> bool:
        """Begin to look for the KV of a prompt, unless memory lacks less than `least` tokens of it."""
        blocks = model.blocks
        size, full = blocks.block_size, (sequence.num_target - 1) // blocks.block_size
        known, hosted = blocks.match(sequence.token_ids)
        if (full - len(known) - len(hosted)) * size < least:
            return False
        # Neither what comes back nor what it follows may be evicted for it.
        blocks.touch(reversed(known))
        most = min(blocks.budget.available_bytes // blocks.block_bytes, blocks.free + blocks.cached)
        room = most - len(known)
        if room <= 0:
            return False
        node = blocks.index.root(model.salt)
        for number in range(len(known)):
            node = node.children[tuple(sequence.token_ids[number * size : (number + 1) * size])]
        tokens = array(TOKEN_TYPE, sequence.token_ids[: full * size])
        job = _Restore(sequence, model, fingerprint, tokens, len(known), room, node, Staging(model))
        self._jobs[sequence.sequence_id] = job
        threading.Thread(target=self._read, args=(job,), name="kv-reader", daemon=True).start()
        return True

    def keep_wish(self, sequence_id: int, what: Wish) -> bool:
        """Note what is asked of a request that is held; False for one that is not."""
        job = self._jobs.get(sequence_id)
        if job is not None:
            job.wishes.append(what)
        return job is not None

    def forget(self, sequence_id: int) -> bool:
        """Give up a request that has ended; whether it was held."""
        job = self._jobs.pop(sequence_id, None)
        if job is not None:
            self._cancel(job)
        return job is not None

    def of_model(self, key: int) -> list[Sequence]:
        """Requests to a model that are held."""
        return [job.sequence for job in self._jobs.values() if job.model.key == key]

    def clear(self) -> None:
        """Give everything up."""
        for sequence_id in list(self._jobs):
            self.forget(sequence_id)

    def step(self) -> bool:
        """Put one block that was read among the cached ones; False if there is none."""
        job = next((job for job in self._jobs.values() if job.filled), None)
        if job is None:
            return False
        number, mask, slot = job.filled.popleft()
        if not self._bring_back(job, number, mask, slot):
            self._cancel(job)
        return True

    def take_finished(self) -> list[tuple[Sequence, list[Wish]]]:
        """Requests that need not wait any more, and what was asked of them meanwhile."""
        finished = [job for job in self._jobs.values() if job.over and not job.filled]
        for job in finished:
            del self._jobs[job.sequence.sequence_id]
            # As if they had just been released: the tail is evicted first.
            job.model.blocks.touch(reversed(job.blocks))
            if job.blocks:
                self._counts.restored(len(job.blocks) * job.model.blocks.block_size)
        return [(job.sequence, job.wishes) for job in finished]

    def _bring_back(self, job: _Restore, number: int, mask: int, slot: int) -> bool:
        """Whether the block is cached now."""
        blocks, parent = job.model.blocks, job.node
        windows = [
            WindowTable() if mask >> pool & 1 else WindowTable([0], 1)
            for pool in range(1, len(blocks.pool_bytes))
        ]
        needs, mark = blocks.windows.missing(windows, 1), DONE
        table: list[int] = []
        try:
            if _is_lost(parent) or not blocks.fits(1, (), needs):
                return False
            table = blocks.allocate(1, parent.blocks[0] if parent.blocks else None) or []
            blocks.take_pages(table, windows, needs)
            pages = [table[0], *(own.pages[0] for own in windows)]
            mark = job.model.runner.restore_blocks(job.staging.hosts, job.staging.moves(pages, slot))
        except Exception as error:
            blocks.release(table, windows, discard=True)
            if is_lost(error):
                raise
            log.exception("KV block %s of a file is not restored", number)
            self._counts.refused(f"could not be restored: {describe(error)}")
            return False
        finally:
            job.staging.give(slot, mark)
        self._commit(job, number, table, windows)
        return not _is_lost(parent)

    def _commit(self, job: _Restore, number: int, table: list[int], windows: list[WindowTable]) -> None:
        size, block = job.model.blocks.block_size, table[0]
        end = (number + 1) * size
        job.node = job.model.blocks.commit(job.node, tuple(job.token_ids[end - size : end]), block)
        job.model.table_check.restored(block, job.token_ids[:end])
        job.blocks.append(block)
        job.model.blocks.index.owners.note(table, job.sequence.request.owner)
        job.model.blocks.release(table, windows)

    @staticmethod
    def _cancel(job: _Restore) -> None:
        job.cancelled = True
        while job.filled:
            job.staging.give(job.filled.popleft()[2], DONE)

    def _read(self, job: _Restore) -> None:
        try:
            self._read_blocks(job)
        except Refused as refusal:
            self._counts.refused(str(refusal))
        except OSError as error:
            self._counts.refused(f"could not be read: {error.strerror or error}")
        except Exception as error:
            log.exception("reading KV failed")
            self._counts.refused(f"could not be read: {describe(error)}")
        finally:
            job.over = True
            self._wake()

    def _read_blocks(self, job: _Restore) -> None:
        """Read what files have, up to the first block that none has or that was damaged."""
        found = self._store.find(job.token_ids, job.fingerprint, job.model.blocks.block_size)
        run = found.run(job.first)
        places, refusal = run[: job.most], found.refusals.get(job.first + len(run))
        if refusal is not None:
            self._counts.refused(refusal)
        if not places:
            return
        self._store.use((place.first, place.path) for place in places)
        job.staging.prepare()
        segment: Segment | None = None
        try:
            for number, place in enumerate(places, job.first):
                if segment is None or segment.path != place.path:
                    if segment is not None:
                        segment.close()
                    segment = self._store.open_at(place, job.token_ids, job.fingerprint)
                slot = job.staging.take()
                if job.cancelled:
                    return
                self._read_one(job, segment, place, slot)
                job.filled.append((number, place.mask, slot))
                self._wake()
        finally:
            if segment is not None:
                segment.close()

    def _read_one(self, job: _Restore, segment: Segment, place: Place, slot: int) -> None:
        try:
            segment.read(place.index, job.staging.pages(slot, place.mask))
        except Refused as refusal:
            self._store.drop(place.path, refusal)
            raise


def _is_lost(node: PrefixNode) -> bool:
    """Whether a block was evicted meanwhile, so that no hit reaches what follows it."""
    return node.parent is not None and not node.blocks
