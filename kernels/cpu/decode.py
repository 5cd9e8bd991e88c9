"""Residual norms and attention of decode rows on CPUs, each one compiled kernel."""

import torch
from llvmlite import ir
from torch import Tensor

from kernels.cpu.compiler import (
    F32,
    I16,
    I64,
    INTS,
    LANES,
    SHORTS,
    VECTOR,
    Emitter,
    Value,
    compiled,
    threads_for,
)
from kernels.reference.paged_kv import PagedKV

_HALVES = ir.VectorType(ir.HalfType(), LANES)
_HIDDEN = -1e30
_NORM_ROWS_PER_THREAD = 16


def add_norm(residual: Tensor, delta: Tensor | None, weight: Tensor, eps_length: Tensor) -> Tensor:
    """residual float32 [T, dim] += delta, in place; returns its RMS norm (weight holds sqrt(dim))."""
    rows, dim = residual.shape
    out = torch.empty_like(residual)
    _norm_kernel(delta is not None)(
        threads_for(rows // _NORM_ROWS_PER_THREAD), rows, 1, dim, residual.data_ptr(),
        0 if delta is None else delta.data_ptr(), weight.data_ptr(), eps_length.data_ptr(), out.data_ptr(),
    )  # fmt: skip
    return out


def attend_decode(
    qkv: Tensor,
    rotation: Tensor,
    norm: tuple[Tensor, Tensor] | None,
    kv: PagedKV,
    layer: int,
    tables: Tensor,
    starts: Tensor,
    contexts: Tensor,
    scale: float,
) -> Tensor:
    """A few new tokens of each sequence: norm and rotate q and k, write k and v, attend causally.

    qkv float32 [T, (q_heads + 2 kv_heads) * dim]; rotation complex64 [T, dim / 2]; norm the weights
    [q_heads + kv_heads, dim] and the length of eps; tables int64 [S, W]; starts int64 [S + 1], each
    sequence's first row; contexts int64 [S], of that row → float32 [T, q_heads * dim]. A block and
    the dimension are multiples of 16. A row's result is the same with and without rows behind it.
    """
    rows, dim = qkv.shape[0], kv.head_dim
    q_heads = qkv.shape[1] // dim - 2 * kv.kv_heads
    cache_layer = kv.layers[layer]
    out = torch.empty(rows, q_heads * dim)
    items = tables.shape[0] * kv.kv_heads
    scale_at = torch.tensor(scale)
    attention_kernel(dim, norm is not None, cache_layer.dtype)(
        threads_for(items), items, 1, kv.kv_heads, q_heads // kv.kv_heads, kv.block_size, qkv.data_ptr(),
        rotation.data_ptr(), *((0, 0) if norm is None else (part.data_ptr() for part in norm)),
        scale_at.data_ptr(), cache_layer.data_ptr(), cache_layer.shape[1], tables.data_ptr(),
        tables.shape[1], starts.data_ptr(), contexts.data_ptr(), out.data_ptr(),
    )  # fmt: skip
    return out


@compiled
def _norm_kernel(added: bool) -> ir.Module:
    """One thread takes rows."""
    e = Emitter(f"add_norm_{int(added)}")
    rows, chunk, dim = (e.parameter(index) for index in range(1, 4))
    residual, delta, weight, eps_length, out = (e.pointer(index) for index in range(4, 9))
    with e.pieces(rows, chunk) as row:
        start = e.ir.mul(row, dim)
        line, normed = e.address(residual, start), e.address(out, start)
        squares = e.variable(e.vector(0.0))
        with e.loop(e.const(0), dim, LANES) as column:
            value = e.load(e.address(line, column))
            if added:
                value = e.ir.fadd(value, e.load(e.address(e.address(delta, start), column)))
                e.store(value, e.address(line, column))
            e.ir.store(e.fma(value, value, e.ir.load(squares, typ=VECTOR)), squares)
        factor = _inverse_length(e, e.ir.load(squares, typ=VECTOR), eps_length)
        with e.loop(e.const(0), dim, LANES) as column:
            value = e.ir.fmul(e.load(e.address(line, column)), factor)
            value = e.ir.fmul(value, e.load(e.address(weight, column)))
            e.store(value, e.address(normed, column))
    return e.finish()


def _inverse_length(e: Emitter, squares: Value, eps_length: Value) -> Value:
    """1 / sqrt(sum of squares + eps_length²) in every lane."""
    length = e.splat(e.load(eps_length, F32))
    total = e.fma(length, length, e.splat(e.sum(squares)))
    return e.ir.fdiv(e.vector(1.0), e.call("llvm.sqrt", total))


@compiled
def attention_kernel(dim: int, normed: bool, dtype: torch.dtype) -> ir.Module:
    """One thread takes (sequence, kv head) pairs; each row in turn reads what those before it wrote."""
    e = Emitter(f"attend_{dim}_{int(normed)}_{str(dtype).removeprefix('torch.')}")
    items, chunk, kv_heads, groups, block_size = (e.parameter(index) for index in range(1, 6))
    qkv, rotation, weight, eps_length, scale, layer = (e.pointer(index) for index in range(6, 12))
    slots, tables, width = e.parameter(12), e.pointer(13), e.parameter(14)
    starts, contexts, out = e.pointer(15), e.pointer(16), e.pointer(17)
    q_heads = e.ir.mul(groups, kv_heads)
    line_size = e.ir.mul(e.ir.add(q_heads, e.ir.add(kv_heads, kv_heads)), e.const(dim))
    factor = e.splat(e.load(scale, F32))
    buffer = e.array(LANES)
    with e.pieces(items, chunk) as item:
        sequence, head = e.ir.sdiv(item, kv_heads), e.ir.srem(item, kv_heads)
        table = e.address(tables, e.ir.mul(sequence, width), I64)
        first_context = e.load(e.address(contexts, sequence, I64), I64)
        first = e.load(e.address(starts, sequence, I64), I64)
        end = e.load(e.address(starts, e.ir.add(sequence, e.const(1)), I64), I64)

        def place(position: Value, of: Value) -> Value:
            block = e.load(e.address(table, e.ir.sdiv(position, block_size), I64), I64)
            slot = e.ir.add(e.ir.mul(block, block_size), e.ir.srem(position, block_size))
            return e.ir.mul(e.ir.add(e.ir.mul(of, slots), slot), e.const(dim))

        with e.loop(first, end) as row:
            context = e.ir.add(first_context, e.ir.sub(row, first))
            line = e.address(qkv, e.ir.mul(row, line_size))
            angles = e.address(rotation, e.ir.mul(row, e.const(dim)))

            def rotated(number: Value, line: Value = line, angles: Value = angles) -> list[Value]:
                at = e.ir.mul(number, e.const(dim))
                scales = e.address(weight, at) if normed else None
                return _rotate(e, _head(e, e.address(line, at), dim), angles, scales, eps_length)

            value_head = e.ir.add(head, kv_heads)
            newest = e.ir.sub(context, e.const(1))
            key = rotated(e.ir.add(head, q_heads))
            value_at = e.ir.mul(e.ir.add(value_head, q_heads), e.const(dim))
            _write(e, key, layer, place(newest, head), dtype)
            _write(e, _head(e, e.address(line, value_at), dim), layer, place(newest, value_head), dtype)
            with e.loop(e.const(0), groups) as member:
                number = e.ir.add(e.ir.mul(head, groups), member)
                query = [e.ir.fmul(part, factor) for part in rotated(number)]
                running = _Softmax(e, dim)
                with e.loop(e.const(0), context, LANES) as position:
                    count = e.smaller(e.ir.sub(context, position), e.const(LANES))
                    keys, values = place(position, head), place(position, value_head)
                    e.store(e.vector(_HIDDEN), buffer)
                    with e.loop(e.const(0), count) as index:
                        parts = _read(e, layer, e.ir.add(keys, e.ir.mul(index, e.const(dim))), dim, dtype)
                        e.store(_dot(e, query, parts), e.address(buffer, index))
                    e.store(running.step(e.load(buffer)), buffer)
                    with e.loop(e.const(0), count) as index:
                        parts = _read(e, layer, e.ir.add(values, e.ir.mul(index, e.const(dim))), dim, dtype)
                        running.add(e.splat(e.load(e.address(buffer, index), F32)), parts)
                at = e.ir.add(e.ir.mul(row, q_heads), number)
                target = e.address(out, e.ir.mul(at, e.const(dim)))
                for part, value in enumerate(running.result()):
                    e.store(value, e.address(target, e.const(LANES * part)))
    return e.finish()


class _Softmax:
    """A running softmax over the values of one query (Milakov and Gimelshein 2018)."""

    def __init__(self, e: Emitter, dim: int) -> None:
        self.e = e
        self.highest = e.variable(e.vector(_HIDDEN))
        self.total = e.variable(e.vector(0.0))
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

    def add(self, weight: Value, values: list[Value]) -> None:
        """One value vector."""
        for part, value in zip(self.sums, values, strict=True):
            self.e.ir.store(self.e.fma(weight, value, self.e.ir.load(part, typ=VECTOR)), part)

    def result(self) -> list[Value]:
        """The weighted mean."""
        e = self.e
        factor = e.ir.fdiv(e.vector(1.0), e.splat(e.sum(e.ir.load(self.total, typ=VECTOR))))
        return [e.ir.fmul(e.ir.load(part, typ=VECTOR), factor) for part in self.sums]


def _head(e: Emitter, base: Value, dim: int) -> list[Value]:
    return [e.load(e.address(base, e.const(LANES * part))) for part in range(dim // LANES)]


def _rotate(
    e: Emitter, parts: list[Value], angles: Value, scales: Value | None, eps_length: Value
) -> list[Value]:
    """Norm by `scales`, then turn neighbours by (cos, sin) pairs."""
    if scales is not None:
        squares = e.vector(0.0)
        for part in parts:
            squares = e.fma(part, part, squares)
        factor = _inverse_length(e, squares, eps_length)
        parts = [
            e.ir.fmul(e.ir.fmul(part, factor), scale)
            for part, scale in zip(parts, _head(e, scales, LANES * len(parts)), strict=True)
        ]
    even = [lane - lane % 2 for lane in range(LANES)]
    signs = ir.Constant(VECTOR, [-1.0, 1.0] * (LANES // 2))
    turned = []
    for part, pairs in zip(parts, _head(e, angles, LANES * len(parts)), strict=True):
        sine = e.ir.fmul(e.shuffle(pairs, [lane + 1 for lane in even]), signs)
        swapped = e.shuffle(part, [lane ^ 1 for lane in range(LANES)])
        turned.append(e.fma(part, e.shuffle(pairs, even), e.ir.fmul(swapped, sine)))
    return turned


def _dot(e: Emitter, a: list[Value], b: list[Value]) -> Value:
    total = e.ir.fmul(a[0], b[0])
    for first, second in zip(a[1:], b[1:], strict=True):
        total = e.fma(first, second, total)
    return e.sum(total)


def _read(e: Emitter, layer: Value, at: Value, dim: int, dtype: torch.dtype) -> list[Value]:
    if dtype is torch.float32:
        return _head(e, e.address(layer, at), dim)
    places = [e.address(layer, e.ir.add(at, e.const(LANES * part)), I16) for part in range(dim // LANES)]
    if dtype is torch.float16:
        return [e.ir.fpext(e.load(place, _HALVES), VECTOR) for place in places]
    sixteen = ir.Constant(INTS, [16] * LANES)
    return [
        e.ir.bitcast(e.ir.shl(e.ir.zext(e.load(place, SHORTS), INTS), sixteen), VECTOR) for place in places
    ]


def _write(e: Emitter, parts: list[Value], layer: Value, at: Value, dtype: torch.dtype) -> None:
    for number, part in enumerate(parts):
        kind = F32 if dtype is torch.float32 else I16
        place = e.address(layer, e.ir.add(at, e.const(LANES * number)), kind)
        if dtype is torch.float16:
            part = e.ir.fptrunc(part, _HALVES)
        elif dtype is torch.bfloat16:
            part = e.to_bfloat16(part)
        e.store(part, place)
