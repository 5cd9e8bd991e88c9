"""Attention of a few new tokens of each sequence on CPUs: one compiled kernel."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from llvmlite import ir
from torch import Tensor

from kernels.cpu.attention.heads import HeadNorm, Heads, put_head
from kernels.cpu.attention.kv_lines import Lines
from kernels.cpu.compiler import (
    F32,
    I32,
    I64,
    INTS,
    LANES,
    VECTOR,
    Emitter,
    Value,
    compiled,
    float_bits,
    wide_registers,
)
from kernels.cpu.team import threads_for
from kernels.quant.formats import KVFormat
from kernels.reference.paged_kv import PagedKV

_HIDDEN = -1e30
_TOGETHER = 4
"""Heads for which a key or a value is read, and made float32, once."""


@dataclass(frozen=True, slots=True)
class DecodeTables:
    """Where the S sequences of a decode pass lie, each with its token and the drafts behind it."""

    tables: Tensor
    """int64 [S, W]; blocks that are behind a window are not read."""
    starts: Tensor
    """int64 [S + 1], the first row of each sequence."""
    contexts: Tensor
    """int64 [S], context of that row."""


def attend_decode(
    qkv: Tensor,
    rotation: Tensor,
    norm: HeadNorm | None,
    kv: PagedKV,
    layer: int,
    tables: DecodeTables,
    factors: Tensor,
    out: Tensor,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> None:
    """Norm and rotate q and k, write k and v, attend causally to the last `window` tokens, or to all.

    qkv float32 [T, (q_heads + 2 kv_heads) * dim]; rotation complex64 [T, dim / 2]; factors float32 [T],
    what each row's queries are multiplied by; sinks float32 [q_heads]; out float32 [T, q_heads * dim], of
    which the rows of `tables` are written. A block and the dimension are multiples of 16. A row's result is
    the same with and without rows behind it.
    """
    dim = kv.head_dim
    q_heads = qkv.shape[1] // dim - 2 * kv.kv_heads
    groups, pages = q_heads // kv.kv_heads, kv.layers[layer]
    pairs, threads = tables.tables.shape[0] * kv.kv_heads, torch.get_num_threads()
    # Where threads would be idle, heads that share keys are shared out too: each writes the same keys.
    shares = (parts for parts in range(1, groups + 1) if groups % parts == 0 and pairs * parts >= threads)
    parts = next(shares, groups)
    items, members = pairs * parts, groups // parts
    normed = (0, 0, 0) if norm is None else norm.parameters
    scales = 0 if pages.scales is None else pages.scales.data_ptr()
    attention_kernel(dim, kv.kv_format)(
        threads_for(items), items, 1, kv.kv_heads, groups, members, kv.block_size, qkv.data_ptr(),
        rotation.data_ptr(), *normed, factors.data_ptr(), pages.values.data_ptr(), pages.values.shape[1],
        tables.tables.data_ptr(), tables.tables.shape[1], tables.starts.data_ptr(),
        tables.contexts.data_ptr(), window, float_bits(softcap),
        0 if sinks is None else sinks.data_ptr(), out.data_ptr(), scales,
    )  # fmt: skip


@compiled
def attention_kernel(dim: int, kv_format: KVFormat) -> ir.Module:
    """One thread takes (sequence, kv head) pairs; each row in turn reads what those before it wrote."""
    e = Emitter(f"attend_{dim}_{kv_format}")
    items, chunk, kv_heads, groups, members, block_size = (e.parameter(index) for index in range(1, 7))
    qkv, angles = e.pointer(7), e.pointer(8)
    heads = Heads(e, dim, e.parameter(9), e.pointer(10), e.pointer(11))
    factors, slots = e.pointer(12), e.parameter(14)
    lines = Lines(e, dim, kv_format, e.pointer(13), e.pointer(23))
    tables, width, starts, contexts = e.pointer(15), e.parameter(16), e.pointer(17), e.pointer(18)
    window, scores, out = e.parameter(19), _Scores(e, e.real(20), e.pointer(21)), e.pointer(22)
    q_heads = e.ir.mul(groups, kv_heads)
    line_size = e.ir.mul(e.ir.add(q_heads, e.ir.add(kv_heads, kv_heads)), e.const(dim))
    parts = e.ir.sdiv(groups, members)
    with e.pieces(items, chunk) as item:
        pair, part = e.ir.sdiv(item, parts), e.ir.srem(item, parts)
        sequence, head = e.ir.sdiv(pair, kv_heads), e.ir.srem(pair, kv_heads)
        value_head = e.ir.add(head, kv_heads)
        table = e.address(tables, e.ir.mul(sequence, width), I64)
        first_context = e.load(e.address(contexts, sequence, I64), I64)
        first = e.load(e.address(starts, sequence, I64), I64)
        end = e.load(e.address(starts, e.ir.add(sequence, e.const(1)), I64), I64)

        def place(position: Value, of: Value) -> Value:
            block = e.load(e.address(table, e.ir.sdiv(position, block_size), I64), I64)
            slot = e.ir.add(e.ir.mul(block, block_size), e.ir.srem(position, block_size))
            return e.ir.add(e.ir.mul(of, slots), slot)

        pages = _Pages(e, dim, lines, lambda at: (place(at, head), place(at, value_head)))
        with e.loop(first, end) as row:
            context = e.ir.add(first_context, e.ir.sub(row, first))
            heads.begin(
                e.address(qkv, e.ir.mul(row, line_size)), e.address(angles, e.ir.mul(row, e.const(dim)))
            )
            pages.append(e.ir.sub(context, e.const(1)), heads.rotated(e.ir.add(head, q_heads)),
                         heads.plain(e.ir.add(value_head, q_heads)))  # fmt: skip
            factor = e.splat(e.load(e.address(factors, row), F32))
            seen = _seen_from(e, context, window)
            start = e.ir.add(e.ir.mul(head, groups), e.ir.mul(part, members))
            line = e.address(out, e.ir.mul(e.ir.mul(row, q_heads), e.const(dim)))
            with e.loop(start, e.ir.add(start, members)) as number:
                query = [e.ir.fmul(value, factor) for value in heads.rotated(number)]
                put_head(e, query, e.address(line, e.ir.mul(number, e.const(dim))))

            def attend(number: Value, count: int) -> None:
                places = [
                    e.ir.mul(e.ir.add(number, e.const(member)), e.const(dim)) for member in range(count)
                ]
                asked = [e.address(line, place) for place in places]
                for mean, place in zip(
                    pages.attend(asked, seen, context, scores, number), asked, strict=True
                ):
                    put_head(e, mean, place)

            _by_width(e, start, members, attend)
    return e.finish()


def _seen_from(e: Emitter, context: Value, window: Value) -> Value:
    """The first position that is seen."""
    behind = e.ir.sub(context, window)
    hides = e.ir.and_(e.ir.icmp_signed(">", window, e.const(0)), e.ir.icmp_signed(">", behind, e.const(0)))
    return e.ir.select(hides, behind, e.const(0))


def _by_width(e: Emitter, start: Value, count: Value, do: Callable[[Value, int], None]) -> None:
    """`do(first, how many)` for `count` numbers from `start` on, as many at once as there may be."""
    rest = e.ir.srem(count, e.const(_TOGETHER))
    last = e.ir.sub(e.ir.add(start, count), rest)
    with e.loop(start, last, _TOGETHER) as number:
        do(number, _TOGETHER)
    for width in range(1, _TOGETHER):
        with e.ir.if_then(e.ir.icmp_signed("==", rest, e.const(width))):
            do(last, width)


class _Scores:
    """What becomes of the products of queries and keys; `sinks` may be 0."""

    def __init__(self, e: Emitter, softcap: Value, sinks: Value) -> None:
        self.e, self.softcap, self.sinks = e, softcap, sinks

    def of(self, products: Value, begin: Value, end: Value) -> Value:
        """Those in the lanes from `begin` to `end`, the others hidden."""
        e = self.e
        place = e.variable(products)
        capped = e.ir.fcmp_unordered("!=", self.softcap, ir.Constant(F32, 0.0))
        with e.ir.if_then(capped):
            cap = e.splat(self.softcap)
            e.ir.store(e.ir.fmul(e.tanh(e.ir.fdiv(e.ir.load(place, typ=VECTOR), cap)), cap), place)
        lanes = ir.Constant(INTS, list(range(LANES)))
        first, last = (e.spread(e.ir.trunc(at, I32)) for at in (begin, end))
        seen = e.ir.and_(e.ir.icmp_signed(">=", lanes, first), e.ir.icmp_signed("<", lanes, last))
        return e.ir.select(seen, e.ir.load(place, typ=VECTOR), e.vector(_HIDDEN))

    def sink(self, number: Value) -> tuple[Value, Value]:
        """(score, weight) of a head's sink in every lane: the weight is shared by all."""
        e = self.e
        highest, total = e.variable(e.vector(_HIDDEN)), e.variable(e.vector(0.0))
        with e.ir.if_then(e.ir.icmp_signed("!=", e.ir.ptrtoint(self.sinks, I64), e.const(0))):
            e.ir.store(e.splat(e.load(e.address(self.sinks, number), F32)), highest)
            e.ir.store(e.vector(1.0 / LANES), total)
        return e.ir.load(highest, typ=VECTOR), e.ir.load(total, typ=VECTOR)


