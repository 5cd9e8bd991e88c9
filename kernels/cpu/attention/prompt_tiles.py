"""A tile of neighbouring queries over the keys that they see: what one thread computes of a prompt.

Scores lie with queries in lanes: a running softmax then needs no sums across lanes, and the products of
queries and keys, and of weights and values, both multiply a vector by neighbouring numbers.
"""

from collections.abc import Callable, Sequence
from functools import partial

from llvmlite import ir

from kernels.cpu.attention.heads import head_parts, put_head
from kernels.cpu.attention.kv_lines import Lines
from kernels.cpu.compiler import F32, I32, I64, INTS, LANES, VECTOR, Emitter, Value, compiled, wide_registers
from kernels.quant.formats import KVFormat

KEYS = 48
"""Computed together, from a multiple of so many positions on."""
ROWS = 16, 48
"""A tile may have."""
_HIDDEN, _SEEN = -1e30, -1e29


@compiled
def tile_kernel(dim: int, kv_format: KVFormat, own_rows: int) -> ir.Module:
    """One thread takes (tile, kv head, part of its queries' heads); see `attend_prompts` for the memory.

    own_rows: one of `ROWS`: its tokens' heads, a token's after another. What is missing is
    computed, and not written. A row's bits are the same in a tile of any size.
    """
    e = Emitter(f"prompt_{dim}_{kv_format}_{own_rows}")
    items, chunk, kv_heads, groups, members, block_size = (e.parameter(index) for index in range(1, 7))
    tiles, tables, width = e.pointer(7), e.pointer(8), e.parameter(9)
    lines, slots = Lines(e, dim, kv_format, e.pointer(10), e.pointer(11)), e.parameter(12)
    window, softcap, sinks, out = e.parameter(13), e.real(14), e.pointer(15), e.pointer(16)
    parts, q_heads = e.ir.sdiv(groups, members), e.ir.mul(groups, kv_heads)
    work = _Work(e, dim, own_rows, window, softcap)
    with e.pieces(items, chunk) as item:
        pair, part = e.ir.sdiv(item, parts), e.ir.srem(item, parts)
        number, head = e.ir.sdiv(pair, kv_heads), e.ir.srem(pair, kv_heads)
        tile = e.address(tiles, e.ir.mul(number, e.const(4)), I64)
        sequence, row, tokens, position = (e.load(e.address(tile, e.const(n), I64), I64) for n in range(4))
        table = e.address(tables, e.ir.mul(sequence, width), I64)
        first_head = e.ir.add(e.ir.mul(head, groups), e.ir.mul(part, members))

        def line(of: Value, at: Value) -> Value:
            block = e.load(e.address(table, e.ir.sdiv(at, block_size), I64), I64)
            slot = e.ir.add(e.ir.mul(block, block_size), e.ir.srem(at, block_size))
            return e.ir.add(e.ir.mul(of, slots), slot)

        rows = e.ir.mul(tokens, members)
        with e.loop(e.const(0), e.const(own_rows)) as own:
            held = e.smaller(own, e.ir.sub(rows, e.const(1)))
            token, member = e.ir.sdiv(held, members), e.ir.srem(held, members)
            query = e.ir.add(e.ir.mul(e.ir.add(row, token), q_heads), e.ir.add(first_head, member))
            work.begin_row(own, e.ir.mul(query, e.const(dim)), e.ir.add(position, token),
                           e.ir.add(first_head, member), sinks)  # fmt: skip
        work.read_queries(out)
        seen = e.ir.sub(e.ir.add(position, e.const(1)), window)
        none_hidden = e.ir.or_(
            e.ir.icmp_signed("<=", window, e.const(0)), e.ir.icmp_signed("<", seen, e.const(0))
        )
        seen, end = e.ir.select(none_hidden, e.const(0), seen), e.ir.add(position, tokens)
        start = e.ir.mul(e.ir.sdiv(seen, e.const(KEYS)), e.const(KEYS))
        with e.loop(start, end, KEYS) as key:
            for side, buffer in enumerate((work.keys, work.values)):
                of = e.ir.add(head, e.ir.mul(kv_heads, e.const(side)))
                _read_lines(e, dim, lines, partial(line, of), key, seen, end, buffer)
            work.step(key, position, end)
        work.write(out, rows)
    return e.finish()


