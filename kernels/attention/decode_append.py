"""A decode row's new token inside the attention kernel: its queries, its key and value, their page."""

import triton
import triton.language as tl

from kernels.attention.rope_append import head_weights, load_heads, rotate_heads
from kernels.attention.softmax import capped
from kernels.cuda.early import let_next_start, wait_for_inputs
from kernels.kv.tiles import store_heads

BRANCHING_DIM = tl.constexpr(256)
"""Head size up to which programs without the newest block branch around its key and value. Longer ones mask
them: values that a branch hands on fill registers beside its own, and 416 bytes of 512-wide heads spilled."""


@triton.jit
def _store_token(
    values: tl.tensor,
    scales: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    slot: tl.tensor,
    head: tl.tensor,
    first: tl.tensor,
    wanted: tl.tensor,
    block_stride: tl.tensor,
    scale_stride: tl.tensor,
    KV_HEADS: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    QUANTIZED: tl.constexpr,
) -> tuple:
    """Write a key, [ROWS, DIM] alike, and a value, [1, DIM], to their slot; → them as stored.

    first, wanted: which of their rows are written.
    """
    plane: tl.constexpr = KV_HEADS * BLOCK_SIZE
    groups: tl.constexpr = (HEAD_DIM + 31) // 32
    block = slot // BLOCK_SIZE
    offset = head * BLOCK_SIZE + slot % BLOCK_SIZE
    page = block * block_stride + offset * HEAD_DIM
    scale_page = block * scale_stride + offset * groups
    key = store_heads(values, scales, key, page, scale_page, 0, first, HEAD_DIM, ROWS, DIM, QUANTIZED)
    value = store_heads(
        values, scales, value, page + plane * HEAD_DIM, scale_page + plane * groups, 0, wanted,
        HEAD_DIM, 1, DIM, QUANTIZED,
    )  # fmt: skip
    return key, value


@triton.jit
def _before_inputs(
    slots: tl.tensor,
    cos_sin: tl.tensor,
    norm: tl.tensor,
    seq: tl.tensor,
    head: tl.tensor,
    newest: tl.tensor,
    KV_HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    NORM: tl.constexpr,
    NORMED_HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
    ADJACENT: tl.constexpr,
) -> tl.tuple:
    """What `append_token` needs besides the projections: slot, rotation, the norm's weights.

    Key and rotation as often as there are queries: to reach all rows one would go through shared memory.
    """
    row, d, one = tl.arange(0, ROWS), tl.arange(0, DIM), tl.arange(0, 1)
    heads: tl.constexpr = GROUPS * KV_HEADS
    same, keys = row * 0, row < tl.where(newest, GROUPS, 0)
    turn = cos_sin + seq * (2 * DIM) + same[:, None] + d[None, :]
    cos, sin = tl.load(turn), tl.load(turn + DIM)
    slot = tl.load(slots + seq)
    value_norm: tl.constexpr = NORM if heads + KV_HEADS < NORMED_HEADS else ""
    of_query = head_weights(
        norm, head * GROUPS + row, row < GROUPS, HEAD_DIM, DIM, PAIRS, ADJACENT, NORM, NORMED_HEADS
    )
    of_key = head_weights(norm, heads + head + same, keys, HEAD_DIM, DIM, PAIRS, ADJACENT, NORM, NORMED_HEADS)
    of_value = head_weights(
        norm, heads + KV_HEADS + head + one, one < tl.where(newest, 1, 0),
        HEAD_DIM, DIM, PAIRS, ADJACENT, value_norm, NORMED_HEADS,
    )  # fmt: skip
    return slot, cos, sin, of_query, of_key, of_value


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
    HELD: tl.constexpr,
    OVERLAPS: tl.constexpr,
    EARLY: tl.constexpr,
) -> tuple:
    """The queries of a row and KV head, and the new token's score and value for them.

    → float16, float32 beside such KV, [ROWS, DIM]; float32 [ROWS]; float32 [DIM]. Where `newest` holds,
    key and value are written to their slot, and scored as stored; elsewhere they are not read. With HELD it
    waits for qkv, once all else is loaded.
    """
    slot, cos, sin, query_norm, key_norm, value_norm = _before_inputs(
        slots, cos_sin, norm, seq, head, newest,
        KV_HEADS, GROUPS, ROWS, HEAD_DIM, DIM, NORM, NORMED_HEADS, PAIRS, ADJACENT,
    )  # fmt: skip
    if HELD:
        wait_for_inputs(EARLY)
        let_next_start(EARLY and OVERLAPS)
    row = tl.arange(0, ROWS)
    heads: tl.constexpr = GROUPS * KV_HEADS
    width: tl.constexpr = (heads + 2 * KV_HEADS) * HEAD_DIM
    place = seq.to(tl.int64) * width
    stride = num_tokens.to(tl.int64) * width
    # A tensor of one row each: picking rows of a larger one is a sum across threads.
    one = tl.arange(0, 1)
    wanted, keys = one < tl.where(newest, 1, 0), row < tl.where(newest, GROUPS, 0)
    of_query, of_key, of_value = head * GROUPS + row, heads + head + row * 0, heads + KV_HEADS + head + one
    # All loads before the first barrier, which they would wait for.
    query = load_heads(qkv, place, of_query, row < GROUPS, stride, QKV_SPLITS, HEAD_DIM, DIM, PAIRS, ADJACENT)
    key = load_heads(qkv, place, of_key, keys, stride, QKV_SPLITS, HEAD_DIM, DIM, PAIRS, ADJACENT)
    value = load_heads(qkv, place, of_value, wanted, stride, QKV_SPLITS, HEAD_DIM, DIM, PAIRS, ADJACENT)
    query = rotate_heads(
        query,
        of_query,
        row < GROUPS,
        cos,
        sin,
        eps,
        heads + KV_HEADS,
        query_norm,
        HEAD_DIM,
        NORM,
        NORMED_HEADS,
    )
    query = (query * q_scale).to(tl.float32 if values.dtype.element_ty == tl.float32 else tl.float16)
    norm_of_value: tl.constexpr = NORM if heads + KV_HEADS < NORMED_HEADS else ""
    score, own = tl.zeros((ROWS,), tl.float32), tl.zeros((DIM,), tl.float32)
    if newest | (DIM > BRANCHING_DIM):
        turned = rotate_heads(
            key, of_key, keys, cos, sin, eps, heads + KV_HEADS, key_norm, HEAD_DIM, NORM, NORMED_HEADS
        )
        plain = rotate_heads(
            value, of_value, wanted, 0.0, 0.0, eps, 0, value_norm, HEAD_DIM, norm_of_value, NORMED_HEADS
        )
        kept_key, kept_value = _store_token(
            values, scales, turned, plain, slot, head, row < tl.where(newest, 1, 0), wanted,
            block_stride, scale_stride, KV_HEADS, ROWS, HEAD_DIM, DIM, BLOCK_SIZE, QUANTIZED,
        )  # fmt: skip
        score = capped(tl.sum(query.to(tl.float32) * kept_key, axis=1), CAP)
        own = tl.reshape(kept_value, (DIM,)).to(tl.float32)
    return query, score, own


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
