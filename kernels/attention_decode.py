"""Attention of decode rows over paged KV, each context split among programs by its length.

The items of a plan run side by side; the last program of a row and head to finish adds up the parts
of all of them, in their order. `attend_decode` is the whole attention of a decode layer in one
kernel: it also sums, normalises, rotates and appends.
"""

import triton
import triton.language as tl
from torch import Tensor

from kernels import attention_plan
from kernels.attention_parts import LOG2_E, NO_SCORE, capped, combine_parts, write_heads
from kernels.attention_plan import ITEM_FIELDS, DecodePlan, plan_decode
from kernels.attention_shape import AttentionShape, padded_dim
from kernels.rope_append import rotate_heads
from kernels.triton_kv import LayerKV, load_keys, load_values, store_heads
from kernels.triton_types import SUM_WIDTH, Activations, PassTables

__all__ = ["DecodePlan", "attend_decode", "attention_decode", "plan_decode"]

WARPS, STAGES = 4, 3

PART_REGISTERS = 64
"""Registers of a thread that hold parts while they are added up."""


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
    _launch(q, None, None, 0.0, tables, layer, shape, plan, out, sinks)


def attend_decode(
    qkv: Tensor,
    tables: PassTables,
    layer: LayerKV,
    shape: AttentionShape,
    plan: DecodePlan,
    out: Activations,
    qk_norm: Tensor | None = None,
    eps: float = 0.0,
    sinks: Tensor | None = None,
) -> None:
    """`rope_append` and `attention_decode` of a pass's first `num_decode` tokens, in one kernel.

    qkv float32 or float16 [S, T, (q_heads + 2 kv_heads) * head_dim], added up over S in index order;
    qk_norm float32 [q_heads + kv_heads, head_dim]; plan made with the rotation. Rows with a context
    of 0 give zeros and write nothing.
    """
    if plan.rotation is None:
        raise ValueError("the plan holds no rotation")
    _launch(None, qkv, qk_norm, eps, tables, layer, shape, plan, out, sinks)


