"""Attention in plain torch, over the Triton kernels' pages."""

import torch
from torch import Tensor

from kernels.attention.shape import LOG2E, AttentionShape
from kernels.cuda.activations import PassTables
from kernels.kv.pages import LayerKV
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
