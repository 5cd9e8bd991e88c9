"""Linear layers over 8-bit quants for a few rows on CPUs: y = x · Wᵀ, W = quant · scale + offset.

At a few rows a product is bound by the bytes of its weight: a byte a quant and two float32 per group
of 16 or 32 columns are a third of float32's. Weights are those of the file to float32's rounding and
activations stay float32, so results are the definition's.
"""

import torch
from llvmlite import ir
from torch import Tensor

from kernels.cpu.compiler import (
    F32,
    I8,
    INTS,
    LANES,
    VECTOR,
    Emitter,
    Value,
    compiled,
    threads_for,
    wide_registers,
)
from kernels.cpu.quant_weights import TILE, QuantLinear

_PIECES_PER_THREAD = 8
_UNROLL = 4
_CACHE_LINE = 64

MOST_ROWS = 8 if wide_registers() else 2
"""Rows whose sums stay in registers."""

_AHEAD = 2048
"""Bytes of quants asked for ahead of their use: the hardware's own prefetch stops at pages."""


def apply_quant_linear(x: Tensor, weight: QuantLinear) -> Tensor:
    """x [T, in] → float32 [T, out], or [T, out / 2] through the gate."""
    rows = x.shape[0]
    x = x.to(torch.float32).contiguous()
    tiles = weight.out_features // TILE
    width = weight.out_features // (2 if weight.gated else 1)
    y = torch.empty(rows, width)
    threads = threads_for(tiles)
    chunk = max(1, tiles // (threads * _PIECES_PER_THREAD))
    for start in range(0, rows, MOST_ROWS):
        count = min(MOST_ROWS, rows - start)
        product_kernel(1 << (count - 1).bit_length())(
            threads, tiles, chunk, count - 1, weight.in_features, weight.group, width, int(weight.gated),
            weight.quants.data_ptr(), weight.scales.data_ptr(), weight.offsets.data_ptr(),
            weight.bias.data_ptr(), x.data_ptr() + 4 * start * weight.in_features,
            y.data_ptr() + 4 * start * width,
        )  # fmt: skip
    return y


@compiled
def product_kernel(rows: int) -> ir.Module:
    """One thread takes tiles of 32 rows of W; `rows` times two vectors of sums stay in registers.

    Fewer rows than that repeat the last one.
    """
    e = Emitter(f"quant_linear_{rows}")
    tiles, chunk, last, columns, group, width, gated = (e.parameter(index) for index in range(1, 8))
    quants, scales, offsets, bias, x, y = (e.pointer(index) for index in range(8, 14))
    numbers = [e.smaller(e.const(row), last) for row in range(rows)]
    starts = [e.address(x, e.ir.mul(columns, number)) for number in numbers]
    lines = [e.address(y, e.ir.mul(width, number)) for number in numbers]
    groups = e.ir.sdiv(columns, group)
    with e.pieces(tiles, chunk) as tile:
        initial = _pair(e, e.address(bias, e.ir.mul(tile, e.const(TILE))))
        sums = [[e.variable(part) for part in initial] for _ in range(rows)]
        tile_quants = e.address(quants, e.ir.mul(tile, e.ir.mul(columns, e.const(TILE))), I8)
        first_group = e.ir.mul(tile, groups)
        with e.loop(e.const(0), groups) as number:
            at = e.ir.mul(e.ir.add(first_group, number), e.const(TILE))
            scale, offset = (_pair(e, e.address(base, at)) for base in (scales, offsets))
            first = e.ir.mul(number, group)
            with e.loop(first, e.ir.add(first, group), _UNROLL) as column:
                for later in range(_AHEAD, _AHEAD + _UNROLL * TILE, _CACHE_LINE):
                    at = e.ir.add(e.ir.mul(column, e.const(TILE)), e.const(later))
                    e.prefetch(e.address(tile_quants, at, I8))
                for ahead in range(_UNROLL):
                    _column(e, e.ir.add(column, e.const(ahead)), tile_quants, scale, offset, starts, sums)
        totals = [[e.ir.load(part, typ=VECTOR) for part in row] for row in sums]
        with e.ir.if_else(e.ir.icmp_signed("!=", gated, e.const(0))) as (then, otherwise):
            with then:
                for line, (gate, up) in zip(lines, totals, strict=True):
                    e.store(_gate(e, gate, up), e.address(line, e.ir.mul(tile, e.const(LANES))))
            with otherwise:
                for line, parts in zip(lines, totals, strict=True):
                    for half, part in enumerate(parts):
                        at = e.ir.add(e.ir.mul(tile, e.const(TILE)), e.const(LANES * half))
                        e.store(part, e.address(line, at))
    return e.finish()


def _pair(e: Emitter, base: Value) -> list[Value]:
    return [e.load(e.address(base, e.const(LANES * half))) for half in range(2)]


def _column(e: Emitter, column: Value, quants: Value, scale: list[Value], offset: list[Value],
            starts: list[Value], sums: list[list[Value]]) -> None:  # fmt: skip
    base = e.address(quants, e.ir.mul(column, e.const(TILE)), I8)
    weights = []
    for half in range(2):
        packed = e.load(e.address(base, e.const(LANES * half), I8), ir.VectorType(I8, LANES))
        number = e.ir.sitofp(e.ir.zext(packed, INTS), VECTOR)
        weights.append(e.fma(number, scale[half], offset[half]))
    for start, row in zip(starts, sums, strict=True):
        value = e.splat(e.load(e.address(start, column), F32))
        for weight, total in zip(weights, row, strict=True):
            e.ir.store(e.fma(weight, value, e.ir.load(total, typ=VECTOR)), total)


def _gate(e: Emitter, gate: Value, up: Value) -> Value:
    """silu(gate) * up."""
    one = e.vector(1.0)
    sigmoid = e.ir.fdiv(one, e.ir.fadd(one, e.exp(e.ir.fneg(gate))))
    return e.ir.fmul(e.ir.fmul(gate, sigmoid), up)
