"""KV of the processor's layers on a GPU while it computes them: one layer's at a time, for one pass.

Both sides hold the same numbers in pages of another order: what a pass reads is brought over, and what it
writes goes back.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kernels.contract import PassLayout
from kernels.cuda.crossing import Crossing
from kernels.kv.slab_kv import SlabKV
from kernels.reference.paged_kv import PagedKV


class VisitingKV:
    """One group's pages on the GPU, numbered anew for every pass."""

    def __init__(self, host: PagedKV, kv: SlabKV, crossing: Crossing) -> None:
        """kv: of one layer."""
        self.kv = kv
        self._host, self._crossing = host, crossing
        self._read = self._written = torch.empty(0, dtype=torch.int64)
        """Blocks of the host's whose contents the pass reads, and writes."""
        self._numbers: dict[int, int] = {}

    def enter(self, layout: PassLayout) -> PassLayout:
        """The same pass over the GPU's pages; raises `MemoryError` where it has none for them."""
        size = self._host.block_size
        blocks = dict.fromkeys(block for table in layout.block_tables for block in table if block)
        self._numbers = {block: number for number, block in enumerate(blocks, 1)} | {0: 0}
        self.kv.back(1 + len(blocks))
        read, written = set[int](), set[int]()
        for table, count, end in zip(
            layout.block_tables, layout.query_lens, layout.context_lens, strict=True
        ):
            start = end - count
            read.update(table[: -(-start // size)])
            written.update(table[start // size : -(-end // size)])
        self._read, self._written = (torch.tensor(sorted(some - {0})) for some in (read, written))
        tables = [[self._numbers[block] for block in table] for table in layout.block_tables]
        slots = layout.slot_mapping
        moved = self._number(slots // size) * size + slots % size
        return replace(layout, block_tables=tables, slot_mapping=moved)

    def bring(self, layer: int) -> None:
        """Queue copies of what the pass reads of one of the host's layers."""
        if not len(self._read):
            return
        places = self._number(self._read).to(self.kv.pages.values.device)
        for kept, pages in self._planes(layer):
            arrived = self._crossing.to_device(kept.index_select(1, self._read))
            halves = arrived.unflatten(0, (2, -1)).permute(2, 0, 1, 3, 4)
            pages.index_copy_(0, places, halves)

    def take_back(self, layer: int) -> None:
        """Wait for what the pass has written of it, and keep it in host memory."""
        if not len(self._written):
            return
        places = self._number(self._written).to(self.kv.pages.values.device)
        own = self._planes(layer)
        moved = [pages.index_select(0, places).permute(1, 2, 0, 3, 4).flatten(0, 1) for _, pages in own]
        for (kept, _), part in zip(own, self._crossing.to_host(*moved), strict=True):
            kept.index_copy_(1, self._written, part)

    def _number(self, blocks: Tensor) -> Tensor:
        known = list(self._numbers)
        lookup = torch.zeros(max(known) + 1, dtype=torch.int64)
        lookup[known] = torch.tensor([self._numbers[block] for block in known])
        return lookup[blocks]

    def _planes(self, layer: int) -> Sequence[tuple[Tensor, Tensor]]:
        """The host's [2 heads, blocks, size, width] and the GPU's [blocks, 2, heads, size, width]."""
        host, size = self._host.layers[layer], self._host.block_size
        planes = [(host.values, self.kv.pages.values[0])]
        if host.scales is not None and self.kv.pages.scales is not None:
            planes.append((host.scales, self.kv.pages.scales[0]))
        return [(kept.unflatten(1, (-1, size)), pages) for kept, pages in planes]
