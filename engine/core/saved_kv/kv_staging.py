"""Host memory through which KV goes between a device and files."""

import queue

from engine.core.model_loader import ResidentModel
from engine.device.host_pool import HostPool
from engine.device.stream import DONE, Mark

_BYTES = 32 << 20
_LEAST, _MOST = 4, 32


class Staging:
    """A few slots, each for a block and its pages of windows; used by the engine's thread and one other."""

    def __init__(self, model: ResidentModel) -> None:
        self._runner = model.runner
        self.slots = max(_LEAST, min(_MOST, _BYTES // sum(model.slot_bytes)))
        self.hosts: list[HostPool] = []
        """Of blocks, then of the pages of each window; none before `prepare`."""
        self._free: queue.SimpleQueue[tuple[int, Mark]] = queue.SimpleQueue()

    def prepare(self) -> None:
        """Take the memory; not on the engine's thread, since a GPU's takes milliseconds."""
        if not self.hosts:
            self.hosts = [pool.staging(self.slots) for pool in self._runner.host_pools]
            for slot in range(self.slots):
                for host in self.hosts:
                    # Fresh memory costs more than the copy: its first touch is not the engine's thread's.
                    content = host.content(slot)
                    content[:] = bytes(len(content))
                self.give(slot, DONE)

    @property
    def ready(self) -> bool:
        """Whether `take` would not wait."""
        return not self._free.empty()

    def take(self) -> int:
        """A slot that nothing is copied to or from any more; waits for one."""
        slot, mark = self._free.get()
        mark.synchronize()
        return slot

    def give(self, slot: int, mark: Mark) -> None:
        """Let a slot be used anew once the work before `mark` is done."""
        self._free.put((slot, mark))

    def pages(self, slot: int, mask: int) -> list[memoryview]:
        """The bytes of a slot, of the pages that `mask` names."""
        return [host.content(slot) for pool, host in enumerate(self.hosts) if mask >> pool & 1]

    @staticmethod
    def moves(pages: list[int], slot: int) -> list[tuple[int, int, int]]:
        """Copies between a slot and a block with its pages (0: none of that kind)."""
        return [(pool, page, slot) for pool, page in enumerate(pages) if page]


def mask_of(pages: list[int]) -> int:
    """Which of a block and its pages are there (0: none of that kind), a bit for each."""
    return sum(1 << pool for pool, page in enumerate(pages) if page)
