"""KV of sequences that have ended goes into files, a block at a time between two ticks.

A block stays in memory as it is, cached under its tokens: it is copied to a slot of host memory, from
which a thread writes it. What is evicted before its turn is not saved, and neither is what follows it.
"""

import logging
import queue
import threading
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from engine.cache.prefix_cache import PrefixNode
from engine.core.model_loader import ResidentModel
from engine.core.saved_kv.kv_disk_log import KVDiskLog
from engine.core.saved_kv.kv_staging import Staging, mask_of
from engine.device.faults import describe, is_lost
from engine.device.stream import Mark
from engine.disk.fingerprint import Fingerprint
from engine.disk.segment import TOKEN_TYPE
from engine.disk.sequence_files import SequenceFiles
from engine.disk.store import Found, KVStore
from engine.scheduler.sequence import Sequence

log = logging.getLogger(__name__)


class Worker:
    """Runs jobs one after another on a thread of its own, which starts with the first."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def put(self, job: Callable[[], None]) -> None:
        """Queue a job; called by one thread alone."""
        if not self._thread.ident:
            self._thread.start()
        self._jobs.put(job)

    def close(self, timeout: float) -> None:
        """End the thread behind what is queued; waits at most `timeout` seconds."""
        if self._thread.ident:
            self._jobs.put(None)
            self._thread.join(timeout)

    def _run(self) -> None:
        while self._run_next():
            pass

    def _run_next(self) -> bool:
        # In a frame of its own: while the next one is waited for, nothing may hold the last one's model.
        job = self._jobs.get()
        if job is None:
            return False
        try:
            job()
        except Exception:
            log.exception("saving KV failed")
        return True


@dataclass(eq=False, slots=True)
class _Save:
    """One sequence that has ended."""

    model: ResidentModel
    fingerprint: Fingerprint
    owner: str
    token_ids: "array[int]"
    ends: tuple[int, int]
    """Blocks after which a later request may go on: those of the prompt, and all."""
    node: PrefixNode
    """The last block that was dealt with."""
    number: int = 0
    """The next block."""
    known: Found | None = None
    """What files have already; None while that is looked up."""
    files: SequenceFiles | None = None
    stopped: bool = False
    """Whether no further block is to be written."""
    done: threading.Event = field(default_factory=threading.Event)


class KVSaves:
    """The engine's thread calls what is public; `_look_up`, `_write` and `_finish` run on the writer's."""

    def __init__(self, store: KVStore, counts: KVDiskLog, wake: Callable[[], None]) -> None:
        """wake: called by the writer's thread when there may be something to do."""
        self._store = store
        self._counts = counts
        self._wake = wake
        self.writer = Worker("kv-writer")
        self._jobs: deque[_Save] = deque()
        self._staging: dict[int, Staging] = {}

    @property
    def pending(self) -> bool:
        """Whether sequences wait to be copied."""
        return bool(self._jobs)

    @property
    def ready(self) -> bool:
        """Whether a block can be dealt with now."""
        job = self._jobs[0] if self._jobs else None
        if job is None or job.known is None:
            return False
        return job.stopped or self._staging[job.model.key].ready

    def add(self, sequence: Sequence, model: ResidentModel, fingerprint: Fingerprint) -> None:
        """Save the full blocks of a sequence that has ended, as far as files lack them."""
        size = model.blocks.block_size
        full = min(sequence.num_computed, sequence.num_target) // size
        ends = (min(sequence.prompt_len // size, full), full)
        tokens = array(TOKEN_TYPE, sequence.token_ids[: full * size])
        owner, root = sequence.request.owner, model.blocks.index.root(model.salt)
        self._jobs.append(_Save(model, fingerprint, owner, tokens, ends, root))
        self._staging.setdefault(model.key, Staging(model))
        if len(self._jobs) == 1:
            self._begin()

    def last_of(self, key: int) -> threading.Event | None:
        """Set once what a model's sequences left is saved; None where nothing is under way."""
        jobs = [job for job in self._jobs if job.model.key == key]
        return jobs[-1].done if jobs else None

    def step(self) -> None:
        """Copy the next block if no file has it; call while `ready`."""
        job = self._jobs[0]
        node = None if job.stopped or job.number == job.ends[1] else self._next(job)
        if node is None:
            self._end(job)
            return
        pages = self._pages(job, node)
        there = job.known.places.get(job.number) if job.known is not None else None
        missing = mask_of(pages) & ~(there.mask if there is not None else 0)
        if not (pages[0] or there) or (missing and not self._copy(job, pages)):
            self._end(job)
            return
        job.node, job.number = node, job.number + 1

    def drop(self, key: int | None = None) -> None:
        """Save no more of a model (None: of all); what was copied already is."""
        dropped = [job for job in self._jobs if key is None or job.model.key == key]
        for job in dropped:
            job.stopped = True
        for job in dropped:
            self._end(job)

    def _next(self, job: _Save) -> PrefixNode | None:
        size = job.model.blocks.block_size
        tokens = tuple(job.token_ids[job.number * size : (job.number + 1) * size])
        return job.node.children.get(tokens)

    @staticmethod
    def _pages(job: _Save, node: PrefixNode) -> list[int]:
        """The block of a node, and the pages that windows need where a request may go on; 0: none."""
        blocks = job.model.blocks
        block = node.blocks[0] if node.blocks else 0
        pages = [block]
        for kind in blocks.windows.kinds:
            # One block more: a template may begin the next turn a few tokens before the prompt's end.
            firsts = [(kind.first_needed(end * blocks.block_size), end) for end in job.ends]
            needed = any(first - 1 <= job.number < end for first, end in firsts)
            pages.append(kind.page(block) if block and needed else 0)
        return pages

    def _copy(self, job: _Save, pages: list[int]) -> bool:
        """Queue the copy of a block; False where the device has none to give."""
        staging = self._staging[job.model.key]
        slot = staging.take()
        try:
            mark = job.model.runner.save_blocks(staging.hosts, staging.moves(pages, slot))
        except Exception as error:
            if is_lost(error):
                raise
            log.exception("KV block %s is not saved", pages[0])
            self._counts.not_saved(describe(error))
            return False
        self.writer.put(partial(self._write, job, staging, pages, slot, mark, job.number))
        return True

    def _begin(self) -> None:
        job = self._jobs[0]
        self.writer.put(partial(self._look_up, job, self._staging[job.model.key]))

    def _end(self, job: _Save) -> None:
        job.stopped = True
        first = self._jobs[0] is job
        self._jobs.remove(job)
        if self.last_of(job.model.key) is None:
            del self._staging[job.model.key]
        self.writer.put(partial(self._finish, job))
        if first and self._jobs and not self._jobs[0].stopped:
            self._begin()

    def _look_up(self, job: _Save, staging: Staging) -> None:
        """Find what files have already; those are used from now on."""
        found = Found()
        try:
            size, sizes = job.model.blocks.block_size, tuple(job.model.slot_bytes)
            # Somebody may have cleared the cache folder meanwhile.
            self._store.open()
            found = self._store.find(job.token_ids, job.fingerprint, size)
            self._store.use((place.first, place.path) for place in found.places.values())
            if job.ends[1] * sizes[0] > self._store.limit_bytes:
                job.stopped = True
                self._counts.not_saved("the chat is larger than the limit of the disk")
            job.files = SequenceFiles(self._store, job.fingerprint, size, sizes, job.token_ids)
            staging.prepare()
        except Exception as error:
            self._fail(job, error)
        job.known = found
        self._wake()

    def _write(
        self, job: _Save, staging: Staging, pages: list[int], slot: int, mark: Mark, number: int
    ) -> None:
        try:
            mark.synchronize()
            if job.files is not None:
                mask = mask_of(pages)
                job.files.add(number, mask, staging.pages(slot, mask))
                self._counts.saved(job.model.blocks.block_size)
        except Exception as error:
            self._fail(job, error)
        finally:
            staging.give(slot, mark)
            self._wake()

    def _finish(self, job: _Save) -> None:
        try:
            if job.files is not None:
                job.files.finish()
                if job.owner and job.known is not None:
                    self._store.saved.add(job.owner, job.known.used | job.files.written)
        except Exception as error:
            self._fail(job, error)
        finally:
            job.done.set()
            self._wake()

    def _fail(self, job: _Save, error: Exception) -> None:
        """Nothing of a sequence is written any more; why is said once."""
        job.stopped = True
        if job.files is not None:
            job.files.abandon()
            job.files = None
        log.warning("KV is not saved", exc_info=error)
        self._counts.not_saved(getattr(error, "strerror", None) or describe(error))
