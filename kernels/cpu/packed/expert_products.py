"""Kernels over the packed weights of experts: products of the pairs of a token and an expert that it uses."""

from collections.abc import Callable

from llvmlite import ir

from kernels.contract import Activation
from kernels.cpu.compiler import CACHE_LINE, F32, I64, LANES, Emitter, Value, compiled, wide_registers
from kernels.cpu.expert_rows import ExpertPairs
from kernels.cpu.gate import open_gate
from kernels.cpu.packed.kinds import ProductKind
from kernels.cpu.packed.products import Source, TileProduct

_WIDTHS = (1, 2, 4, 8) if wide_registers() else (1, 2, 4)
"""Pairs that a tile is read for at once: what is left goes to the least that holds it."""
_TOGETHER = _WIDTHS[-1]


@compiled
def open_packed_kernel(gate: ProductKind, up: ProductKind, activation: Activation) -> ir.Module:
    """One thread takes 16 outputs of one expert: both products, biases, the activation.

    opened float32 [pairs, size].
    """
    e = Emitter(f"open_packed_{gate.type.name}_{up.type.name}_{activation}")
    items, chunk, tiles, gate_blocks, up_blocks, gate_step, up_step, up_first = (
        e.parameter(index) for index in range(1, 9)
    )
    gate_quants, gate_scales, up_quants, up_scales, bias = (e.pointer(index) for index in range(9, 14))
    pairs = ExpertPairs(e, e.pointer(14), e.pointer(15))
    tokens, x, factors, opened = (e.pointer(index) for index in range(16, 20))
    products = (
        TileProduct(e, gate, gate_blocks, gate_quants, gate_scales),
        TileProduct(e, up, up_blocks, up_quants, up_scales),
    )
    kept = e.bytes(2 * _TOGETHER * CACHE_LINE)
    size = e.ir.mul(tiles, e.const(LANES))
    with e.pieces(items, chunk) as item:
        expert, first, end = pairs.of(e.ir.sdiv(item, tiles))
        tile = e.ir.srem(item, tiles)
        own = (
            e.ir.add(e.ir.mul(expert, gate_step), tile),
            e.ir.add(e.ir.add(e.ir.mul(expert, up_step), up_first), tile),
        )
        column = e.ir.mul(tile, e.const(LANES))

        def several(numbers: list[Value]) -> None:
            rows = [e.load(e.address(tokens, number, I64), I64) for number in numbers]
            for part, product in enumerate(products):
                totals = product.totals(own[part], product.rows(x, factors, rows), None)
                added = _bias(e, bias, e.ir.add(e.ir.mul(expert, e.const(2)), e.const(part)), size, column)
                for row, total in enumerate(totals):
                    place = e.address(kept, e.const(LANES * (part * _TOGETHER + row)))
                    e.store(e.ir.fadd(total, e.ir.load(added, typ=total.type)), place)
            for row, number in enumerate(numbers):
                both = [e.load(e.address(kept, e.const(LANES * (p * _TOGETHER + row)))) for p in range(2)]
                line = e.ir.add(e.ir.mul(number, size), column)
                e.store(open_gate(e, activation, *both), e.address(opened, line))

        _in_turn(e, first, end, several)
    return e.finish()


@compiled
def down_packed_kernel(kind: ProductKind) -> ir.Module:
    """One thread takes columns of the result, in tiles of 16: it adds up the weighed experts in their order.

    What it reads of an expert lies together: the fewer pieces, the less often memory has to be waited for.
    """
    e = Emitter(f"down_packed_{kind.type.name}")
    tiles, chunk, groups, blocks = (e.parameter(index) for index in range(1, 5))
    quants, scales, bias = (e.pointer(index) for index in range(5, 8))
    pairs = ExpertPairs(e, e.pointer(8), e.pointer(9))
    tokens, weights, x, factors, out = (e.pointer(index) for index in range(10, 15))
    product = TileProduct(e, kind, blocks, quants, scales)
    hidden = e.ir.mul(tiles, e.const(LANES))
    with (
        e.spans(tiles, chunk) as (first_tile, end_tile),
        e.loop(e.const(0), groups) as group,
        e.loop(first_tile, end_tile) as tile,
    ):
        expert, first, end = pairs.of(group)
        column = e.ir.mul(tile, e.const(LANES))

        def several(numbers: list[Value]) -> None:
            sources: list[Source] = product.rows(x, factors, numbers)
            totals = product.totals(e.ir.add(e.ir.mul(expert, tiles), tile), sources, None)
            added = e.ir.load(_bias(e, bias, expert, hidden, column), typ=totals[0].type)
            for row, (number, total) in enumerate(zip(numbers, totals, strict=True)):
                # The last pair may stand for those that are missing: it is added once.
                last = e.ir.icmp_signed("==", number, numbers[row - 1]) if row else None
                token = e.load(e.address(tokens, number, I64), I64)
                at = e.address(out, e.ir.add(e.ir.mul(token, hidden), column))
                weight = e.splat(e.load(e.address(weights, number), F32))
                summed = e.fma(weight, e.ir.fadd(total, added), e.load(at))
                e.store(summed if last is None else e.ir.select(last, e.load(at), summed), at)

        _in_turn(e, first, end, several)
    return e.finish()


def _in_turn(e: Emitter, first: Value, end: Value, several: Callable[[list[Value]], None]) -> None:
    """Call `several` with the numbers of as many pairs as `_WIDTHS` has, the last maybe repeated."""
    last = e.ir.sub(end, e.const(1))

    def take(pair: Value, left: Value, widths: tuple[int, ...]) -> None:
        count, *more = widths
        if not more:
            several([pair, *(e.smaller(e.ir.add(pair, e.const(n)), last) for n in range(1, count))])
            return
        with e.ir.if_else(e.ir.icmp_signed("<=", left, e.const(count))) as (held, larger):
            with held:
                take(pair, left, (count,))
            with larger:
                take(pair, left, tuple(more))

    with e.loop(first, end, _TOGETHER) as pair:
        take(pair, e.ir.sub(end, pair), _WIDTHS)


def _bias(e: Emitter, bias: Value, line: Value, width: Value, column: Value) -> Value:
    """A variable with 16 columns of a line, or with zeros where `bias` is no address."""
    added = e.variable(e.vector(0.0))
    with e.ir.if_then(e.ir.icmp_signed("!=", e.ir.ptrtoint(bias, I64), e.const(0))):
        place = e.address(bias, e.ir.add(e.ir.mul(line, width), column))
        e.ir.store(e.load(place), added)
    return added
