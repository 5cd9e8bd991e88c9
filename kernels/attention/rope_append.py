"""Query and key norms, rotary embedding and the append to KV pages, in one kernel per layer."""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention.shape import AttentionShape, padded_dim
from kernels.contract import Rotation
from kernels.cuda.activations import PassTables
from kernels.kv.pages import LayerKV
from kernels.kv.tiles import store_heads

HEADS = 8
"""Heads that one program rotates."""


def rope_append(
    qkv: Tensor,
    tables: PassTables,
    layer: LayerKV,
    shape: AttentionShape,
    rotation: Rotation,
    qk_norm: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """Normalise and rotate q and k; write every token's k and v to its slot of the layer's pages.

    qkv float32 or float16 [S, T, (q_heads + 2 kv_heads) * head_dim], added up over S in index order;
    qk_norm float32 [q_heads + kv_heads, head_dim], RMS norm weights of each head; they follow the rotation
    where `shape.norm_rotated` says so, and those of values follow them where `shape.norms_values` does.

    → float16, float32 beside such KV, [T, q_heads, head_dim], already times `shape.q_scale`. Any T is one
    launch.
    """
    splits, tokens, _ = qkv.shape
    kind = torch.float32 if layer.values.dtype is torch.float32 else torch.float16
    q = torch.empty((tokens, shape.q_heads, shape.head_dim), dtype=kind, device=qkv.device)
    if tokens == 0:
        return q
    heads = shape.q_heads + 2 * shape.kv_heads
    scales = layer.values if layer.scales is None else layer.scales
    _rope_append[(tokens, triton.cdiv(heads, HEADS))](
        qkv,
        q,
        layer.values,
        scales,
        tables.positions,
        tables.slots,
        rotation.inv_freq,
        qkv if qk_norm is None else qk_norm,
        tokens,
        layer.values.stride(0),
        scales.stride(0),
        eps,
        rotation.magnitude,
        shape.q_scale,
        SPLITS=splits,
        Q_HEADS=shape.q_heads,
        KV_HEADS=shape.kv_heads,
        HEAD_DIM=shape.head_dim,
        DIM=padded_dim(shape.head_dim),
        BLOCK_SIZE=shape.block_size,
        PAIRS=rotation.inv_freq.shape[0],
        ADJACENT=rotation.pairing == "adjacent",
        NORM=shape.norm(qk_norm),
        NORMED_HEADS=shape.normed_heads,
        QUANTIZED=layer.scales is not None,
        TEMPERATURE=shape.temperature,
        TEMPERATURE_LENGTH=shape.temperature_length,
        ROWS=HEADS,
        num_warps=4 if shape.head_dim <= 256 else 8,
    )
    return q


TWO_PI = tl.constexpr(2 * math.pi)


@triton.jit
def partner_of(PAIRS: tl.constexpr, ADJACENT: tl.constexpr, DIM: tl.constexpr) -> tuple:
    """For each value of a head: the index of the other one of its pair, its pair, and its sine's sign."""
    d = tl.arange(0, DIM)
    if ADJACENT:
        partner = d ^ 1
        pair = d // 2
        sign = tl.where(d % 2 == 0, -1.0, 1.0)
    else:
        partner = tl.where(d < PAIRS, d + PAIRS, d - PAIRS)
        pair = d % PAIRS
        sign = tl.where(d < PAIRS, -1.0, 1.0)
    return tl.where(d < 2 * PAIRS, partner, d), pair, sign


@triton.jit
def rotation_of(
    position: tl.tensor,
    inv_freq: tl.tensor,
    magnitude: tl.tensor,
    PAIRS: tl.constexpr,
    ADJACENT: tl.constexpr,
    DIM: tl.constexpr,
) -> tuple:
    """float32 [DIM] cosines and signed sines of a position: x · cos + partner · sin rotates."""
    _, pair, sign = partner_of(PAIRS, ADJACENT, DIM)
    rotating = tl.arange(0, DIM) < 2 * PAIRS
    # Positions in the tens of thousands leave float32 no digits of an angle's fraction.
    angle = position.to(tl.float64) * tl.load(inv_freq + pair, mask=rotating, other=0.0)
    angle = (angle - tl.floor(angle / TWO_PI + 0.5) * TWO_PI).to(tl.float32)
    length = tl.where(rotating, magnitude, 1.0)
    return tl.cos(angle) * length, tl.sin(angle) * length * sign


@triton.jit
def temperature_at(position: tl.tensor, TEMPERATURE: tl.constexpr, LENGTH: tl.constexpr) -> tl.tensor:
    """What queries at a position are multiplied by, besides their scale."""
    factor = 1.0
    if TEMPERATURE != 0.0:
        factor = 1.0 + TEMPERATURE * tl.log(1.0 + (position // LENGTH).to(tl.float32))
    return factor


@triton.jit
def load_heads(
    qkv: tl.tensor,
    place: tl.tensor,
    head: tl.tensor,
    inside: tl.tensor,
    split_stride: tl.tensor,
    SPLITS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    PAIRS: tl.constexpr,
    ADJACENT: tl.constexpr,
) -> tl.tuple:
    """Some heads of one token, added up over the splits, and each value's partner: float32 [ROWS, DIM].

    place int64 scalar: offset of the token's row in split 0; head int32 [ROWS], inside bool [ROWS].
    """
    d = tl.arange(0, DIM)
    partner, _, _ = partner_of(PAIRS, ADJACENT, DIM)
    kept = inside[:, None] & (d[None, :] < HEAD_DIM)
    row = qkv + place + head[:, None] * HEAD_DIM
    x = tl.load(row + d[None, :], mask=kept, other=0.0).to(tl.float32)
    y = tl.load(row + partner[None, :], mask=kept, other=0.0).to(tl.float32)
    for split in tl.static_range(1, SPLITS):
        step = split * split_stride
        x += tl.load(row + step + d[None, :], mask=kept, other=0.0).to(tl.float32)
        y += tl.load(row + step + partner[None, :], mask=kept, other=0.0).to(tl.float32)
    return x, y


@triton.jit
def rotate_heads(
    both: tl.tuple,
    head: tl.tensor,
    inside: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    eps: tl.tensor,
    rotated_heads: tl.tensor,
    weights: tl.tuple,
    HEAD_DIM: tl.constexpr,
    NORM: tl.constexpr,
    NORMED_HEADS: tl.constexpr,
) -> tl.tensor:
    """Normalise and rotate what `load_heads` gave → float32 [ROWS, DIM]; NORM says in which order.

    Heads from `rotated_heads` on are not rotated, those from NORMED_HEADS on not normalised. Each value is
    there with its partner of the pair, so that the result stays in the order of the input.
    """
    x, y = both
    rotates = (head < rotated_heads)[:, None]
    normed = (head < NORMED_HEADS)[:, None]
    if NORM == "before":
        own, other = weights
        root = _root(x, normed & inside[:, None], eps, HEAD_DIM)
        x = x / root * own
        y = y / root * other
    turned = tl.where(rotates, x * cos + y * sin, x)
    if NORM == "after":
        own = weights[0]
        turned = turned / _root(turned, normed & inside[:, None], eps, HEAD_DIM) * own
    return turned


@triton.jit
def head_weights(
    norm: tl.tensor,
    head: tl.tensor,
    inside: tl.tensor,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    PAIRS: tl.constexpr,
    ADJACENT: tl.constexpr,
    NORM: tl.constexpr,
    NORMED_HEADS: tl.constexpr,
) -> tl.tuple:
    """The norm's weights of some heads, and of each value's partner: 1 where a head has none."""
    d = tl.arange(0, DIM)
    partner, _, _ = partner_of(PAIRS, ADJACENT, DIM)
    own, other = 1.0, 1.0
    if NORM != "":
        kept = inside[:, None] & (d[None, :] < HEAD_DIM) & (head < NORMED_HEADS)[:, None]
        weight = norm + head[:, None] * HEAD_DIM
        own = tl.load(weight + d[None, :], mask=kept, other=1.0)
        if NORM == "before":
            other = tl.load(weight + partner[None, :], mask=kept, other=1.0)
    return own, other


@triton.jit
def _root(x: tl.tensor, normed: tl.tensor, eps: tl.tensor, HEAD_DIM: tl.constexpr) -> tl.tensor:
    """float32 [ROWS, 1]: what rows of x are divided by where they are `normed`, 1 elsewhere."""
    return tl.where(normed, tl.sqrt_rn(tl.sum(x * x, axis=1) / HEAD_DIM + eps)[:, None], 1.0)


@triton.jit(do_not_specialize=["num_tokens"])
def _rope_append(
    qkv: tl.tensor,
    q: tl.tensor,
    values: tl.tensor,
    scales: tl.tensor,
    positions: tl.tensor,
    slots: tl.tensor,
    inv_freq: tl.tensor,
    norm: tl.tensor,
    num_tokens: tl.tensor,
    block_stride: tl.tensor,
    scale_stride: tl.tensor,
    eps: tl.tensor,
    magnitude: tl.tensor,
    q_scale: tl.tensor,
    SPLITS: tl.constexpr,
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PAIRS: tl.constexpr,
    ADJACENT: tl.constexpr,
    NORM: tl.constexpr,
    NORMED_HEADS: tl.constexpr,
    QUANTIZED: tl.constexpr,
    TEMPERATURE: tl.constexpr,
    TEMPERATURE_LENGTH: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    """Grid (tokens, groups of ROWS heads), a row of heads in registers.

    Bytes per token: 4 S (q + 2 kv) D read (half for float16), 2 q D and the KV of one token written.
    """
    heads: tl.constexpr = Q_HEADS + 2 * KV_HEADS
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    width: tl.constexpr = heads * HEAD_DIM
    split_stride = num_tokens.to(tl.int64) * width
    position = tl.load(positions + token)
    cos, sin = rotation_of(position, inv_freq, magnitude, PAIRS, ADJACENT, DIM)
    weights = head_weights(norm, head, head < heads, HEAD_DIM, DIM, PAIRS, ADJACENT, NORM, NORMED_HEADS)
    both = load_heads(
        qkv, token * width, head, head < heads, split_stride, SPLITS, HEAD_DIM, DIM, PAIRS, ADJACENT
    )
    x = rotate_heads(
        both,
        head,
        head < heads,
        cos[None, :],
        sin[None, :],
        eps,
        Q_HEADS + KV_HEADS,
        weights,
        HEAD_DIM,
        NORM,
        NORMED_HEADS,
    )
    d = tl.arange(0, DIM)
    if tl.program_id(1) * ROWS < Q_HEADS:
        place = q + (token * Q_HEADS + head[:, None]) * HEAD_DIM + d[None, :]
        kept = (head < Q_HEADS)[:, None] & (d[None, :] < HEAD_DIM)
        grown = q_scale * temperature_at(position, TEMPERATURE, TEMPERATURE_LENGTH)
        tl.store(place, (x * grown).to(q.dtype.element_ty), mask=kept)
    if tl.program_id(1) * ROWS + ROWS > Q_HEADS:
        slot = tl.load(slots + token)
        block = slot // BLOCK_SIZE
        # Keys and values of a block are planes of KV_HEADS heads each: rows go on from one to the other.
        first = (tl.program_id(1) * ROWS - Q_HEADS) * BLOCK_SIZE + slot % BLOCK_SIZE
        store_heads(
            values, scales, x, block * block_stride + first * HEAD_DIM,
            block * scale_stride + first * ((HEAD_DIM + 31) // 32), BLOCK_SIZE,
            (head >= Q_HEADS) & (head < heads), HEAD_DIM, ROWS, DIM, QUANTIZED,
        )  # fmt: skip
