"""Passes of a few decode rows whose kernels are launched again, in the same memory, with other numbers.

A small model computes for a few milliseconds a token, in more than a hundred launches: to ask Python for each
of them anew takes as long again. Recorded is what launches kernels alone: where torch computes anything in
between, nothing is.
"""

import ctypes
import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.contract import PassLayout, Rotation
from kernels.cpu.attention.decode import DecodeTables
from kernels.cpu.compiler import I32, I64, Emitter, Launch, compiled, recording
from kernels.cpu.team import team_calls
from kernels.reference.rotations import temperatures, turns

log = logging.getLogger(__name__)

MOST_BYTES = 32 << 20
"""Of the memory that a recording keeps; models with more compute for so long that launches do not matter."""
_ROOM = 64
"""Blocks of a context that a recording has room for, at first."""
_NEW = (torch.ops.aten.empty, torch.ops.aten.empty_like)

Prepare = Callable[[Sequence[PassLayout]], Any]
Compute = Callable[[Tensor, Any], Tensor]
"""From the residual stream, which it changes, and a prepared pass to logits."""


class RecordedPass:
    """One number of rows. Its logits last until it is run again."""

    def __init__(
        self, prepared: Any, residual: Tensor, logits: Tensor, launches: list[Launch], kept: list[Tensor]
    ) -> None:
        """kept: the memory that launches read and write."""
        self._prepared, self._residual, self._kept = prepared, residual, kept
        self._logits, self._launches = logits, _Chain(launches)

    def run(self, residual: Tensor, layouts: Sequence[PassLayout]) -> Tensor | None:
        """Logits float32 [T, vocab]; None where contexts have outgrown it."""
        if not all(_refill(own, layout) for own, layout in zip(self._prepared, layouts, strict=True)):
            return None
        self._residual.copy_(residual)
        self._launches()
        return self._logits


class _Chain:
    """Launches one behind the other, by a team that is asked for once, of as many threads as it has then."""

    def __init__(self, launches: list[Launch]) -> None:
        entries: list[int] = []
        for launch, next_one in zip(launches, [*launches[1:], None], strict=True):
            alone = launch.threads == 1
            waits = not alone or next_one is None or next_one.threads > 1
            entries += [launch.kernel.entry, launch.address, alone, waits]
        self._held = launches, (ctypes.c_int64 * len(entries))(*entries)
        parameters = 0, len(launches), ctypes.addressof(self._held[1]), *team_calls()
        self._block = (ctypes.c_int64 * len(parameters))(*parameters)

    def __call__(self) -> None:
        chain_kernel().run(torch.get_num_threads(), ctypes.addressof(self._block))


@compiled
def chain_kernel() -> ir.Module:
    """Call every kernel of a list; where one thread calls one, the others wait.

    Parameters: a counter that nobody draws from, kernels, four numbers of each (its address, that of its
    parameters, whether one thread calls it alone, whether all wait for each other behind it), and the
    addresses of `team_calls`.
    """
    e = Emitter("chain")
    count, entries = e.parameter(1), e.pointer(2)
    own_number, wait = e.parameter(3), e.parameter(4)
    first = e.ir.icmp_signed("==", e.call_at(own_number, I32), ir.Constant(I32, 0))

    def of(index: Any, field: int) -> Any:
        return e.load(e.address(entries, e.ir.add(e.ir.mul(index, e.const(4)), e.const(field)), I64), I64)

    with e.ir.if_then(first), e.loop(e.const(0), count) as index:
        e.store(e.const(0), e.ir.inttoptr(of(index, 1), ir.PointerType()))
    e.call_at(wait, ir.VoidType())
    with e.loop(e.const(0), count) as index:
        together = e.ir.icmp_signed("==", of(index, 2), e.const(0))
        with e.ir.if_then(e.ir.or_(first, together)):
            e.call_at(of(index, 0), ir.VoidType(), e.ir.inttoptr(of(index, 1), ir.PointerType()))
        with e.ir.if_then(e.ir.icmp_signed("!=", of(index, 3), e.const(0))):
            e.call_at(wait, ir.VoidType())
    return e.finish()


class _Watch(TorchDispatchMode):
    """Keeps memory that is made, and notes whether torch computes."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Tensor] = []
        self.computes = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Else torch imports its compiler at the first pass: seconds, or a failure beside another import.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func.overloadpacket in _NEW:
            self.kept.append(made)
        elif not func.is_view:
            self.computes = True
        return made


def record(
    prepare: Prepare,
    layouts: Sequence[PassLayout],
    residual: Tensor,
    compute: Compute,
) -> RecordedPass | None:
    """Record a pass, which is to be run afterwards as others are; None where it cannot be, for good."""
    prepared = prepare(layouts)
    if any(own.decode is None for own in prepared):
        return None
    for own in prepared:
        own.decode = _roomy(own.decode)
    # What is made once for all layers is not recorded.
    expected, own_residual = compute(residual.clone(), prepared), residual.clone()
    watch = _Watch()
    with recording() as launches, watch:
        logits = compute(own_residual, prepared)
    if watch.computes or sum(part.nbytes for part in watch.kept) > MOST_BYTES:
        return None
    made = RecordedPass(prepared, own_residual, logits, launches, watch.kept)
    if torch.equal(logits, expected) and _repeats(made, prepare, layouts, residual, compute):
        return made
    log.error("a recorded pass gives other logits than a pass does; such passes are not recorded")
    return None


def _repeats(
    made: RecordedPass,
    prepare: Prepare,
    layouts: Sequence[PassLayout],
    residual: Tensor,
    compute: Compute,
) -> bool:
    """Whether a recording gives what a pass does for other numbers: rows alike, in the scratch block."""
    rows = len(residual)
    ones = torch.ones_like(layouts[0].positions)
    scratch = PassLayout([1] * rows, [2] * rows, [[0]] * rows, rows, ones, ones)
    elsewhere, same = [scratch] * len(layouts), residual[:1].expand_as(residual).contiguous()
    expected = compute(same.clone(), prepare(elsewhere))
    again = made.run(same, elsewhere)
    return again is not None and torch.equal(again, expected)


def _roomy(tables: DecodeTables) -> DecodeTables:
    rows, width = tables.tables.shape
    room = max(_ROOM, 1 << width.bit_length())
    made = torch.zeros(rows, room, dtype=torch.int64)
    made[:, :width] = tables.tables
    return DecodeTables(made, tables.starts, tables.contexts)


def _refill(own: Any, layout: PassLayout) -> bool:
    """Put another pass's numbers into what a recording reads; False where they do not fit."""
    tables: np.ndarray = own.decode.tables.numpy()
    if max(map(len, layout.block_tables)) > tables.shape[1]:
        return False
    for row, table in enumerate(layout.block_tables):
        tables[row, : len(table)] = table
    own.decode.contexts.numpy()[:] = layout.context_lens
    positions = layout.positions.to(torch.float64)[:, None]
    for kind, table in own.tables.items():
        _rotate(own.kinds[kind], positions, table)
    for (scale, temperature, length), factors in own.factors.items():
        if temperature:
            factors.copy_(temperatures(temperature, length, layout.positions).flatten()).mul_(scale)
    return True


def _rotate(rotation: Rotation, positions: Tensor, table: Tensor) -> None:
    """Write `rotation_table` into a table that was one: what does not turn stays."""
    turned = turns(rotation, positions)
    table[:, 0, : turned.shape[1]].copy_(turned)