def _launch(
    q: Tensor | None,
    qkv: Tensor | None,
    qk_norm: Tensor | None,
    eps: float,
    tables: PassTables,
    layer: LayerKV,
    shape: AttentionShape,
    plan: DecodePlan,
    out: Activations,
    sinks: Tensor | None,
) -> None:
    if tables.num_decode == 0:
        return
    scales = layer.values if layer.scales is None else layer.scales
    source = q if qkv is None else qkv
    rotation = plan.rotation
    held = shape.groups + (0 if qkv is None else 2)
    padded = triton.next_power_of_2(shape.groups)
    dim = padded_dim(shape.head_dim)
    _attention_decode[(plan.items.shape[0], shape.kv_heads)](
        source,
        layer.values,
        scales,
        tables.block_tables,
        tables.slots,
        plan.items,
        plan.counters,
        plan.parts,
        plan.tops,
        plan.turns,
        source if qk_norm is None else qk_norm,
        source if sinks is None else sinks,
        out.values,
        out.sums,
        layer.values.stride(0),
        scales.stride(0),
        tables.block_tables.stride(0),
        tables.num_tokens,
        eps,
        shape.q_scale,
        KV_HEADS=shape.kv_heads,
        GROUPS=shape.groups,
        ROWS=max(16, triton.next_power_of_2(held)),
        HEAD_DIM=shape.head_dim,
        DIM=dim,
        BLOCK_SIZE=shape.block_size,
        WINDOW=shape.window,
        CAP=shape.score_cap,
        SINKS=sinks is not None,
        QUANTIZED=layer.scales is not None,
        APPEND=qkv is not None,
        PARTIALS=0 if qkv is None else qkv.shape[0],
        NORM=qk_norm is not None,
        PAIRS=1 if rotation is None else rotation.inv_freq.shape[0],
        ADJACENT=rotation is not None and rotation.pairing == "adjacent",
        SPLITS=attention_plan.SPLITS,
        STEP=min(attention_plan.SPLITS, max(1, PART_REGISTERS * 32 * WARPS // (padded * dim))),
        COMBINED_ROWS=padded,
        WIDTH=SUM_WIDTH,
        num_warps=WARPS,
        num_stages=STAGES,
    )


@triton.jit(do_not_specialize=["table_width", "num_tokens"])
def _attention_decode(
    source: tl.tensor,
    values: tl.tensor,
    scales: tl.tensor,
    block_tables: tl.tensor,
    slots: tl.tensor,
    items: tl.tensor,
    counters: tl.tensor,
    parts: tl.tensor,
    tops: tl.tensor,
    turns: tl.tensor,
    norm: tl.tensor,
    sinks: tl.tensor,
    out: tl.tensor,
    sums: tl.tensor,
    block_stride: tl.tensor,
    scale_stride: tl.tensor,
    table_width: tl.tensor,
    num_tokens: tl.tensor,
    eps: tl.tensor,
    q_scale: tl.tensor,
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
    APPEND: tl.constexpr,
    PARTIALS: tl.constexpr,
    NORM: tl.constexpr,
    PAIRS: tl.constexpr,
    ADJACENT: tl.constexpr,
    SPLITS: tl.constexpr,
    STEP: tl.constexpr,
    COMBINED_ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """Grid (W, KV heads): one item's blocks of one KV head for its GROUPS query heads, padded to ROWS.

    Bytes: the item's keys and values once, 2 · 2 · blocks · BLOCK_SIZE · D for float16. With APPEND
    the source is the projections' partial sums, and the item of the newest block starts from the new
    token's own key and value, which no program reads from the page.
    """
    item = tl.program_id(0)
    head = tl.program_id(1)
    fields = items + item * ITEM_FIELDS
    seq = tl.load(fields)
    if seq < 0:
        return
    first_item = tl.load(fields + 1)
    count = tl.load(fields + 2)
    first = tl.load(fields + 3)
    end = tl.load(fields + 4)
    context = tl.load(fields + 5)
    block = tl.load(fields + 6)
    row = tl.arange(0, ROWS)
    d = tl.arange(0, DIM)
    slot = tl.arange(0, BLOCK_SIZE)
    place = (seq.to(tl.int64) * KV_HEADS + head) * GROUPS
    inside = (row < GROUPS)[:, None] & (d < HEAD_DIM)[None, :]
    if APPEND:
        newest = (end * BLOCK_SIZE >= context) & (context > 0)
        query, top, total, acc = _append(
            source, values, scales, slots, turns, norm, seq, head, newest,
            block_stride, scale_stride, num_tokens, eps, q_scale, KV_HEADS, GROUPS, ROWS, HEAD_DIM, DIM,
            BLOCK_SIZE, CAP, QUANTIZED, PARTIALS, NORM, PAIRS, ADJACENT,
        )  # fmt: skip
        written = context - 1
    else:
        query = tl.load(source + (place + row[:, None]) * HEAD_DIM + d[None, :], mask=inside, other=0.0)
        top = tl.full((ROWS,), NO_SCORE, tl.float32)
        total = tl.zeros((ROWS,), tl.float32)
        acc = tl.zeros((ROWS, DIM), tl.float32)
        written = context
    # Kept by column until the end: a sum over columns crosses the program's threads.
    totals = tl.zeros((ROWS, BLOCK_SIZE), tl.float32)
    table = block_tables + seq.to(tl.int64) * table_width
    for tile in range(first, end):
        page = block.to(tl.int64) * block_stride + head * (BLOCK_SIZE * HEAD_DIM)
        scale_page = block.to(tl.int64) * scale_stride + head * (BLOCK_SIZE * (HEAD_DIM // 32))
        # One step ahead, so that the next tile's address does not wait for memory.
        block = tl.load(table + tile + 1, mask=tile + 1 < end, other=0)
        position = tile * BLOCK_SIZE + slot
        seen = position < written
        if WINDOW > 0:
            seen = seen & (position >= context - WINDOW)
        key = load_keys(values, scales, page, scale_page, HEAD_DIM, DIM, BLOCK_SIZE, QUANTIZED)
        page += KV_HEADS * BLOCK_SIZE * HEAD_DIM
        scale_page += KV_HEADS * BLOCK_SIZE * (HEAD_DIM // 32)
        value = load_values(
            values, scales, page, scale_page, position < written, HEAD_DIM, DIM, BLOCK_SIZE, QUANTIZED, True
        )
        scores = tl.where(seen[None, :], capped(tl.dot(query, key), CAP), NO_SCORE)
        highest = tl.maximum(top, tl.max(scores, axis=1))
        fade = tl.exp2(top - highest)
        weight = tl.exp2(scores - highest[:, None])
        total = total * fade
        totals = totals * fade[:, None] + weight
        acc = tl.dot(weight.to(tl.float16), value, acc * fade[:, None])
        top = highest
    total += tl.sum(totals, axis=1)
    if count == 1:
        if SINKS:
            sink = tl.load(sinks + head * GROUPS + row, mask=row < GROUPS, other=0.0) * LOG2_E
            highest = tl.maximum(top, sink)
            total = total * tl.exp2(top - highest) + tl.exp2(sink - highest)
            acc = acc * tl.exp2(top - highest)[:, None]
        acc = acc / tl.where(total > 0, total, 1.0)[:, None]
        write_heads(acc, out, sums, place + row, row < GROUPS, HEAD_DIM, WIDTH)
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
            combine_parts(
                parts, tops, sinks, out, sums, first_item, count, head, place,
                KV_HEADS, GROUPS, HEAD_DIM, DIM, SINKS, SPLITS, STEP, COMBINED_ROWS, WIDTH,
            )  # fmt: skip


@triton.jit
def _append(
    qkv: tl.tensor,
    values: tl.tensor,
    scales: tl.tensor,
    slots: tl.tensor,
    turns: tl.tensor,
    norm: tl.tensor,
    seq: tl.tensor,
    head: tl.tensor,
    newest: tl.tensor,
    block_stride: tl.tensor,
    scale_stride: tl.tensor,
    num_tokens: tl.tensor,
    eps: tl.tensor,
    q_scale: tl.tensor,
    KV_HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    CAP: tl.constexpr,
    QUANTIZED: tl.constexpr,
    PARTIALS: tl.constexpr,
    NORM: tl.constexpr,
    PAIRS: tl.constexpr,
    ADJACENT: tl.constexpr,
) -> tuple:
    """The queries of a row and KV head, and where its softmax starts.

    Rows of one tile: GROUPS query heads, the key, the value. Where `newest` holds, key and value are
    written to their slot and are the first step of the softmax; elsewhere the softmax starts empty.
    """
    row = tl.arange(0, ROWS)
    d = tl.arange(0, DIM)
    heads: tl.constexpr = GROUPS * KV_HEADS
    own = tl.where(row < GROUPS, head * GROUPS + row, heads + head + (row - GROUPS) * KV_HEADS)
    appended = (row >= GROUPS) & (row < tl.where(newest, GROUPS + 2, GROUPS))
    width: tl.constexpr = (heads + 2 * KV_HEADS) * HEAD_DIM
    cos = tl.load(turns + seq * (2 * DIM) + d)
    sin = tl.load(turns + seq * (2 * DIM) + DIM + d)
    slot = tl.load(slots + seq)
    x = rotate_heads(
        qkv, seq.to(tl.int64) * width, own, (row < GROUPS) | appended, cos, sin, norm,
        num_tokens.to(tl.int64) * width, eps, heads + KV_HEADS,
        PARTIALS, HEAD_DIM, DIM, PAIRS, ADJACENT, NORM,
    )  # fmt: skip
    query = tl.where((row < GROUPS)[:, None], x * q_scale, 0.0).to(tl.float16)
    # Keys and values of a block are planes of KV_HEADS heads each.
    step: tl.constexpr = KV_HEADS * BLOCK_SIZE
    offset = head * BLOCK_SIZE + slot % BLOCK_SIZE - GROUPS * step
    block = slot // BLOCK_SIZE
    stored = store_heads(
        values, scales, x, block * block_stride + offset * HEAD_DIM,
        block * scale_stride + offset * (HEAD_DIM // 32), step, appended, HEAD_DIM, ROWS, DIM, QUANTIZED,
    )  # fmt: skip
    key = tl.sum(tl.where((row == GROUPS)[:, None], stored, 0.0), axis=0)
    value = tl.sum(tl.where((row == GROUPS + 1)[:, None], stored, 0.0), axis=0)
    score = capped(tl.sum(query.to(tl.float32) * key[None, :], axis=1), CAP)
    top = tl.where(newest, score, NO_SCORE)
    total = tl.where(newest, tl.full((ROWS,), 1.0, tl.float32), 0.0)
    acc = tl.where(newest, tl.zeros((ROWS, DIM), tl.float32) + value[None, :], 0.0)
    return query, top, total, acc
