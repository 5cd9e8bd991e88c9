"""Kernels over the rows of experts as their file holds them: products of few rows, and their values.

A row is read from memory once for all tokens of its expert, and decoded once for every four of them: its
values go from registers into their sums.
"""

from collections.abc import Callable

import torch
from llvmlite import ir

from kernels.contract import Activation
from kernels.cpu.block_readers import READERS, BlockScales
from kernels.cpu.compiler import F32, I1, I8, I16, I64, INTS, LANES, SHORTS, VECTOR, Emitter, Value, compiled
from kernels.cpu.gate import open_gate
from kernels.quant.formats import FORMATS, GGMLType

_SUMS = 2
"""Sums of one row side by side, since an addition waits for the one before; as many for any number of
tokens, so that a token's products do not depend on the others."""
_TOGETHER = 4
"""Tokens that a row is decoded for at once: their sums stay in registers."""
_AHEAD = 1024
"""Bytes of a row asked for ahead of their use."""
_CACHE_LINE = 64

_PLAIN = (GGMLType.F32, GGMLType.F16, GGMLType.BF16)
ROW_TYPES = frozenset(READERS) | frozenset(_PLAIN)
"""The types whose rows are read here."""

Use = Callable[[Value, Value, int], None]
"""(column, 16 values from there on, running number)."""
Take = Callable[[Value, Value], None]
"""(pair, its sum)."""


def row_bytes(e: Emitter, type: GGMLType, columns: Value) -> Value:
    """Bytes of a row."""
    return e.ir.mul(e.ir.sdiv(columns, e.const(FORMATS[type].elements)), e.const(FORMATS[type].nbytes))