def _read_lines(
    e: Emitter, dim: int, lines: Lines, line: Callable[[Value], Value], first: Value, seen: Value, end: Value,
    buffer: Value,
) -> None:  # fmt: skip
    """Float32 of positions from `first` on; zeros where they are not from `seen` to `end`.

    16 positions lie in one block.
    """
    parts = range(dim // LANES)
    with e.loop(e.const(0), e.const(KEYS), LANES) as sixteen:
        position = e.ir.add(first, sixteen)
        inside = e.ir.icmp_signed("<", position, end)
        behind = e.ir.icmp_signed(">", e.ir.add(position, e.const(LANES)), seen)
        # The table ends where the context does.
        at = e.ir.select(e.ir.and_(inside, behind), position, e.ir.and_(seen, e.const(-LANES)))
        base = line(at)
        with e.loop(e.const(0), e.const(LANES)) as index:
            own = e.ir.add(position, index)
            held = e.ir.and_(e.ir.icmp_signed(">=", own, seen), e.ir.icmp_signed("<", own, end))
            to = e.address(buffer, e.ir.mul(e.ir.add(sixteen, index), e.const(dim)))
            with e.ir.if_else(held) as (then, otherwise):
                with then:
                    put_head(e, lines.read(e.ir.add(base, index), parts), to)
                with otherwise:
                    put_head(e, [e.vector(0.0) for _ in parts], to)


class _Work:
    """A thread's memory of one tile, and what is computed in it."""

    def __init__(self, e: Emitter, dim: int, own_rows: int, window: Value, softcap: Value) -> None:
        self.e, self.dim, self.own_rows, self.window, self.softcap = e, dim, own_rows, window, softcap
        self.queries = e.bytes(4 * dim * own_rows)
        """float32 [dim, own_rows]"""
        self.keys, self.values = (e.bytes(4 * KEYS * dim) for _ in range(2))
        """float32 [KEYS, dim]"""
        self.scores = e.bytes(4 * KEYS * own_rows)
        """float32 [KEYS, own_rows]"""
        self.means = e.bytes(4 * own_rows * dim)
        """float32 [own_rows, dim], before they are divided by the total"""
        self.highest, self.total, self.shrink = (e.bytes(4 * own_rows) for _ in range(3))
        self.positions, self.places = e.bytes(4 * own_rows), e.bytes(8 * own_rows)

    def begin_row(self, row: Value, place: Value, position: Value, head: Value, sinks: Value) -> None:
        """place: of its query, in `out`; a sink takes weight and gives no value."""
        e = self.e
        e.store(place, e.address(self.places, row, I64))
        e.store(e.ir.trunc(position, I32), e.address(self.positions, row, I32))
        score, weight = e.variable(ir.Constant(F32, _HIDDEN)), e.variable(ir.Constant(F32, 0.0))
        with e.ir.if_then(e.ir.icmp_signed("!=", e.ir.ptrtoint(sinks, I64), e.const(0))):
            e.ir.store(e.load(e.address(sinks, head), F32), score)
            e.ir.store(ir.Constant(F32, 1.0), weight)
        e.store(e.ir.load(score, typ=F32), e.address(self.highest, row))
        e.store(e.ir.load(weight, typ=F32), e.address(self.total, row))
        zeros = [e.vector(0.0)] * (self.dim // LANES)
        put_head(e, zeros, e.address(self.means, e.ir.mul(row, e.const(self.dim))))

    def read_queries(self, out: Value) -> None:
        """With queries in lanes."""
        e = self.e
        with (
            e.loop(e.const(0), e.const(self.own_rows), LANES) as first,
            e.loop(e.const(0), e.const(self.dim), LANES) as column,
        ):
            lines = []
            for lane in range(LANES):
                place = e.load(e.address(self.places, e.ir.add(first, e.const(lane)), I64), I64)
                lines.append(e.load(e.address(out, e.ir.add(place, column))))
            for number, turned in enumerate(_transposed(e, lines)):
                at = e.ir.mul(e.ir.add(column, e.const(number)), e.const(self.own_rows))
                e.store(turned, e.address(self.queries, e.ir.add(at, first)))

    def step(self, key: Value, position: Value, end: Value) -> None:
        """The keys from `key` on; `position` is the tile's first, `end` behind its last."""
        e = self.e
        self._score()
        with e.ir.if_then(e.ir.fcmp_unordered("!=", self.softcap, ir.Constant(F32, 0.0))):
            cap = e.splat(self.softcap)
            self._change(key, lambda score, *_: e.ir.fmul(e.tanh(e.ir.fdiv(score, cap)), cap))
        newer = e.ir.icmp_signed(">", e.ir.add(key, e.const(KEYS - 1)), position)
        last = e.ir.sub(end, e.const(1))
        older = e.ir.icmp_signed("<=", key, e.ir.sub(last, self.window))
        windowed = e.ir.icmp_signed(">", self.window, e.const(0))
        with e.ir.if_then(e.ir.or_(newer, e.ir.and_(windowed, older))):
            self._change(key, self._hide)
        with e.loop(e.const(0), e.const(self.own_rows), LANES) as rows:
            self._weigh(rows)
        self._add_values()

    def write(self, out: Value, rows: Value) -> None:
        """The weighted means of a tile's own rows."""
        e = self.e
        with e.loop(e.const(0), rows) as row:
            total = e.splat(e.load(e.address(self.total, row), F32))
            factor = e.ir.fdiv(e.vector(1.0), total)
            parts = head_parts(e, e.address(self.means, e.ir.mul(row, e.const(self.dim))), self.dim)
            to = e.address(out, e.load(e.address(self.places, row, I64), I64))
            put_head(e, [e.ir.fmul(part, factor) for part in parts], to)

    def _score(self) -> None:
        """Products of all queries and keys."""
        e = self.e
        keys, vectors = (8, self.own_rows // LANES) if wide_registers() else (6, 1)
        with (
            e.loop(e.const(0), e.const(self.own_rows), vectors * LANES) as rows,
            e.loop(e.const(0), e.const(KEYS), keys) as first,
        ):
            sums = [[e.variable(e.vector(0.0)) for _ in range(vectors)] for _ in range(keys)]
            near = e.address(self.keys, e.ir.mul(first, e.const(self.dim)))
            numbers = [e.address(near, e.const(self.dim * key)) for key in range(keys)]
            _multiply(e, self.dim, sums, e.address(self.queries, rows), self.own_rows, numbers, 1)
            for key, own in enumerate(sums):
                at = e.ir.add(e.ir.mul(e.ir.add(first, e.const(key)), e.const(self.own_rows)), rows)
                put_head(e, [e.ir.load(total, typ=VECTOR) for total in own], e.address(self.scores, at))

    def _add_values(self) -> None:
        """Weights times values to the means, which are brought to the new highest score."""
        e, parts = self.e, self.dim // LANES
        most, vectors = (12, 2) if wide_registers() else (6, 1)
        rows = next(count for count in range(most, 0, -1) if self.own_rows % count == 0)
        with e.loop(e.const(0), e.const(self.own_rows), rows) as first:
            weights = [e.address(e.address(self.scores, first), e.const(row)) for row in range(rows)]

            def add(column: Value, count: int) -> None:
                sums = []
                for row in range(rows):
                    own = e.ir.add(first, e.const(row))
                    shrink = e.splat(e.load(e.address(self.shrink, own), F32))
                    place = e.address(self.means, e.ir.add(e.ir.mul(own, e.const(self.dim)), column))
                    sums.append(
                        [e.variable(e.ir.fmul(part, shrink)) for part in head_parts(e, place, count * LANES)]
                    )
                _multiply(e, KEYS, sums, e.address(self.values, column), self.dim, weights, self.own_rows)
                for row, own_sums in enumerate(sums):
                    at = e.ir.mul(e.ir.add(first, e.const(row)), e.const(self.dim))
                    made = [e.ir.load(total, typ=VECTOR) for total in own_sums]
                    put_head(e, made, e.address(self.means, e.ir.add(at, column)))

            whole = parts // vectors * vectors * LANES
            with e.loop(e.const(0), e.const(whole), vectors * LANES) as column:
                add(column, vectors)
            if whole < self.dim:
                add(e.const(whole), 1)

    def _change(self, key: Value, change: Callable[[Value, Value, Value], Value]) -> None:
        """Every vector of scores; `change` gets it, the number of its first row, and its key's position."""
        e = self.e
        with (
            e.loop(e.const(0), e.const(self.own_rows), LANES) as rows,
            e.loop(e.const(0), e.const(KEYS)) as index,
        ):
            place = e.address(self.scores, e.ir.add(e.ir.mul(index, e.const(self.own_rows)), rows))
            e.store(change(e.load(place), rows, e.ir.add(key, index)), place)

    def _hide(self, score: Value, rows: Value, key: Value) -> Value:
        """What is newer than the query or behind its window."""
        e = self.e
        positions = e.load(e.address(self.positions, rows, I32), INTS)
        key, window = (e.spread(e.ir.trunc(value, I32)) for value in (key, self.window))
        distance = e.ir.sub(positions, key)
        zero = ir.Constant(INTS, [0] * LANES)
        near = e.ir.or_(e.ir.icmp_signed("<", distance, window), e.ir.icmp_signed("<=", window, zero))
        seen = e.ir.and_(e.ir.icmp_signed(">=", distance, zero), near)
        return e.ir.select(seen, score, e.vector(_HIDDEN))

    def _weigh(self, rows: Value) -> None:
        """Scores of 16 queries to weights."""
        e = self.e
        place = e.address(self.scores, rows)
        before = e.load(e.address(self.highest, rows))
        highest = e.variable(before)
        with e.loop(e.const(0), e.opaque(KEYS)) as index:
            score = e.load(e.address(place, e.ir.mul(index, e.const(self.own_rows))))
            e.ir.store(e.call("llvm.maxnum", e.ir.load(highest, typ=VECTOR), score), highest)
        top = e.ir.load(highest, typ=VECTOR)
        shrink = e.exp(e.ir.fsub(before, top))
        total = e.variable(e.ir.fmul(e.load(e.address(self.total, rows)), shrink))
        with e.loop(e.const(0), e.opaque(KEYS)) as index:
            at = e.address(place, e.ir.mul(index, e.const(self.own_rows)))
            score = e.load(at)
            seen = e.ir.fcmp_ordered(">", score, e.vector(_SEEN))
            weight = e.ir.select(seen, e.exp(e.ir.fsub(score, top)), e.vector(0.0))
            e.ir.store(e.ir.fadd(e.ir.load(total, typ=VECTOR), weight), total)
            e.store(weight, at)
        for value, buffer in (
            (top, self.highest),
            (shrink, self.shrink),
            (e.ir.load(total, typ=VECTOR), self.total),
        ):
            e.store(value, e.address(buffer, rows))


def _multiply(
    e: Emitter, count: int, sums: Sequence[Sequence[Value]], vectors: Value, step: int,
    numbers: Sequence[Value], stride: int,
) -> None:  # fmt: skip
    """sums[i][v] += numbers[i][n * stride] * vectors[n * step + 16 v] for n in range(count)."""
    with e.loop(e.const(0), e.opaque(count)) as index:
        at = e.address(vectors, e.ir.mul(index, e.const(step)))
        own = [e.load(e.address(at, e.const(LANES * number))) for number in range(len(sums[0]))]
        for totals, line in zip(sums, numbers, strict=True):
            factor = e.splat(e.load(e.address(line, e.ir.mul(index, e.const(stride))), F32))
            for total, vector in zip(totals, own, strict=True):
                e.ir.store(e.fma(vector, factor, e.ir.load(total, typ=VECTOR)), total)


def _transposed(e: Emitter, lines: list[Value]) -> list[Value]:
    """16 vectors of 16 lanes the other way round: four rounds of interleaving one half with the other."""
    half = LANES // 2
    low = [lane // 2 + LANES * (lane % 2) for lane in range(LANES)]
    masks = [ir.Constant(INTS, [lane + first for lane in low]) for first in (0, half)]
    for _ in range(4):
        pairs = zip(lines[:half], lines[half:], strict=True)
        lines = [e.ir.shuffle_vector(a, b, mask) for a, b in pairs for mask in masks]
    return lines
