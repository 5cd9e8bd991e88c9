"""The paged KV tensors of one model as the Triton kernels lay them out, and how kernels read them.

Per layer [num_blocks, 2, kv_heads, block_size, head_dim], keys 0 and values 1: a block of one head is
one contiguous tile. float16 or bfloat16; q8_0 keeps int8 quants and a float16 scale for every 32
consecutive values in a tensor of its own. Kernels take the stride between blocks as an argument, so
blocks of one layer need not be adjacent.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

KVFormat = Literal["float16", "bfloat16", "q8_0"]

QUANT_WIDTH = 32
"""Consecutive values that share a q8_0 scale."""


@dataclass(frozen=True, slots=True)
class LayerKV:
    """One layer's pages."""

    values: Tensor
    """float16, bfloat16 or int8 [num_blocks, 2, kv_heads, block_size, head_dim]."""
    scales: Tensor | None
    """float16 [num_blocks, 2, kv_heads, block_size, head_dim / 32] of q8_0, else None."""


@dataclass(frozen=True, slots=True)
class TritonKV:
    """All layers' pages; layers are views of one allocation."""

    values: Tensor
    """[layers, num_blocks, 2, kv_heads, block_size, head_dim]."""
    scales: Tensor | None

    def layer(self, index: int) -> LayerKV:
        """The pages of one layer."""
        return LayerKV(self.values[index], None if self.scales is None else self.scales[index])

    @property
    def nbytes(self) -> int:
        """Bytes of all pages."""
        return self.values.nbytes + (0 if self.scales is None else self.scales.nbytes)


def block_nbytes(num_layers: int, kv_heads: int, head_dim: int, block_size: int, kv_format: KVFormat) -> int:
    """Bytes that one block takes in all layers together."""
    values = num_layers * 2 * kv_heads * block_size * head_dim
    return values + 2 * values // QUANT_WIDTH if kv_format == "q8_0" else 2 * values


def page_planes(kv_format: KVFormat, head_dim: int) -> list[tuple[torch.dtype, int]]:
    """Element type and values per slot of each tensor of pages: quants or floats, then q8_0's scales.

    Raises ValueError for heads that q8_0 cannot divide.
    """
    if kv_format == "float16":
        return [(torch.float16, head_dim)]
    if kv_format == "bfloat16":
        return [(torch.bfloat16, head_dim)]
    if head_dim % QUANT_WIDTH:
        raise ValueError(f"heads of {head_dim} values: KV of type q8_0 needs a multiple of {QUANT_WIDTH}")
    return [(torch.int8, head_dim), (torch.float16, head_dim // QUANT_WIDTH)]
