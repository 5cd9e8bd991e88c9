"""Rotation, append and attention in plain torch, over the kernels' pages; waits for the device."""

import torch
from torch import Tensor

from kernels.attention.shape import LOG2E, AttentionShape
from kernels.contract import Rotation
from kernels.cuda.activations import PassTables
from kernels.kv.pages import LayerKV
from kernels.pieces.plain import norm
from kernels.reference.paged_kv import dequantize_kv, quantize_kv

_SCORES = 1 << 24
"""Scores that are held at once."""


def attention(
    q: Tensor, tables: PassTables, layer: LayerKV, shape: AttentionShape, sinks: Tensor | None = None
) -> Tensor:
    """As the kernels for answers and prompts: float32 [T, q_heads * head_dim].

    Pages are gathered by block table, those that a sequence's tokens see alone. Tokens of no sequence give
    zeros.
    """
    out = torch.zeros((q.shape[0], shape.q_heads * shape.head_dim), device=q.device)
    starts, contexts = tables.query_starts.tolist(), tables.context_lens.tolist()
    for i, context in enumerate(contexts):
        start, end = starts[i], starts[i + 1]
        if context == 0 or start == end:
            continue
        first = context - (end - start)
        keys, values, seen = _visible(layer, tables.block_tables[i], first, context, shape)
        step = max(1, _SCORES // (shape.q_heads * (context - seen)))
        for row in range(start, end, step):
            rows = slice(row, min(row + step, end))
            position = torch.arange(first + row - start, first + rows.stop - start, device=q.device)
            out[rows] = _attend(q[rows].float(), keys, values, position - seen, shape, sinks)
    return out


def _visible(
    layer: LayerKV, table: Tensor, first: int, context: int, shape: AttentionShape
) -> tuple[Tensor, Tensor, int]:
    """Keys and values float32 [kv_heads, n, D] of what tokens from `first` on see, and where these begin."""
    size = shape.block_size
    block = max(0, first - shape.window + 1) // size if shape.window else 0
    pages = table[block : -(-context // size)].long()
    held = layer.values[pages]
    wide = held.float() if layer.scales is None else dequantize_kv(held, layer.scales[pages])
    keys, values = wide.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, : context - block * size]
    return keys, values, block * size


def _attend(
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


def rope_append(
    qkv: Tensor,
    tables: PassTables,
    layer: LayerKV,
    shape: AttentionShape,
    rotation: Rotation,
    qk_norm: Tensor | None = None,
    eps: float = 0.0,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """As `kernels.attention.rope_append`, computed in `dtype` until q, k and v are rounded."""
    total = qkv[0].to(dtype)
    for part in qkv[1:]:
        total = total + part.to(dtype)
    heads = total.unflatten(-1, (-1, shape.head_dim))
    if shape.norms_values:
        assert qk_norm is not None
        at = shape.q_heads + shape.kv_heads
        heads = torch.cat([heads[:, :at], norm(heads[:, at:], qk_norm[at:], eps)], dim=1)
        qk_norm = qk_norm[:at]
    rotated = heads[:, : shape.q_heads + shape.kv_heads]
    if qk_norm is not None and not shape.norm_rotated:
        rotated = norm(rotated, qk_norm, eps)
    rotated = _rotate(rotated, tables.positions, rotation)
    if qk_norm is not None and shape.norm_rotated:
        rotated = norm(rotated, qk_norm, eps)
    values = heads[:, shape.q_heads + shape.kv_heads :]
    _append(layer, tables.slots, torch.stack([rotated[:, shape.q_heads :], values], dim=1), shape.block_size)
    q = rotated[:, : shape.q_heads] * shape.q_scale
    if shape.temperature:
        passed = torch.log1p((tables.positions // shape.temperature_length).to(dtype))
        q = q * (1.0 + shape.temperature * passed)[:, None, None]
    return q.to(torch.float32 if layer.values.dtype is torch.float32 else torch.float16)


def _append(layer: LayerKV, slots: Tensor, new: Tensor, block_size: int) -> None:
    """Keys and values [T, 2, kv_heads, D] to their slots."""
    block, offset = slots // block_size, slots % block_size
    if layer.scales is None:
        layer.values[block, :, :, offset] = new.to(layer.values.dtype)
        return
    layer.values[block, :, :, offset], layer.scales[block, :, :, offset] = quantize_kv(new.float())


def _rotate(x: Tensor, positions: Tensor, rotation: Rotation) -> Tensor:
    """x [T, heads, head_dim] → same, angles in float64."""
    pairs = rotation.inv_freq.shape[0]
    angles = positions.to(torch.float64)[:, None] * rotation.inv_freq
    cos = (angles.cos() * rotation.magnitude).to(x.dtype)[:, None]
    sin = (angles.sin() * rotation.magnitude).to(x.dtype)[:, None]
    out = x.clone()
    if rotation.pairing == "adjacent":
        first, second = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
    else:
        first, second = slice(0, pairs), slice(pairs, 2 * pairs)
    a, b = x[..., first], x[..., second]
    out[..., first] = a * cos - b * sin
    out[..., second] = a * sin + b * cos
    return out
