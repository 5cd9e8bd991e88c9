"""Attention of decode rows over paged KV, each context split among programs by its length.

The splits of a plan run side by side; the last program of a row and head to finish adds up the partials
of all of them, in their order. `attend_decode` is the whole attention of a decode layer in one
kernel: it also sums, normalises, rotates and appends.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention.decode_append import BRANCHING_DIM, append_token, repeated, repeated_columns
from kernels.attention.decode_plan import FEW_ROWS, SPLIT_FIELDS, DecodePlan, plan_decode
from kernels.attention.decode_split import attend_blocks, finish_split, load_both, load_split
from kernels.attention.rope_append import temperature_at
from kernels.attention.shape import AttentionShape, padded_dim
from kernels.attention.softmax import NO_SCORE
from kernels.cuda.activations import SUM_WIDTH, Activations, PassTables, has_ptx
from kernels.cuda.early import early, let_next_start, wait_for_inputs
from kernels.cuda.gpu import gpu_of
from kernels.kv.pages import LayerKV

__all__ = ["DecodePlan", "attend_decode", "attention_decode", "plan_decode"]

WARPS = 4

MANY_ROWS = 16
"""Rows from which on programs are long enough for a deeper pipeline, 4 stages for 3. Up to `FEW_ROWS` have 2
where tiles are large: more programs run at once."""

FEW_HEADS = 4
"""KV heads up to which few rows are so few programs that each has twice the threads, and its first tile of
keys and values before its inputs are there: with 8 heads eight rows took 17 us instead of 12."""

TILE_VALUES = 8192
"""Keys of a step of the loop hold so many values where a block holds more: long heads have smaller tiles."""

LEAST_TILE = 32

SPARE = 8 << 10
"""Bytes of shared memory that the loop's tiles leave to everything else."""

COMBINED, FEW_COMBINED, COMBINED_VALUES = 16, 8, 16384
"""Parts that are added up in one step, those of up to `FEW_ROWS` rows, and the most values of them: all are
on their way before the first is used."""

LONG_HEAD = 256
"""Values of a head beyond which a program needs twice the threads for their registers."""


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
    _launch(q, None, None, 0.0, tables, layer, shape, plan, out, sinks, False, False)


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
    overlaps: bool = False,
    follows_plan: bool = False,
) -> None:
    """`rope_append` and `attention_decode` of a pass's first `num_decode` tokens, in one kernel.

    qkv float32 or float16 [S, T, (q_heads + 2 kv_heads) * head_dim], added up over S in index order;
    qk_norm as of `rope_append`; plan made with the rotation. Rows with a context of 0 give zeros and
    write nothing. overlaps: whether the next kernel has work before it needs the result, and starts at once.
    follows_plan: whether the plan is what was launched before this; else all but qkv was there before that.
    """
    if plan.rotation is None:
        raise ValueError("the plan holds no rotation")
    _launch(None, qkv, qk_norm, eps, tables, layer, shape, plan, out, sinks, overlaps, follows_plan)


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
    overlaps: bool,
    follows_plan: bool,
) -> None:
    rows = tables.num_decode
    if rows == 0:
        return
    scales = layer.values if layer.scales is None else layer.scales
    source = q if qkv is None else qkv
    _attention_decode[(plan.splits.shape[0], shape.kv_heads)](
        source,
        layer.values,
        scales,
        tables.block_tables,
        tables.slots,
        plan.splits,
        plan.counters,
        plan.partials,
        plan.row_stats,
        plan.cos_sin,
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
        SINKS=sinks is not None,
        QUANTIZED=layer.scales is not None,
        APPEND=qkv is not None,
        QKV_SPLITS=0 if qkv is None else qkv.shape[0],
        NORM=shape.norm(qk_norm),
        PAIRS=plan.pairs,
        ADJACENT=plan.adjacent,
        FAST=has_ptx(layer.values),
        WIDTH=SUM_WIDTH,
        OVERLAPS=overlaps,
        HELD=qkv is not None and _few_programs(shape, rows),
        num_stages=_stages(shape, rows, gpu_of(out.values).shared, _wide(layer)),
        **early(layer.values, starts_early=not follows_plan),
        **_options(shape, rows, _wide(layer)),
    )


def _few_programs(shape: AttentionShape, rows: int) -> bool:
    """Whether each of them had better have more threads and start before its inputs are there."""
    return rows <= FEW_ROWS and shape.kv_heads <= FEW_HEADS and shape.head_dim <= LONG_HEAD


def _wide(layer: LayerKV) -> bool:
    """Whether tiles are float32."""
    return layer.values.dtype is torch.float32


