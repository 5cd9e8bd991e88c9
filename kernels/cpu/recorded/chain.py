"""Launches one behind the other, without the interpreter between them."""

import ctypes
from typing import Any

import torch
from llvmlite import ir

from kernels.cpu.compiler import I32, I64, Emitter, Launch, compiled
from kernels.cpu.team import team_calls


class Chain:
    """By a team that is asked for once, of as many threads as it has then."""

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
        """Launch them all."""
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