_Places = Callable[[Value], tuple[Value, Value]]
"""Which lines of a layer's memory are key and value of a position."""


class _Pages:
    """Keys and values of one sequence and kv head."""

    def __init__(self, e: Emitter, dim: int, lines: Lines, places: _Places) -> None:
        self.e, self.dim, self.lines, self.places = e, dim, lines, places
        self.products = [e.bytes(4 * LANES * LANES) for _ in range(_TOGETHER)]
        """float32 [16 keys, 16 lanes], whose lanes are still to be summed"""
        self.weights = [e.bytes(4 * LANES) for _ in range(_TOGETHER)]

    def append(self, position: Value, key: list[Value], value: list[Value]) -> None:
        """Write one token's."""
        for parts, at in zip((key, value), self.places(position), strict=True):
            self.lines.write(parts, at)

    def attend(
        self, queries: list[Value], seen: Value, context: Value, scores: _Scores, number: Value
    ) -> list[list[Value]]:
        """Each query's mean of the values of positions from `seen` to `context`; `number` is the first's
        head. 16 positions lie in one block, and its neighbour anywhere: memory is asked for before that."""
        e = self.e
        sums = [
            _Softmax(e, self.dim, *scores.sink(e.ir.add(number, e.const(member))))
            for member in range(len(queries))
        ]
        newest = e.ir.and_(e.ir.sub(context, e.const(1)), e.const(-LANES))
        with e.loop(e.ir.and_(seen, e.const(-LANES)), context, LANES) as position:
            begin = e.ir.sub(e.ir.select(e.ir.icmp_signed(">", seen, position), seen, position), position)
            end = e.smaller(e.ir.sub(context, position), e.const(LANES))
            keys, values = self.places(position)
            soon = self.places(e.smaller(e.ir.add(position, e.const(LANES)), newest))
            self._multiply(queries, keys, soon[0], begin, end)
            for running, products, weights in zip(sums, self.products, self.weights, strict=False):
                e.store(running.step(scores.of(_summed(e, products), begin, end)), weights)
            self._add(sums, values, soon[1], begin, end)
        return [running.result() for running in sums]

    def _multiply(self, queries: list[Value], keys: Value, soon: Value, begin: Value, end: Value) -> None:
        e = self.e
        with e.loop(begin, end) as index:
            self.lines.prefetch(e.ir.add(soon, index))
            totals: list[Value] = [None] * len(queries)
            for part in range(self.dim // LANES):
                (key,) = self.lines.read(e.ir.add(keys, index), range(part, part + 1))
                for member, total in enumerate(totals):
                    query = e.load(e.address(queries[member], e.const(LANES * part)))
                    made = e.ir.fmul(query, key) if total is None else e.fma(query, key, total)
                    totals[member] = made
            for total, products in zip(totals, self.products, strict=False):
                e.store(total, e.address(products, e.ir.mul(index, e.const(LANES))))

    def _add(self, sums: "list[_Softmax]", values: Value, soon: Value, begin: Value, end: Value) -> None:
        """Weighted values, as many vectors of them at once as have their sums in registers."""
        e, whole = self.e, self.dim // LANES
        most = max(1, (24 if wide_registers() else 6) // len(sums))
        step = -(-whole // -(-whole // most))
        for first in range(0, whole, step):
            parts = range(first, min(first + step, whole))
            with e.loop(begin, end) as index:
                if not first:
                    self.lines.prefetch(e.ir.add(soon, index))
                value = self.lines.read(e.ir.add(values, index), parts)
                for running, weights in zip(sums, self.weights, strict=False):
                    running.add(e.splat(e.load(e.address(weights, index), F32)), parts, value)


class _Softmax:
    """A running softmax over the values of one query (Milakov and Gimelshein 2018)."""

    def __init__(self, e: Emitter, dim: int, highest: Value, total: Value) -> None:
        self.e = e
        self.highest, self.total = e.variable(highest), e.variable(total)
        self.sums = [e.variable(e.vector(0.0)) for _ in range(dim // LANES)]

    def step(self, scores: Value) -> Value:
        """Weights of 16 more scores; earlier sums are brought to the new highest score."""
        e = self.e
        before = e.ir.load(self.highest, typ=VECTOR)
        highest = e.call("llvm.maxnum", before, e.splat(e.largest(scores)))
        e.ir.store(highest, self.highest)
        shrink = e.exp(e.ir.fsub(before, highest))
        weights = e.exp(e.ir.fsub(scores, highest))
        for part in self.sums:
            e.ir.store(e.ir.fmul(e.ir.load(part, typ=VECTOR), shrink), part)
        e.ir.store(e.fma(e.ir.load(self.total, typ=VECTOR), shrink, weights), self.total)
        return weights

    def add(self, weight: Value, parts: range, values: list[Value]) -> None:
        """Some parts of one value."""
        for part, value in zip(self.sums[parts.start : parts.stop], values, strict=True):
            self.e.ir.store(self.e.fma(weight, value, self.e.ir.load(part, typ=VECTOR)), part)

    def result(self) -> list[Value]:
        """The weighted mean."""
        e = self.e
        factor = e.ir.fdiv(e.vector(1.0), e.splat(e.sum(e.ir.load(self.total, typ=VECTOR))))
        return [e.ir.fmul(e.ir.load(part, typ=VECTOR), factor) for part in self.sums]


def _summed(e: Emitter, lines: Value) -> Value:
    """Lane i holds the sum of the i-th of 16 vectors: halves of two are added in one vector, four times."""
    made = [e.load(e.address(lines, e.const(LANES * index))) for index in range(LANES)]
    half = LANES // 2
    while half:
        own = ir.Constant(INTS, [lane + LANES * bool(lane & half) for lane in range(LANES)])
        other = ir.Constant(INTS, [(lane ^ half) + LANES * bool(lane & half) for lane in range(LANES)])
        made = [
            e.ir.fadd(e.ir.shuffle_vector(a, b, own), e.ir.shuffle_vector(a, b, other))
            for a, b in zip(made[:half], made[half:], strict=True)
        ]
        half //= 2
    return made[0]