def _tile(shape: AttentionShape, wide: bool = False) -> int:
    """Tokens of one step of the loop; half as many of float32, whose products take more registers."""
    tokens = max(LEAST_TILE, TILE_VALUES // padded_dim(shape.head_dim))
    return min(shape.block_size, tokens // 2 if wide else tokens)


def _stages(shape: AttentionShape, rows: int, shared: int, wide: bool = False) -> int:
    """Tiles of keys and values on their way at once."""
    values, size = _tile(shape, wide) * padded_dim(shape.head_dim), (8 if wide else 4)
    few = rows <= FEW_ROWS and values >= TILE_VALUES and shape.head_dim <= LONG_HEAD
    wanted = 4 if rows >= MANY_ROWS else 2 if few else 3
    return max(1, min(wanted, (shared - SPARE) // (size * values)))


def _options(shape: AttentionShape, rows: int, wide: bool) -> dict[str, Any]:
    padded = triton.next_power_of_2(shape.groups)
    combined = FEW_COMBINED if rows <= FEW_ROWS and shape.head_dim <= LONG_HEAD else COMBINED
    wider = shape.head_dim > LONG_HEAD or _few_programs(shape, rows)
    return {
        "ROWS": padded,
        "COLUMNS": max(8, padded),
        "STEP": max(1, min(combined, COMBINED_VALUES // (padded * padded_dim(shape.head_dim)))),
        "NORMED_HEADS": shape.normed_heads,
        "num_warps": 2 * WARPS if wider else WARPS,
        "KV_HEADS": shape.kv_heads,
        "GROUPS": shape.groups,
        "HEAD_DIM": shape.head_dim,
        "DIM": padded_dim(shape.head_dim),
        "BLOCK_SIZE": shape.block_size,
        "TILE": _tile(shape, wide),
        "WINDOW": shape.window,
        "CAP": shape.score_cap,
        "TEMPERATURE": shape.temperature,
        "TEMPERATURE_LENGTH": shape.temperature_length,
    }


@triton.jit(do_not_specialize=["table_width", "num_tokens"])
def _attention_decode(
    source: tl.tensor,
    values: tl.tensor,
    scales: tl.tensor,
    block_tables: tl.tensor,
    slots: tl.tensor,
    splits: tl.tensor,
    counters: tl.tensor,
    partials: tl.tensor,
    row_stats: tl.tensor,
    cos_sin: tl.tensor,
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
    COLUMNS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    CAP: tl.constexpr,
    SINKS: tl.constexpr,
    QUANTIZED: tl.constexpr,
    APPEND: tl.constexpr,
    QKV_SPLITS: tl.constexpr,
    NORM: tl.constexpr,
    NORMED_HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
    ADJACENT: tl.constexpr,
    STEP: tl.constexpr,
    TEMPERATURE: tl.constexpr,
    TEMPERATURE_LENGTH: tl.constexpr,
    FAST: tl.constexpr,
    WIDTH: tl.constexpr,
    OVERLAPS: tl.constexpr,
    HELD: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    """Grid (W, KV heads): one split's blocks of one KV head for its GROUPS query heads.

    Keys and values are the rows of a matrix product, queries its columns, alone padded to 8. Bytes: keys and
    values once, 4 · blocks · BLOCK_SIZE · D for float16. With APPEND the source is the projections' partial
    sums, and who has the newest block starts from the new token. HELD: whether all else is loaded first.
    """
    if not HELD:
        wait_for_inputs(EARLY)
        let_next_start(EARLY and OVERLAPS)
    split, head = tl.program_id(0), tl.program_id(1)
    fields = splits + split * SPLIT_FIELDS
    seq = tl.load(fields)
    if seq < 0:
        wait_for_inputs(EARLY)
        return
    first_split, count, first, end, context, block, following = load_split(fields)
    acc, written = tl.zeros((DIM, COLUMNS), tl.float32), context - 1 if APPEND else context
    held: tl.constexpr = 0
    if HELD:
        held = load_both(
            values, scales, block, first * (BLOCK_SIZE // TILE), written, head, block_stride, scale_stride,
            KV_HEADS, HEAD_DIM, DIM, BLOCK_SIZE, TILE, QUANTIZED, FAST,
        )  # fmt: skip
    row, d = tl.arange(0, ROWS), tl.arange(0, DIM)
    place = (seq.to(tl.int64) * KV_HEADS + head) * GROUPS
    row_max, row_sum = tl.full((COLUMNS,), NO_SCORE, tl.float32), tl.zeros((COLUMNS,), tl.float32)
    if APPEND:
        newest = (end * BLOCK_SIZE >= context) & (context > 0)
        grown = q_scale * temperature_at(context - 1, TEMPERATURE, TEMPERATURE_LENGTH)
        query, own_score, own_value = append_token(
            source, values, scales, slots, cos_sin, norm, seq, head, newest, block_stride, scale_stride,
            num_tokens, eps, grown, KV_HEADS, GROUPS, ROWS, HEAD_DIM, DIM, BLOCK_SIZE, CAP, QUANTIZED,
            QKV_SPLITS, NORM, NORMED_HEADS, PAIRS, ADJACENT, HELD, OVERLAPS, EARLY,
        )  # fmt: skip
        if newest | (DIM > BRANCHING_DIM):
            row_max = tl.where(newest, repeated(own_score, COLUMNS), row_max)
            row_sum = tl.where(newest, row_sum + 1.0, row_sum)
            acc = tl.where(newest, acc + own_value[:, None], acc)
    else:
        inside = (row < GROUPS)[:, None] & (d < HEAD_DIM)[None, :]
        query = tl.load(source + (place + row[:, None]) * HEAD_DIM + d[None, :], mask=inside, other=0.0)
    row_max, row_sum, acc = attend_blocks(
        repeated_columns(query, COLUMNS), row_max, row_sum, acc, values, scales,
        block_tables + seq.to(tl.int64) * table_width, block, following, first, end, context, written,
        head, block_stride, scale_stride, held, KV_HEADS, HEAD_DIM, DIM, BLOCK_SIZE, TILE, WINDOW, CAP,
        QUANTIZED, FAST, HELD,
    )  # fmt: skip
    let_next_start(EARLY and not OVERLAPS)
    finish_split(
        row_max, row_sum, acc, partials, row_stats, counters + seq * KV_HEADS + head, sinks, out, sums, split,
        first_split, count, head, place, KV_HEADS, GROUPS, HEAD_DIM, DIM, SINKS, STEP, ROWS, WIDTH,
    )  # fmt: skip
