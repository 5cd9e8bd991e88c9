"""The paged KV tensors of one model, as the torch implementation lays them out.

Per layer one tensor [2 * kv_heads, num_blocks * block_size, head_dim]: keys of all heads, then
values. Slots of a run of blocks are adjacent within a head, so a sequence whose blocks are
contiguous is read as a view. Memory is reserved, not touched: pages become resident on first write.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(slots=True)
class PagedKV:
    """`layers[i]` [2 * kv_heads, slots, head_dim]."""

    layers: list[Tensor]
    kv_heads: int
    head_dim: int
    block_size: int


def make_paged_kv(
    num_layers: int,
    num_blocks: int,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
) -> PagedKV:
    """Reserve KV for `num_blocks` blocks; the scratch block 0 is zeroed, others are never read unwritten."""
    layers = []
    for _ in range(num_layers):
        layer = torch.empty(2 * kv_heads, num_blocks * block_size, head_dim, dtype=dtype, device=device)
        layer[:, :block_size].zero_()
        layers.append(layer)
    return PagedKV(layers, kv_heads, head_dim, block_size)
