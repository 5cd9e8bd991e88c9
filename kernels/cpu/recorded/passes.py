"""Recording passes of few tokens, and running them again.

A small model computes for a few milliseconds a pass, in some hundred launches: to ask Python for each of
them anew takes as long again. Recorded is what launches kernels alone: where torch computes anything in
between, nothing is.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels.contract import PassLayout, Rotation
from kernels.cpu.attention.decode import DecodeTables
from kernels.cpu.compiler import Launch, recording
from kernels.cpu.recorded.chain import Chain
from kernels.cpu.scratch import Scratch, Watch
from kernels.reference.rotations import temperatures, turns

log = logging.getLogger(__name__)

MOST_BYTES = 32 << 20
"""Of all that a pass makes; models with more compute for so long that launches do not matter."""
_ROOM = 512
"""Blocks of a context that a recording has room for, at first: 4 KiB a row."""

Prepare = Callable[[Sequence[PassLayout]], Any]
Compute = Callable[[Tensor, Any, Tensor | None], Tensor]
"""From the residual stream, which it changes, a prepared pass and the rows that want logits to these."""


class RecordedPass:
    """Of one number of tokens, of sequences that decode, of a chunk's tokens and of rows with logits."""

    def __init__(
        self, prepared: Any, residual: Tensor, rows: Tensor | None, logits: Tensor, launches: list[Launch]
    ) -> None:
        """rows: those with logits; the tensors are what launches read and write."""
        self._prepared, self._residual, self._rows = prepared, residual, rows
        self._launches = Chain(launches)
        self.logits = logits
        """float32 [R, vocab] of the pass that was run last, until any other of the same recorder is."""

    def run(self, residual: Tensor, layouts: Sequence[PassLayout], rows: Tensor | None) -> Tensor | None:
        """Logits; None where contexts have outgrown it."""
        if not all(_refill(own, layout) for own, layout in zip(self._prepared, layouts, strict=True)):
            return None
        if self._rows is not None and rows is not None:
            self._rows.copy_(rows)
        self._residual.copy_(residual)
        self._launches()
        return self.logits


class Recorder:
    """Of one model's passes, which take turns with its memory."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._scratch = Scratch(MOST_BYTES)
        self._checked: set[bool] = set()
        """Whether chunks are read in passes that a recording was seen to repeat."""

    def record(
        self,
        prepare: Prepare,
        layouts: Sequence[PassLayout],
        residual: Tensor,
        rows: Tensor | None,
        compute: Compute,
    ) -> RecordedPass | None:
        """Run and record a pass; None where it cannot be, for good, and is still to be run."""
        reads = layouts[0].num_decode < len(layouts[0].query_lens)
        if reads in self._checked:
            return self._recorded(prepare(layouts), layouts, residual, rows, compute)
        elsewhere = [_elsewhere(layout, self._block_size) for layout in layouts]
        made = self._recorded(prepare(elsewhere), layouts, residual, rows, compute)
        if made is None:
            return None
        again = made.run(residual, layouts, rows)
        again = None if again is None else again.clone()
        # The last to write KV, and right in any case.
        expected = compute(residual.clone(), prepare(layouts), rows)
        if again is None or not torch.equal(again.view(torch.int32), expected.view(torch.int32)):
            log.error("a recorded pass gives other logits than a pass does; such passes are not recorded")
            return None
        self._checked.add(reads)
        made.logits.copy_(again)
        return made

    def _recorded(
        self,
        prepared: Any,
        layouts: Sequence[PassLayout],
        residual: Tensor,
        rows: Tensor | None,
        compute: Compute,
    ) -> RecordedPass | None:
        """With room for the contexts of `layouts`."""
        if any(own.decode is None and own.prompts is None for own in prepared):
            return None
        for own, layout in zip(prepared, layouts, strict=True):
            _make_room(own, max(map(len, layout.block_tables)))
        own_residual, own_rows = residual.clone(), None if rows is None else rows.clone()
        self._scratch.clear()
        watch = Watch(self._scratch)
        with recording() as launches, watch:
            logits = compute(own_residual, prepared, own_rows)
        watch.finish()
        if watch.computes or not watch.fits or watch.asked > MOST_BYTES:
            return None
        return RecordedPass(prepared, own_residual, own_rows, logits, launches)


def _elsewhere(layout: PassLayout, block_size: int) -> PassLayout:
    """A pass that writes nothing but what this one does: sequences decode in the scratch block, and a chunk
    belongs to a prompt that begins with the block where it does."""
    contexts: list[int] = []
    tables: list[list[int]] = []
    positions: list[int] = []
    for index, count in enumerate(layout.query_lens):
        decodes = index < layout.num_decode
        before = layout.context_lens[index] - count
        begin = 1 if decodes else before % block_size
        table = layout.block_tables[index]
        contexts.append(begin + count)
        tables.append([0] * len(table) if decodes else table[before // block_size :])
        positions += range(begin, begin + count)
    places = torch.tensor(positions)
    slots = layout.slot_mapping.clone()
    slots[: sum(layout.query_lens[: layout.num_decode])] = 0
    return PassLayout(layout.query_lens, contexts, tables, layout.num_decode, places, slots)


def _make_room(own: Any, blocks: int) -> None:
    """For contexts to grow, in memory that is the recording's alone."""
    room = max(_ROOM, 1 << blocks.bit_length())
    if own.decode is not None:
        own.decode = DecodeTables(_roomy(own.decode.tables, room), own.decode.starts, own.decode.contexts)
    if own.prompts is not None:
        own.prompts.tables, own.prompts.slots = _roomy(own.prompts.tables, room), own.prompts.slots.clone()


def _roomy(tables: Tensor, room: int) -> Tensor:
    made = torch.zeros(tables.shape[0], room, dtype=torch.int64)
    made[:, : tables.shape[1]] = tables
    return made


def _refill(own: Any, layout: PassLayout) -> bool:
    """Put another pass's numbers into what a recording reads; False where they do not fit."""
    decode = layout.num_decode
    if own.decode is not None and not _refill_decode(own.decode, layout, decode):
        return False
    if own.prompts is not None and not own.prompts.refill(layout):
        return False
    positions = layout.positions.to(torch.float64)[:, None]
    for kind, table in own.tables.items():
        _rotate(own.kinds[kind], positions, table)
    for (scale, temperature, length), factors in own.factors.items():
        if temperature:
            factors.copy_(temperatures(temperature, length, layout.positions).flatten()).mul_(scale)
    return True


def _refill_decode(own: DecodeTables, layout: PassLayout, decode: int) -> bool:
    tables: np.ndarray = own.tables.numpy()
    used, lens = layout.block_tables[:decode], layout.query_lens[:decode]
    if max(map(len, used)) > tables.shape[1]:
        return False
    for row, table in enumerate(used):
        tables[row, : len(table)] = table
    own.contexts.numpy()[:] = [c - n + 1 for c, n in zip(layout.context_lens, lens, strict=False)]
    own.starts.numpy()[1:] = np.cumsum(lens)
    return True


def _rotate(rotation: Rotation, positions: Tensor, table: Tensor) -> None:
    """Write `rotation_table` into a table that was one: what does not turn stays."""
    turned = turns(rotation, positions)
    table[:, 0, : turned.shape[1]].copy_(turned)
