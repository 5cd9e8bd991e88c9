"""Activations as whole numbers of 15 bits, a scale for every 32 columns (`kernels.cpu.dots`).

llama.cpp gives them 8 bits. Fifteen lose 1e-9 of a product's variance, where eight lose 5e-5, and cost two
products of bytes for one.
"""

import torch
from llvmlite import ir
from torch import Tensor

from kernels.cpu.compiler import F32, I8, I32, I64, INTS, LANES, Emitter, Value, compiled
from kernels.cpu.dots import GROUP, LARGEST, Dots, host_dots, store_activations
from kernels.cpu.team import threads_for

FACTORS = 4
"""Of a group: its scale, and the scaled sums of its first half, its second half and all of it."""
GROUP_BYTES = 2 * GROUP
_GROUPS_OF_TEAM = 1024
"""Groups times threads for each of which a team is worth waking. The larger it is, the more of what one
thread alone would read lies in others' caches."""
_BEHIND = 8 * GROUP_BYTES
"""Read behind the last row, for nothing."""
_UNITS, _UNITS_BITS = 1.5 * 2.0**23, 0x4B400000
"""A float32 whose neighbours differ by 1, and its bits."""
_LEAST = 1e-30
"""Groups whose largest value is less are taken for 0: no float32 divides `LARGEST` by much less."""


class Activations:
    """T rows of a product's input, as whole numbers or as they are, made once they are asked for."""

    __slots__ = ("_exact", "_groups", "_made", "_x", "row_bytes", "row_factors", "rows")

    def __init__(self, x: Tensor, exact: bool) -> None:
        """x: float32 [T, in], contiguous; exact: as it is."""
        self.rows, columns = x.shape
        self._x, self._exact, self._groups = x, exact, columns // GROUP
        self._made: dict[bool, Tensor] = {}
        self.row_bytes = 4 * columns if exact else self._groups * GROUP_BYTES
        self.row_factors = 0 if exact else 4 * self._groups * FACTORS

    def addresses(self, by_groups: bool = False) -> tuple[int, int]:
        """Of the numbers, 64 bytes a group as `store_activations` orders them, and of their factors.

        Factors are 4 float32 a group, of a row's groups one after another. So are the numbers, or by_groups
        those of all rows' first groups, of their second ones, and so on.
        """
        if self._exact:
            return self._x.data_ptr(), self._x.data_ptr()
        if by_groups not in self._made:
            self._made[by_groups] = self._make(by_groups)
        numbers = self._made[by_groups].data_ptr()
        return numbers, numbers + self.rows * self.row_bytes

    def _make(self, by_groups: bool) -> Tensor:
        made = torch.empty(self.rows * (self.row_bytes + self.row_factors) + _BEHIND, dtype=torch.uint8)
        total = self.rows * self._groups
        threads = threads_for(total * torch.get_num_threads() // _GROUPS_OF_TEAM)
        chunk = max(1, total // (2 * threads))
        numbers = made.data_ptr()
        activation_kernel(host_dots(), by_groups)(
            threads, total, chunk, self._x.data_ptr(), numbers, numbers + self.rows * self.row_bytes,
            self._groups, self.rows,
        )  # fmt: skip
        return made


@compiled
def activation_kernel(dots: Dots, by_groups: bool) -> ir.Module:
    """One thread takes groups of any row. What is not finite makes its group's scale so."""
    e = Emitter(f"activations_{dots.name}_{int(by_groups)}")
    groups, chunk = (e.parameter(index) for index in range(1, 3))
    x, numbers, factors = (e.pointer(index) for index in range(3, 6))
    of_row, rows = e.parameter(6), e.parameter(7)
    with e.pieces(groups, chunk) as group:
        at = group
        if by_groups:
            # Of 32 bits: a division of 64 takes as long as all else.
            row = e.ir.zext(e.ir.udiv(e.ir.trunc(group, I32), e.ir.trunc(of_row, I32)), I64)
            own = e.ir.sub(group, e.ir.mul(row, of_row))
            at = e.ir.add(e.ir.mul(own, rows), row)
        line = e.address(x, e.ir.mul(group, e.const(GROUP)))
        halves = [e.load(e.address(line, e.const(LANES * half))) for half in range(2)]
        largest = _largest(e, halves)
        scale = e.ir.fmul(largest, ir.Constant(F32, 1 / LARGEST))
        none = e.ir.fcmp_ordered("<", largest, ir.Constant(F32, _LEAST))
        inverse = e.ir.fdiv(ir.Constant(F32, float(LARGEST)), largest)
        inverse = e.splat(e.ir.select(none, ir.Constant(F32, 0.0), inverse))
        place = e.address(numbers, e.ir.mul(at, e.const(GROUP_BYTES)), I8)
        sums = []
        for half, values in enumerate(halves):
            whole = _whole(e, e.ir.fmul(values, inverse))
            store_activations(e, dots, half, whole, place)
            total = e.call("llvm.vector.reduce.add", whole, result=I32)
            sums.append(e.ir.fmul(e.ir.sitofp(total, F32), scale))
        own = e.address(factors, e.ir.mul(group, e.const(FACTORS)))
        for index, factor in enumerate([scale, *sums, e.ir.fadd(*sums)]):
            e.store(factor, e.address(own, e.const(index)))
    return e.finish()


def _largest(e: Emitter, halves: list[Value]) -> Value:
    """The largest size as a float32, NaN where there is one: as whole numbers sizes have the same order."""
    sizes = [e.ir.bitcast(e.call("llvm.fabs", half), INTS) for half in halves]
    larger = e.ir.select(e.ir.icmp_signed(">", *sizes), *sizes)
    return e.ir.bitcast(e.call("llvm.vector.reduce.smax", larger, result=I32), F32)


def _whole(e: Emitter, values: Value) -> Value:
    """Rounded to int32, ties to even: of up to 22 bits; what is no number becomes any."""
    shifted = e.ir.fadd(values, e.vector(_UNITS))
    return e.ir.sub(e.ir.bitcast(shifted, INTS), ir.Constant(INTS, [_UNITS_BITS] * LANES))
