"""Paged KV for kernel tests, unwritten, in memory of its own, and q8_0 in plain torch."""

import torch
from torch import Tensor

from kernels.kv.pages import LayerKV, TritonKV, page_planes
from kernels.quant.formats import KVFormat
from kernels.reference import paged_kv


def make_kv(
    num_layers: int,
    num_blocks: int,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    kv_format: KVFormat,
    device: torch.device | str,
) -> TritonKV:
    """Layers one after another; the product lays blocks first, which only changes strides."""
    size = (num_layers, num_blocks, 2, kv_heads, block_size)
    planes = [
        torch.empty((*size, width), dtype=dtype, device=device)
        for dtype, width in page_planes(kv_format, head_dim)
    ]
    return TritonKV(planes[0], planes[1] if len(planes) > 1 else None)


def dequantize_kv(layer: LayerKV, dtype: torch.dtype) -> Tensor:
    """What the pages of a layer stand for, [num_blocks, 2, kv_heads, block_size, head_dim]."""
    if layer.scales is None:
        return layer.values.to(dtype)
    return paged_kv.dequantize_kv(layer.values, layer.scales).to(dtype)