def decode_row(e: Emitter, type: GGMLType, line: Value, columns: Value, use: Use) -> None:
    """Hand over the values of a row, 16 after another."""
    if type in _PLAIN:
        with e.loop(e.const(0), columns, LANES) as column:
            use(column, _plain_values(e, type, line, column), 0)
        return
    elements, nbytes, reader = FORMATS[type].elements, FORMATS[type].nbytes, READERS[type]
    scales = BlockScales(e, type)
    with e.loop(e.const(0), e.ir.sdiv(columns, e.const(elements))) as number:
        block = e.address(line, e.ir.mul(number, e.const(nbytes)), I8)
        for later in range(_AHEAD, _AHEAD + nbytes, _CACHE_LINE):
            e.prefetch(e.address(block, e.const(later), I8))
        start = e.ir.mul(number, e.const(elements))
        running = 0
        scales.begin(block)
        for group in range(elements // reader.group):
            scale, offset = scales.of(e.const(group))
            for quants in reader.quants(e, block, e.const(group)):
                column = e.ir.add(start, e.const(LANES * running))
                use(column, e.fma(e.ir.sitofp(quants, VECTOR), scale, offset), running)
                running += 1


def _plain_values(e: Emitter, type: GGMLType, line: Value, column: Value) -> Value:
    if type is GGMLType.F32:
        return e.load(e.address(line, column))
    place = e.address(line, column, I16)
    if type is GGMLType.F16:
        return e.ir.fpext(e.load(place, ir.VectorType(ir.HalfType(), LANES)), VECTOR)
    wide = e.ir.zext(e.load(place, SHORTS), INTS)
    return e.ir.bitcast(e.ir.shl(wide, ir.Constant(INTS, [16] * LANES)), VECTOR)


class RowProducts:
    """Products of one row with the vectors of several pairs of a token and an expert."""

    def __init__(
        self, e: Emitter, type: GGMLType, columns: Value, vector_of: Callable[[Value], Value]
    ) -> None:
        self.e, self.type, self.columns, self.vector_of = e, type, columns, vector_of
        self.row_bytes = row_bytes(e, type, columns)

    def row(self, line: Value, first: Value, end: Value, take: Take) -> None:
        """(pair, sum) for the pairs from `first` to `end`."""
        e = self.e
        with e.loop(first, end, _TOGETHER) as pair:
            left = e.ir.sub(end, pair)
            with e.ir.if_else(e.ir.icmp_signed("==", left, e.const(1))) as (one, more):
                with one:
                    self._several(line, pair, left, 1, take)
                with more, e.ir.if_else(e.ir.icmp_signed("==", left, e.const(2))) as (two, all):
                    with two:
                        self._several(line, pair, left, 2, take)
                    with all:
                        self._several(line, pair, left, _TOGETHER, take)

    def _several(self, line: Value, pair: Value, left: Value, count: int, take: Take) -> None:
        """The row times the next `count` vectors, of which the last may be missing."""
        e = self.e
        last = e.ir.sub(e.ir.add(pair, left), e.const(1))
        pairs = [e.smaller(e.ir.add(pair, e.const(later)), last) for later in range(count)]
        vectors = [self.vector_of(one) for one in pairs]
        sums = [[e.variable(e.vector(0.0)) for _ in range(_SUMS)] for _ in pairs]

        def use(column: Value, values: Value, number: int) -> None:
            for vector, own in zip(vectors, sums, strict=True):
                total, x = own[number % len(own)], e.load(e.address(vector, column))
                e.ir.store(e.fma(values, x, e.ir.load(total, typ=VECTOR)), total)

        decode_row(e, self.type, line, self.columns, use)
        for later, (one, own) in enumerate(zip(pairs, sums, strict=True)):
            if later < 2:
                take(one, _total(e, own))
                continue
            with e.ir.if_then(e.ir.icmp_signed("<", e.const(later), left)):
                take(one, _total(e, own))


def _total(e: Emitter, sums: list[Value]) -> Value:
    total = e.ir.load(sums[0], typ=VECTOR)
    for part in sums[1:]:
        total = e.ir.fadd(total, e.ir.load(part, typ=VECTOR))
    return e.sum(total)


class ExpertPairs:
    """The pairs of each touched expert, from parameters `ids`, `starts`, both int64."""

    def __init__(self, e: Emitter, ids: Value, starts: Value) -> None:
        self.e, self.ids, self.starts = e, ids, starts

    def of(self, group: Value) -> tuple[Value, Value, Value]:
        """(expert, first pair, end)."""
        e = self.e
        expert, first = (e.load(e.address(base, group, I64), I64) for base in (self.ids, self.starts))
        return expert, first, e.load(e.address(self.starts, e.ir.add(group, e.const(1)), I64), I64)


@compiled
def open_kernel(gate: GGMLType, up: GGMLType, activation: Activation) -> ir.Module:
    """One thread takes 16 outputs of one expert: both products, biases, the activation.

    products float32 [pairs, 2, size] hold gate and up; the result replaces the gate.
    """
    e = Emitter(f"open_{gate.name}_{up.name}_{activation}")
    items, chunk, tiles, hidden, size = (e.parameter(index) for index in range(1, 6))
    bases = e.pointer(6), e.pointer(7)
    strides = e.parameter(8), e.parameter(9)
    bias, tokens, x, products = (e.pointer(index) for index in (10, 13, 14, 15))
    pairs = ExpertPairs(e, e.pointer(11), e.pointer(12))

    def vector_of(pair: Value) -> Value:
        return e.address(x, e.ir.mul(e.load(e.address(tokens, pair, I64), I64), hidden))

    def place(pair: Value, part: Value) -> Value:
        return e.ir.mul(e.ir.add(e.ir.mul(pair, e.const(2)), part), size)

    groups = [(gate, (0, 1))] if gate is up else [(gate, (0,)), (up, (1,))]
    made = [(RowProducts(e, type, hidden, vector_of), parts) for type, parts in groups]
    with e.pieces(items, chunk) as item:
        expert, first, end = pairs.of(e.ir.sdiv(item, tiles))
        start = e.ir.mul(e.ir.srem(item, tiles), e.const(LANES))
        for rows, parts in made:
            with e.loop(e.const(parts[0]), e.const(parts[-1] + 1)) as part:
                is_up = e.ir.trunc(part, I1)
                base, stride = (e.ir.select(is_up, *reversed(pair)) for pair in (bases, strides))
                own = e.address(base, e.ir.mul(expert, stride), I8)
                with e.loop(start, e.ir.add(start, e.const(LANES))) as row:

                    def take(pair: Value, total: Value, part: Value = part, row: Value = row) -> None:
                        e.store(total, e.address(products, e.ir.add(place(pair, part), row)))

                    rows.row(e.address(own, e.ir.mul(row, rows.row_bytes), I8), first, end, take)
        with e.loop(first, end) as pair:
            both = []
            for part in map(e.const, range(2)):
                at = e.ir.add(place(expert, part), start)
                value = e.variable(e.load(e.address(products, e.ir.add(place(pair, part), start))))
                with e.ir.if_then(e.ir.icmp_signed("!=", e.ir.ptrtoint(bias, I64), e.const(0))):
                    added = e.ir.fadd(e.ir.load(value, typ=VECTOR), e.load(e.address(bias, at)))
                    e.ir.store(added, value)
                both.append(e.ir.load(value, typ=VECTOR))
            e.store(
                open_gate(e, activation, *both), e.address(products, e.ir.add(place(pair, e.const(0)), start))
            )
    return e.finish()


@compiled
def down_kernel(type: GGMLType) -> ir.Module:
    """One thread takes 16 columns of the result: it weighs the experts and adds them up in their order."""
    e = Emitter(f"down_{type.name}")
    items, chunk, groups, hidden, size = (e.parameter(index) for index in range(1, 6))
    base, stride, bias = e.pointer(6), e.parameter(7), e.pointer(8)
    pairs = ExpertPairs(e, e.pointer(9), e.pointer(10))
    tokens, weights, opened, out = (e.pointer(index) for index in range(11, 15))

    def vector_of(pair: Value) -> Value:
        return e.address(opened, e.ir.mul(e.ir.mul(pair, e.const(2)), size))

    def place(pair: Value, column: Value) -> Value:
        token = e.load(e.address(tokens, pair, I64), I64)
        return e.address(out, e.ir.add(e.ir.mul(token, hidden), column))

    made = RowProducts(e, type, size, vector_of)
    with e.pieces(items, chunk) as item:
        start = e.ir.mul(item, e.const(LANES))
        with e.loop(e.const(0), groups) as group:
            expert, first, end = pairs.of(group)
            own = e.address(base, e.ir.mul(expert, stride), I8)
            with e.loop(start, e.ir.add(start, e.const(LANES))) as row:

                def take(pair: Value, total: Value, row: Value = row) -> None:
                    at, weight = place(pair, row), e.load(e.address(weights, pair), F32)
                    e.store(e.ir.fadd(e.load(at, F32), e.ir.fmul(total, weight)), at)

                made.row(e.address(own, e.ir.mul(row, made.row_bytes), I8), first, end, take)
            with e.ir.if_then(e.ir.icmp_signed("!=", e.ir.ptrtoint(bias, I64), e.const(0))):
                added = e.load(e.address(bias, e.ir.add(e.ir.mul(expert, hidden), start)))
                with e.loop(first, end) as pair:
                    weight, at = e.splat(e.load(e.address(weights, pair), F32)), place(pair, start)
                    e.store(e.fma(weight, added, e.load(at)), at)
    return e.finish()


@compiled
def rows_kernel(type: GGMLType, dtype: torch.dtype) -> ir.Module:
    """One thread takes rows: their values, float32 or rounded to bfloat16."""
    e = Emitter(f"rows_{type.name}_{str(dtype).removeprefix('torch.')}")
    rows, chunk, columns = (e.parameter(index) for index in range(1, 4))
    base, out = e.pointer(4), e.pointer(5)
    with e.pieces(rows, chunk) as row:
        target = e.ir.mul(row, columns)

        def use(column: Value, values: Value, _number: int) -> None:
            at = e.ir.add(target, column)
            if dtype is torch.bfloat16:
                e.store(e.to_bfloat16(values), e.address(out, at, I16))
            else:
                e.store(values, e.address(out, at))

        decode_row(e, type, e.address(base, e.ir.mul(row, row_bytes(e, type, columns)), I8), columns, use)
    return e.finish()
