"""Attention of decode rows over paged KV, each context split among programs by its length.

`plan_decode` lists the work of a pass on the device, once for all layers of one kind: contexts are
cut into items of whole blocks, so that a long row beside short ones is many items and a short row
one. The last program of a row and head to finish adds up the parts of all, in their order.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention_shape import LOG2E, AttentionShape, padded_dim
from kernels.triton_kv import LayerKV, dequantize_kv, load_keys, load_values
from kernels.triton_types import SUM_WIDTH, Activations, PassTables

SPLITS = 32
"""Items that all contexts of a pass share beyond one each, and the most that one row is cut into."""

MIN_TILES = 2
"""Blocks below which an item is not cut further."""

FIXED_TILES = 4
"""Blocks of an item in the mode where a row's result does not depend on its batch."""

ITEM_FIELDS = tl.constexpr(8)
"""int32 fields of a work item: sequence (-1: none), its first item, its items, first and end block."""

NO_SCORE = tl.constexpr(-1.0e30)
"""Where a running maximum starts: with -inf a fully masked tile would give NaN."""


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """The work of one pass's decode rows, and where its programs meet."""

    items: Tensor
    """int32 [W, 8], see `ITEM_FIELDS`; the items of a row are adjacent."""
    counters: Tensor
    """int32 [num_decode, kv_heads], 0 between launches: how many items of a row have finished."""
    parts: Tensor
    """float32 [W, kv_heads, groups, head_dim], weighted sums of values."""
    tops: Tensor
    """float32 [W, kv_heads, groups, 2], maximum of the scores and sum of the weights."""


def plan_decode(tables: PassTables, shape: AttentionShape, batch_independent: bool = False) -> DecodePlan:
    """Cut the contexts of a pass's decode rows into items, on the device.

    W is num_decode + 32, or 32 num_decode when `batch_independent`: then a row is cut by its own
    length alone, and its result is bit-equal beside any other rows.
    """
    rows, device = tables.num_decode, tables.context_lens.device
    work = rows * SPLITS if batch_independent else rows + SPLITS
    plan = DecodePlan(
        torch.empty((work, ITEM_FIELDS.value), dtype=torch.int32, device=device),
        torch.empty((rows, shape.kv_heads), dtype=torch.int32, device=device),
        torch.empty((work, shape.kv_heads, shape.groups, shape.head_dim), device=device),
        torch.empty((work, shape.kv_heads, shape.groups, 2), device=device),
    )
    if rows:
        _plan_decode[(1,)](
            tables.context_lens,
            plan.items,
            plan.counters,
            ROWS=rows,
            ROWS_PADDED=triton.next_power_of_2(rows),
            WORK=work,
            WORK_PADDED=triton.next_power_of_2(work),
            KV_HEADS=shape.kv_heads,
            BLOCK_SIZE=shape.block_size,
            WINDOW=shape.window,
            SPLITS=SPLITS,
            MIN_TILES=FIXED_TILES if batch_independent else MIN_TILES,
            SHARED=not batch_independent,
            num_warps=4,
        )
    return plan


def attention_decode(
    q: Tensor,
    tables: PassTables,
    layer: LayerKV,
    shape: AttentionShape,
    plan: DecodePlan,
    out: Activations,
    sinks: Tensor | None = None,
) -> None:
    """Attend with the first `num_decode` tokens of a pass, and write their rows of `out`.

    q float16 [T, q_heads, head_dim] from `rope_append`; sinks float32 [q_heads], scores that take
    weight and give no value. Keys and values of the tokens are already in their pages. Rows with a
    context of 0 give zeros.
    """
    if tables.num_decode == 0:
        return
    scales = layer.values if layer.scales is None else layer.scales
    _attention_decode[(plan.items.shape[0], shape.kv_heads)](
        q,
        layer.values,
        scales,
        tables.block_tables,
        tables.context_lens,
        plan.items,
        plan.counters,
        plan.parts,
        plan.tops,
        q if sinks is None else sinks,
        out.values,
        out.sums,
        layer.values.stride(0),
        scales.stride(0),
        tables.block_tables.stride(0),
        KV_HEADS=shape.kv_heads,
        GROUPS=shape.groups,
        ROWS=max(16, triton.next_power_of_2(shape.groups)),
        HEAD_DIM=shape.head_dim,
        DIM=padded_dim(shape.head_dim),
        BLOCK_SIZE=shape.block_size,
        WINDOW=shape.window,
        CAP=shape.score_cap,
        SINKS=sinks is not None,
        QUANTIZED=layer.scales is not None,
        SPLITS=SPLITS,
        WIDTH=SUM_WIDTH,
        num_warps=4,
        num_stages=3,
    )


