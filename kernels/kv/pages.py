"""The paged KV tensors of one model as the Triton kernels lay them out, and how kernels read them.

Per layer [num_blocks, 2, kv_heads, block_size, head_dim], keys 0 and values 1: a block of one head is
one contiguous tile. Floats; q8_0 keeps int8 quants and a float16 scale for every 32 consecutive values
of a head, the last of them for what is left, in a tensor of its own. Kernels take the stride between
blocks as an argument, so blocks of one layer need not be adjacent.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.quant.formats import KV_GROUP, KVFormat

_FLOATS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class LayerKV:
    """One layer's pages."""

    values: Tensor
    """A float type or int8 [num_blocks, 2, kv_heads, block_size, head_dim]."""
    scales: Tensor | None
    """float16 [num_blocks, 2, kv_heads, block_size, ceil(head_dim / 32)] of q8_0, else None."""


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
    slot = sum(width * dtype.itemsize for dtype, width in page_planes(kv_format, head_dim))
    return num_layers * 2 * kv_heads * block_size * slot


def page_planes(kv_format: KVFormat, head_dim: int) -> list[tuple[torch.dtype, int]]:
    """Element type and values per slot of each tensor of pages: quants or floats, then q8_0's scales."""
    if kv_format in _FLOATS:
        return [(_FLOATS[kv_format], head_dim)]
    return [(torch.int8, head_dim), (torch.float16, -(-head_dim // KV_GROUP))]
