"""Attention, rotation and append in plain torch, over the Triton kernels' pages."""

import torch
from torch import Tensor

from kernels.attention.shape import LOG2E, AttentionShape
from kernels.contract import Rotation
from kernels.cuda.activations import PassTables
from kernels.kv.pages import LayerKV
from kernels.reference.paged_kv import quantize_kv
from tests.kernels.kv_cases import dequantize_kv


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


def rope_append_torch(
    qkv: Tensor,
    tables: PassTables,
    layer: LayerKV,
    shape: AttentionShape,
    rotation: Rotation,
    qk_norm: Tensor | None = None,
    eps: float = 0.0,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Plain torch twin of `rope_append`, computed in `dtype` until q, k and v are rounded."""
    summed = qkv[0].to(dtype)
    for part in qkv[1:]:
        summed = summed + part.to(dtype)
    heads = summed.unflatten(-1, (-1, shape.head_dim))
    if shape.norms_values:
        assert qk_norm is not None
        values = shape.q_heads + shape.kv_heads
        heads = torch.cat([heads[:, :values], _norm_torch(heads[:, values:], qk_norm[values:], eps)], dim=1)
        qk_norm = qk_norm[:values]
    rotated = heads[:, : shape.q_heads + shape.kv_heads]
    if qk_norm is not None and not shape.norm_rotated:
        rotated = _norm_torch(rotated, qk_norm, eps)
    rotated = _rotate_torch(rotated, tables.positions, rotation)
    if qk_norm is not None and shape.norm_rotated:
        rotated = _norm_torch(rotated, qk_norm, eps)
    keys = rotated[:, shape.q_heads :]
    values = heads[:, shape.q_heads + shape.kv_heads :]
    block = tables.slots // shape.block_size
    offset = tables.slots % shape.block_size
    for plane, x in enumerate((keys, values)):
        if layer.scales is None:
            layer.values[block, plane, :, offset] = x.to(layer.values.dtype)
        else:
            quants, scales = quantize_kv(x.float())
            layer.values[block, plane, :, offset] = quants
            layer.scales[block, plane, :, offset] = scales
    kind = torch.float32 if layer.values.dtype is torch.float32 else torch.float16
    return (rotated[:, : shape.q_heads] * shape.q_scale).to(kind)


def _norm_torch(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight.to(x.dtype)


def _rotate_torch(x: Tensor, positions: Tensor, rotation: Rotation) -> Tensor:
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