def attention_torch(
    q: Tensor,
    tables: PassTables,
    layer: LayerKV,
    shape: AttentionShape,
    sinks: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Plain torch twin of decode and prefill attention: → `dtype` [T, q_heads * head_dim].

    Waits for the device. Tokens of no sequence give zeros.
    """
    out = torch.zeros((q.shape[0], shape.q_heads * shape.head_dim), dtype=dtype, device=q.device)
    starts, contexts = tables.query_starts.tolist(), tables.context_lens.tolist()
    pages = dequantize_kv(layer, dtype)
    for i, context in enumerate(contexts):
        rows = slice(starts[i], starts[i + 1])
        count = starts[i + 1] - starts[i]
        if context == 0 or count == 0:
            continue
        table = tables.block_tables[i, : -(-context // shape.block_size)].long()
        keys, values = pages[table].permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :context]
        position = torch.arange(context - count, context, device=q.device)
        out[rows] = _attend_torch(q[rows].to(dtype), keys, values, position, shape, sinks)
    return out


def _attend_torch(
    q: Tensor, keys: Tensor, values: Tensor, position: Tensor, shape: AttentionShape, sinks: Tensor | None
) -> Tensor:
    """q [n, q_heads, D] at `position` [n], keys and values [kv_heads, context, D] → [n, q_heads * D]."""
    grouped = q.unflatten(1, (shape.kv_heads, shape.groups))
    scores = torch.einsum("nhgd,hcd->nhgc", grouped, keys).flatten(1, 2) / LOG2E
    if shape.softcap:
        scores = shape.softcap * torch.tanh(scores / shape.softcap)
    key = torch.arange(keys.shape[1], device=q.device)
    hidden = key > position[:, None]
    if shape.window:
        hidden |= key <= position[:, None] - shape.window
    scores = scores.masked_fill(hidden[:, None], float("-inf"))
    if sinks is not None:
        extra = sinks.to(scores)[None, :, None].expand(scores.shape[0], -1, 1)
        scores = torch.cat((scores, extra), dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : keys.shape[1]]
    weights = weights.unflatten(1, (shape.kv_heads, shape.groups))
    return torch.einsum("nhgc,hcd->nhgd", weights, values).flatten(1)


@triton.jit
def _plan_decode(
    context_lens: tl.tensor,
    items: tl.tensor,
    counters: tl.tensor,
    ROWS: tl.constexpr,
    ROWS_PADDED: tl.constexpr,
    WORK: tl.constexpr,
    WORK_PADDED: tl.constexpr,
    KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    SPLITS: tl.constexpr,
    MIN_TILES: tl.constexpr,
    SHARED: tl.constexpr,
) -> None:
    """Grid (1,): a vector over rows. Writes all 32 W bytes of items and clears the counters.

    With items of ceil(all blocks / SPLITS) blocks the rows need at most one item each beyond SPLITS.
    """
    row = tl.arange(0, ROWS_PADDED)
    real = row < ROWS
    context = tl.load(context_lens + row, mask=real, other=0)
    end = tl.cdiv(context, BLOCK_SIZE)
    first = tl.zeros_like(end)
    if WINDOW > 0:
        first = tl.maximum(context - WINDOW, 0) // BLOCK_SIZE
    tiles = end - first
    if SHARED:
        length = tl.maximum(tl.cdiv(tl.sum(tiles, axis=0), SPLITS), MIN_TILES)
    else:
        length = tl.maximum(tl.cdiv(tiles, SPLITS), MIN_TILES)
    count = tl.where(real, tl.maximum(tl.cdiv(tiles, length), 1), 0)
    start = tl.cumsum(count, axis=0) - count
    for part in range(tl.max(count, axis=0)):
        place = items + (start + part) * ITEM_FIELDS
        wanted = part < count
        tl.store(place, row, mask=wanted)
        tl.store(place + 1, start, mask=wanted)
        tl.store(place + 2, count, mask=wanted)
        tl.store(place + 3, first + part * tiles // tl.maximum(count, 1), mask=wanted)
        tl.store(place + 4, first + (part + 1) * tiles // tl.maximum(count, 1), mask=wanted)
    work = tl.arange(0, WORK_PADDED)
    unused = (work >= tl.sum(count, axis=0)) & (work < WORK)
    tl.store(items + work * ITEM_FIELDS, -1, mask=unused)
    for head in range(KV_HEADS):
        tl.store(counters + row * KV_HEADS + head, 0, mask=real)


@triton.jit
def capped(scores: tl.tensor, CAP: tl.constexpr) -> tl.tensor:
    """CAP · tanh(scores / CAP), where CAP is not 0."""
    if CAP > 0:
        scores = CAP - 2.0 * CAP / (tl.exp2(scores * (2.0 * 1.4426950408889634 / CAP)) + 1.0)
    return scores


@triton.jit
def _write_rows(
    x: tl.tensor,
    out: tl.tensor,
    sums: tl.tensor,
    place: tl.tensor,
    ROWS: tl.constexpr,
    GROUPS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """x float32 [ROWS, DIM], heads from int64 `place` on, as activations."""
    row = tl.arange(0, ROWS)
    d = tl.arange(0, DIM)
    y = x.to(tl.float16)
    kept = (row < GROUPS)[:, None] & (d < HEAD_DIM)[None, :]
    tl.store(out + (place + row[:, None]) * HEAD_DIM + d[None, :], y, mask=kept)
    total = tl.sum(tl.reshape(y.to(tl.float32), (ROWS, DIM // WIDTH, WIDTH)), axis=2)
    group = tl.arange(0, DIM // WIDTH)
    kept = (row < GROUPS)[:, None] & (group < HEAD_DIM // WIDTH)[None, :]
    tl.store(sums + (place + row[:, None]) * (HEAD_DIM // WIDTH) + group[None, :], total, mask=kept)


@triton.jit
def _combine(
    parts: tl.tensor,
    tops: tl.tensor,
    sinks: tl.tensor,
    out: tl.tensor,
    sums: tl.tensor,
    item: tl.tensor,
    count: tl.tensor,
    head: tl.tensor,
    place: tl.tensor,
    KV_HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    SINKS: tl.constexpr,
    SPLITS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """Add up the parts of `count` items from `item` on, in their order, and write the heads."""
    split = tl.arange(0, SPLITS)
    d = tl.arange(0, DIM)
    there = split < count
    kept = there[:, None] & (d < HEAD_DIM)[None, :]
    for group in tl.static_range(GROUPS):
        row = ((item + split).to(tl.int64) * KV_HEADS + head) * GROUPS + group
        part = tl.load(
            parts + row[:, None] * HEAD_DIM + d[None, :], mask=kept, other=0.0, cache_modifier=".cg"
        )
        top = tl.load(tops + row * 2, mask=there, other=NO_SCORE, cache_modifier=".cg")
        total = tl.load(tops + row * 2 + 1, mask=there, other=0.0, cache_modifier=".cg")
        highest = tl.max(top, axis=0)
        if SINKS:
            sink = tl.load(sinks + head * GROUPS + group) * 1.4426950408889634
            highest = tl.maximum(highest, sink)
        weight = tl.exp2(top - highest)
        divisor = tl.sum(weight * total, axis=0)
        if SINKS:
            divisor += tl.exp2(sink - highest)
        y = tl.sum(part * weight[:, None], axis=0) / divisor
        _write_rows(y[None, :], out, sums, place + group, 1, 1, HEAD_DIM, DIM, WIDTH)


@triton.jit(do_not_specialize=["table_width"])
def _attention_decode(
    q: tl.tensor,
    values: tl.tensor,
    scales: tl.tensor,
    block_tables: tl.tensor,
    context_lens: tl.tensor,
    items: tl.tensor,
    counters: tl.tensor,
    parts: tl.tensor,
    tops: tl.tensor,
    sinks: tl.tensor,
    out: tl.tensor,
    sums: tl.tensor,
    block_stride: tl.tensor,
    scale_stride: tl.tensor,
    table_width: tl.tensor,
    KV_HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    CAP: tl.constexpr,
    SINKS: tl.constexpr,
    QUANTIZED: tl.constexpr,
    SPLITS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """Grid (W, KV heads): one item's blocks of one KV head for its GROUPS query heads, padded to ROWS.

    Bytes: the item's keys and values once, 2 · 2 · blocks · BLOCK_SIZE · D for float16.
    """
    item = tl.program_id(0)
    head = tl.program_id(1)
    seq = tl.load(items + item * ITEM_FIELDS)
    if seq < 0:
        return
    first_item = tl.load(items + item * ITEM_FIELDS + 1)
    count = tl.load(items + item * ITEM_FIELDS + 2)
    first = tl.load(items + item * ITEM_FIELDS + 3)
    end = tl.load(items + item * ITEM_FIELDS + 4)
    context = tl.load(context_lens + seq)
    row = tl.arange(0, ROWS)
    d = tl.arange(0, DIM)
    slot = tl.arange(0, BLOCK_SIZE)
    place = (seq.to(tl.int64) * KV_HEADS + head) * GROUPS
    inside = (row < GROUPS)[:, None] & (d < HEAD_DIM)[None, :]
    query = tl.load(q + (place + row[:, None]) * HEAD_DIM + d[None, :], mask=inside, other=0.0)
    top = tl.full((ROWS,), NO_SCORE, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, DIM), tl.float32)
    table = block_tables + seq.to(tl.int64) * table_width
    block = tl.load(table + first)
    for tile in range(first, end):
        page = block.to(tl.int64) * block_stride + head * (BLOCK_SIZE * HEAD_DIM)
        scale_page = block.to(tl.int64) * scale_stride + head * (BLOCK_SIZE * (HEAD_DIM // 32))
        # One step ahead, so that the next tile's address does not wait for memory.
        block = tl.load(table + tile + 1, mask=tile + 1 < end, other=0)
        position = tile * BLOCK_SIZE + slot
        seen = position < context
        if WINDOW > 0:
            seen = seen & (position >= context - WINDOW)
        key = load_keys(values, scales, page, scale_page, HEAD_DIM, DIM, BLOCK_SIZE, QUANTIZED)
        page += KV_HEADS * BLOCK_SIZE * HEAD_DIM
        scale_page += KV_HEADS * BLOCK_SIZE * (HEAD_DIM // 32)
        value = load_values(
            values, scales, page, scale_page, position < context, HEAD_DIM, DIM, BLOCK_SIZE, QUANTIZED, True
        )
        scores = tl.where(seen[None, :], capped(tl.dot(query, key), CAP), NO_SCORE)
        highest = tl.maximum(top, tl.max(scores, axis=1))
        fade = tl.exp2(top - highest)
        weight = tl.exp2(scores - highest[:, None])
        total = total * fade + tl.sum(weight, axis=1)
        acc = tl.dot(weight.to(tl.float16), value, acc * fade[:, None])
        top = highest
    if count == 1:
        if SINKS:
            sink = tl.load(sinks + head * GROUPS + row, mask=row < GROUPS, other=0.0) * 1.4426950408889634
            highest = tl.maximum(top, sink)
            total = total * tl.exp2(top - highest) + tl.exp2(sink - highest)
            acc = acc * tl.exp2(top - highest)[:, None]
        acc = acc / tl.where(total > 0, total, 1.0)[:, None]
        _write_rows(acc, out, sums, place, ROWS, GROUPS, HEAD_DIM, DIM, WIDTH)
    else:
        part = (item.to(tl.int64) * KV_HEADS + head) * GROUPS + row
        tl.store(parts + part[:, None] * HEAD_DIM + d[None, :], acc, mask=inside)
        tl.store(tops + part * 2, top, mask=row < GROUPS)
        tl.store(tops + part * 2 + 1, total, mask=row < GROUPS)
        # All threads' parts must be written before one of them counts this item as done.
        tl.debug_barrier()
        counter = counters + seq * KV_HEADS + head
        arrived = tl.atomic_add(counter, 1, sem="acq_rel")
        if arrived == count - 1:
            tl.store(counter, 0)
            _combine(
                parts, tops, sinks, out, sums, first_item, count, head, place,
                KV_HEADS, GROUPS, HEAD_DIM, DIM, SINKS, SPLITS, WIDTH,
            )  # fmt: skip
