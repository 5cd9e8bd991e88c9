"""Paged KV for kernel tests, unwritten, in memory of its own, and q8_0 in plain torch."""

import torch
from torch import Tensor

from kernels.kv.pages import QUANT_WIDTH, KVFormat, LayerKV, TritonKV, page_planes


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
    blocks = layer.values.unflatten(-1, (-1, QUANT_WIDTH)).to(dtype)
    return (blocks * layer.scales[..., None].to(dtype)).flatten(-2)


def quantize_q8(x: Tensor) -> tuple[Tensor, Tensor]:
    """float32 [..., dim] → q8_0 quants int8 [..., dim] and scales float16 [..., dim / 32]."""
    blocks = x.unflatten(-1, (-1, QUANT_WIDTH))
    scales = (blocks.abs().amax(-1) / 127).to(torch.float16)
    divisor = scales.float()[..., None]
    quants = torch.where(divisor > 0, blocks / divisor, 0).add(0.5).floor().clamp(-127, 127)
    return quants.to(torch.int8).flatten(-2), scales
