"""The paged KV tensors of one model, as the torch implementation lays them out.

Per layer one tensor [2 * kv_heads, num_blocks * block_size, head_dim]: keys of all heads, then
values. Slots of a run of blocks are adjacent within a head, so a sequence whose blocks are
contiguous is read as a view. Memory is reserved, not touched: pages become resident on first write.

q8_0 keeps int8 quants there, and a float16 scale for every 32 consecutive values of a head in a tensor
of its own, as a GPU's pages do; the last group of a head may be shorter.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.quant.formats import KV_GROUP, KVFormat

KV_DTYPES: dict[KVFormat, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "q8_0": torch.int8,
}


@dataclass(frozen=True, slots=True)
class LayerKV:
    """The pages of one layer."""

    values: Tensor
    """[2 * kv_heads, slots, head_dim]."""
    scales: Tensor | None = None
    """float16 [2 * kv_heads, slots, groups] of q8_0."""

    def write(self, slots: Tensor, new: Tensor) -> None:
        """Keys and values float32 [2 * kv_heads, T, head_dim] of some slots."""
        if self.scales is None:
            self.values.index_copy_(1, slots, new.to(self.values.dtype))
            return
        quants, scales = quantize_kv(new)
        self.values.index_copy_(1, slots, quants)
        self.scales.index_copy_(1, slots, scales)

    def read(self, slots: slice | Tensor, dtype: torch.dtype) -> Tensor:
        """[2 * kv_heads, n, head_dim] of a run of slots or of some."""
        if isinstance(slots, slice):
            values = self.values[:, slots]
            scales = None if self.scales is None else self.scales[:, slots]
        else:
            values = self.values.index_select(1, slots)
            scales = None if self.scales is None else self.scales.index_select(1, slots)
        return values.to(dtype) if scales is None else dequantize_kv(values, scales).to(dtype)


@dataclass(slots=True)
class PagedKV:
    """The pages of all layers of a group."""

    layers: list[LayerKV]
    kv_heads: int
    head_dim: int
    block_size: int
    kv_format: KVFormat


def make_paged_kv(
    num_layers: int,
    num_blocks: int,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    kv_format: KVFormat,
    device: torch.device,
) -> PagedKV:
    """Reserve KV for `num_blocks` blocks; the scratch block 0 is zeroed, others are never read unwritten."""

    def pages(width: int, dtype: torch.dtype) -> Tensor:
        made = torch.empty(2 * kv_heads, num_blocks * block_size, width, dtype=dtype, device=device)
        made[:, :block_size].zero_()
        return made

    layers = []
    for _ in range(num_layers):
        scales = pages(-(-head_dim // KV_GROUP), torch.float16) if kv_format == "q8_0" else None
        layers.append(LayerKV(pages(head_dim, KV_DTYPES[kv_format]), scales))
    return PagedKV(layers, kv_heads, head_dim, block_size, kv_format)


def slot_nbytes(head_dim: int, kv_format: KVFormat) -> int:
    """Bytes of one key or value."""
    scales = 2 * -(-head_dim // KV_GROUP) if kv_format == "q8_0" else 0
    return head_dim * KV_DTYPES[kv_format].itemsize + scales


def quantize_kv(x: Tensor) -> tuple[Tensor, Tensor]:
    """float32 [..., dim] → q8_0's quants int8 [..., dim] and scales float16 [..., ceil(dim / 32)]."""
    dim = x.shape[-1]
    blocks = F.pad(x, (0, -dim % KV_GROUP)).unflatten(-1, (-1, KV_GROUP))
    scales = (blocks.abs().amax(-1) / 127.0).to(torch.float16)
    divisor = scales.to(torch.float32)[..., None]
    quants = (blocks / torch.where(divisor > 0, divisor, 1.0)).add_(0.5).floor_().clamp_(-127, 127)
    return quants.to(torch.int8).flatten(-2)[..., :dim], scales


def dequantize_kv(quants: Tensor, scales: Tensor) -> Tensor:
    """float32 [..., dim], exact: a quant has 7 bits, a scale 11."""
    wide, dim = quants.to(torch.float32), quants.shape[-1]
    if dim % KV_GROUP:
        return wide.mul_(scales.to(torch.float32).repeat_interleave(KV_GROUP, -1)[..., :dim])
    wide.unflatten(-1, (-1, KV_GROUP)).mul_(scales.to(torch.float32)[..., None])
    return wide
