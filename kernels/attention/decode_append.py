"""A decode row's new token inside the attention kernel: its queries, its key and value, their page."""

import triton
import triton.language as tl

from kernels.attention.rope_append import rotate_heads
from kernels.attention.softmax import capped
from kernels.kv.tiles import store_heads


@triton.jit
def _store_token(
    values: tl.tensor,
    scales: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    slot: tl.tensor,
    head: tl.tensor,
    wanted: tl.tensor,
    block_stride: tl.tensor,
    scale_stride: tl.tensor,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    QUANTIZED: tl.constexpr,
) -> tuple:
    """Write a key and a value, [1, DIM] each, to their slot where `wanted`; → them as stored."""
    plane: tl.constexpr = KV_HEADS * BLOCK_SIZE
    groups: tl.constexpr = (HEAD_DIM + 31) // 32
    block = slot // BLOCK_SIZE
    offset = head * BLOCK_SIZE + slot % BLOCK_SIZE
    page = block * block_stride + offset * HEAD_DIM
    scale_page = block * scale_stride + offset * groups
    key = store_heads(values, scales, key, page, scale_page, 0, wanted, HEAD_DIM, 1, DIM, QUANTIZED)
    value = store_heads(
        values, scales, value, page + plane * HEAD_DIM, scale_page + plane * groups, 0, wanted,
        HEAD_DIM, 1, DIM, QUANTIZED,
    )  # fmt: skip
    return key, value


@triton.jit
def append_token(
    qkv: tl.tensor,
    values: tl.tensor,
    scales: tl.tensor,
    slots: tl.tensor,
    cos_sin: tl.tensor,
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
    QKV_SPLITS: tl.constexpr,
    NORM: tl.constexpr,
    NORMED_HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
    ADJACENT: tl.constexpr,
) -> tuple:
    """The queries of a row and KV head, and the new token's score and value for them.

    → float16, float32 beside such KV, [ROWS, DIM]; float32 [ROWS]; float32 [DIM]. Where `newest` holds,
    key and value are written to their slot, and scored as stored; elsewhere they are not read.
    """
    row = tl.arange(0, ROWS)
    d = tl.arange(0, DIM)
    heads: tl.constexpr = GROUPS * KV_HEADS
    width: tl.constexpr = (heads + 2 * KV_HEADS) * HEAD_DIM
    place = seq.to(tl.int64) * width
    stride = num_tokens.to(tl.int64) * width
    cos = tl.load(cos_sin + seq * (2 * DIM) + d)
    sin = tl.load(cos_sin + seq * (2 * DIM) + DIM + d)
    slot = tl.load(slots + seq)
    query = rotate_heads(
        qkv, place, head * GROUPS + row, row < GROUPS, cos, sin, norm, stride, eps, heads + KV_HEADS,
        QKV_SPLITS, HEAD_DIM, DIM, PAIRS, ADJACENT, NORM, NORMED_HEADS,
    )  # fmt: skip
    query = (query * q_scale).to(tl.float32 if values.dtype.element_ty == tl.float32 else tl.float16)
    value_norm: tl.constexpr = NORM if heads + KV_HEADS < NORMED_HEADS else ""
    # A tensor of one row each: picking rows of a larger one is a sum across threads.
    one = tl.arange(0, 1)
    wanted = one < tl.where(newest, 1, 0)
    key = rotate_heads(
        qkv, place, heads + head + one, wanted, cos, sin, norm, stride, eps, heads + KV_HEADS,
        QKV_SPLITS, HEAD_DIM, DIM, PAIRS, ADJACENT, NORM, NORMED_HEADS,
    )  # fmt: skip
    value = rotate_heads(
        qkv, place, heads + KV_HEADS + head + one, wanted, cos, sin, norm, stride, eps, 0,
        QKV_SPLITS, HEAD_DIM, DIM, PAIRS, ADJACENT, value_norm, NORMED_HEADS,
    )  # fmt: skip
    key, value = _store_token(
        values, scales, key, value, slot, head, wanted, block_stride, scale_stride,
        KV_HEADS, HEAD_DIM, DIM, BLOCK_SIZE, QUANTIZED,
    )  # fmt: skip
    score = capped(tl.sum(query.to(tl.float32) * key, axis=1), CAP)
    return query, score, tl.reshape(value, (DIM,))


@triton.jit
def repeated(x: tl.tensor, COUNT: tl.constexpr) -> tl.tensor:
    """A vector of COUNT values that repeats a shorter one."""
    size: tl.constexpr = x.shape[0]
    return tl.reshape(tl.broadcast_to(x[None, :], (COUNT // size, size)), (COUNT,))


@triton.jit
def repeated_columns(query: tl.tensor, COUNT: tl.constexpr) -> tl.tensor:
    """Queries [ROWS, DIM] as columns [DIM, COUNT]; those beyond the heads repeat them, to be dropped."""
    rows: tl.constexpr = query.shape[0]
    dim: tl.constexpr = query.shape[1]
    queries = tl.broadcast_to(query[None, :, :], (COUNT // rows, rows, dim))
    return tl.trans(tl.reshape(queries, (COUNT, dim)))
