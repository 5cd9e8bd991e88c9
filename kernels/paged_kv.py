"""The paged KV tensors of one model, as the torch implementation lays them out.

Per layer one tensor [2 * kv_heads, num_blocks * block_size, head_dim]: keys of all heads, then
values. Slots of a run of blocks are adjacent within a head, so a sequence whose blocks are
contiguous is read as a view. Slots hold finite numbers at all times (zero before the first write),
so a masked slot adds nothing to an attention output. On a CPU memory is reserved, not touched: pages
become resident on first write.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
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
    """Reserve KV for `num_blocks` blocks."""
    shape = (2 * kv_heads, num_blocks * block_size, head_dim)
    layers = [_zeros(shape, dtype, device) for _ in range(num_layers)]
    return PagedKV(layers, kv_heads, head_dim, block_size)


def store(layer: Tensor, slots: Tensor, new: Tensor) -> None:
    """Write keys and values [2 * kv_heads, T, head_dim] to `slots` int64 [T].

    What is not a number is stored as a finite one: it stays the fault of its own sequence, whose
    hidden state has it too, and cannot reach others through masked slots.
    """
    layer.index_copy_(1, slots, torch.nan_to_num(new).to(layer.dtype))


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # NumPy's zeros are untouched pages; torch's are written.
    count = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(np.zeros(count, dtype=np.uint8)).view(dtype).view(shape)


def copy_blocks(kv: PagedKV, pairs: Sequence[tuple[int, int]]) -> None:
    """Copy blocks (source, destination) in every layer."""
    size = kv.block_size
    for layer in kv.layers:
        for source, destination in pairs:
            layer[:, destination * size : (destination + 1) * size] = layer[
                :, source * size : (source + 1) * size
            ]
