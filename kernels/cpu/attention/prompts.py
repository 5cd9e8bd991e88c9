"""Attention of prompts on CPUs: two compiled kernels.

One norms and rotates every row, and writes its key and value; the other takes tiles of neighbouring queries
through the keys that they see, with a running softmax (Dao et al. 2022, "FlashAttention").
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import torch
from llvmlite import ir
from torch import Tensor

from kernels.contract import PassLayout
from kernels.cpu.attention.heads import HeadNorm, Heads, put_head
from kernels.cpu.attention.kv_lines import Lines
from kernels.cpu.attention.prompt_tiles import ROWS, tile_kernel
from kernels.cpu.compiler import F32, I64, Emitter, compiled, float_bits, shared_out
from kernels.cpu.scratch import aside
from kernels.quant.formats import KVFormat
from kernels.reference.paged_kv import PagedKV

_MOST_MEMBERS = 16
"""Heads of a tile, which has few tokens otherwise, and computes much that is hidden."""
_TILE_ROWS = 12
"""What a tile takes beside its rows, in rows: keys and values are read and made float32."""


@dataclass(slots=True)
class PromptTables:
    """Where the sequences of a pass lie whose prompts are read."""

    sequences: Sequence[tuple[int, int, int]]
    """(first row of the pass, tokens, position of the first) of each."""
    tables: Tensor
    """int64 [S, W]; blocks that are behind a window are not read."""
    slots: Tensor
    """int64 [T] of the whole pass."""
    made: dict[int, tuple[int, Tensor]] = field(default_factory=dict)
    """What `tiles` gave."""

    def tiles(self, members: int) -> tuple[int, Tensor]:
        """(rows of a tile, int64 [N, 4]) of so many heads: sequence, first row, tokens, position; the longest
        contexts first, since those take longest."""
        if members not in self.made:
            rows = min(ROWS, key=lambda rows: self._count(rows // members) * (rows + _TILE_ROWS))
            with aside():
                self.made[members] = rows, torch.tensor(self._cut(rows // members))
        return self.made[members]

    def refill(self, layout: PassLayout) -> bool:
        """Become those of another pass with chunks of as many tokens; False where its tables do not fit."""
        used = layout.block_tables[layout.num_decode :]
        if max(map(len, used)) > self.tables.shape[1]:
            return False
        self.sequences = _sequences(layout)
        rows: np.ndarray = self.tables.numpy()
        for row, table in enumerate(used):
            rows[row, : len(table)] = table
        self.slots.copy_(layout.slot_mapping)
        for members, (tile_rows, tiles) in self.made.items():
            tiles.numpy()[:] = self._cut(tile_rows // members)
        return True

    def _count(self, step: int) -> int:
        return sum(-(-tokens // step) for _, tokens, _ in self.sequences)

    def _cut(self, step: int) -> list[tuple[int, int, int, int]]:
        cut = [
            (sequence, row + first, min(step, tokens - first), position + first)
            for sequence, (row, tokens, position) in enumerate(self.sequences)
            for first in range(0, tokens, step)
        ]
        return sorted(cut, key=lambda tile: -tile[3])


def prompt_tables(layout: PassLayout, block_size: int) -> PromptTables:
    """Of the sequences behind those that decode."""
    width = -(-max(layout.context_lens) // block_size)
    tables = [
        [*table[:width], *[0] * (width - len(table))] for table in layout.block_tables[layout.num_decode :]
    ]
    return PromptTables(_sequences(layout), torch.tensor(tables), layout.slot_mapping)


def _sequences(layout: PassLayout) -> list[tuple[int, int, int]]:
    starts = list(accumulate(layout.query_lens, initial=0))
    return [
        (starts[i], layout.query_lens[i], layout.context_lens[i] - layout.query_lens[i])
        for i in range(layout.num_decode, len(layout.query_lens))
    ]


def attend_prompts(
    qkv: Tensor,
    rotation: Tensor,
    norm: HeadNorm | None,
    kv: PagedKV,
    layer: int,
    prompts: PromptTables,
    factors: Tensor,
    out: Tensor,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> None:
    """As `kernels.cpu.attention.decode.attend_decode`, into rows of `out` float32 [T, q_heads * dim].

    A row's result does not depend on which rows of its sequence are computed with it.
    """
    dim, pages = kv.head_dim, kv.layers[layer]
    groups = (qkv.shape[1] // dim - 2 * kv.kv_heads) // kv.kv_heads
    members = max(n for n in range(1, min(groups, _MOST_MEMBERS) + 1) if groups % n == 0)
    scales = 0 if pages.scales is None else pages.scales.data_ptr()
    first, rows = prompts.sequences[0][0], qkv.shape[0]
    normed = (0, 0, 0) if norm is None else norm.parameters
    append_kernel(dim, kv.kv_format)(
        *shared_out(rows - first), first, kv.kv_heads, groups, qkv.data_ptr(), rotation.data_ptr(), *normed,
        factors.data_ptr(), pages.values.data_ptr(), scales, pages.values.shape[1], prompts.slots.data_ptr(),
        out.data_ptr(),
    )  # fmt: skip
    tile_rows, tiles = prompts.tiles(members)
    items = tiles.shape[0] * kv.kv_heads * (groups // members)
    tile_kernel(dim, kv.kv_format, tile_rows)(
        *shared_out(items), kv.kv_heads, groups, members, kv.block_size, tiles.data_ptr(),
        prompts.tables.data_ptr(), prompts.tables.shape[1], pages.values.data_ptr(), scales,
        pages.values.shape[1], window, float_bits(softcap), 0 if sinks is None else sinks.data_ptr(),
        out.data_ptr(),
    )  # fmt: skip


def compile_prompts(dim: int, kv_format: KVFormat) -> None:
    """Have the kernels before the first prompt."""
    append_kernel(dim, kv_format)
    for rows in ROWS:
        tile_kernel(dim, kv_format, rows)


@compiled
def append_kernel(dim: int, kv_format: KVFormat) -> ir.Module:
    """One thread takes rows: queries, times their row's factor, go where the result will be."""
    e = Emitter(f"append_{dim}_{kv_format}")
    items, chunk, before, kv_heads, groups = (e.parameter(index) for index in range(1, 6))
    qkv, angles = e.pointer(6), e.pointer(7)
    heads = Heads(e, dim, e.parameter(8), e.pointer(9), e.pointer(10))
    factors, lines = e.pointer(11), Lines(e, dim, kv_format, e.pointer(12), e.pointer(13))
    room, slots, out = e.parameter(14), e.pointer(15), e.pointer(16)
    q_heads = e.ir.mul(groups, kv_heads)
    line_size = e.ir.mul(e.ir.add(q_heads, e.ir.add(kv_heads, kv_heads)), e.const(dim))
    with e.pieces(items, chunk) as item:
        row = e.ir.add(item, before)
        heads.begin(e.address(qkv, e.ir.mul(row, line_size)), e.address(angles, e.ir.mul(row, e.const(dim))))
        factor = e.splat(e.load(e.address(factors, row), F32))
        with e.loop(e.const(0), q_heads) as number:
            to = e.ir.mul(e.ir.add(e.ir.mul(row, q_heads), number), e.const(dim))
            put_head(e, [e.ir.fmul(part, factor) for part in heads.rotated(number)], e.address(out, to))
        slot = e.load(e.address(slots, row, I64), I64)
        with e.loop(e.const(0), kv_heads) as head:
            value_head = e.ir.add(head, kv_heads)
            lines.write(heads.rotated(e.ir.add(head, q_heads)), e.ir.add(e.ir.mul(head, room), slot))
            lines.write(heads.plain(e.ir.add(value_head, q_heads)),
                        e.ir.add(e.ir.mul(value_head, room), slot))  # fmt: skip
    return e.finish()
