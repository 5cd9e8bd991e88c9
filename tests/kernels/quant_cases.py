"""Quantised matrices for kernel tests: random quants under scales that real files could have."""

import torch

from kernels.cuda.activations import SUM_WIDTH, Activations
from kernels.planes.layout import PlanesMatrix, repack
from kernels.quant.dequant import dequantize
from kernels.quant.formats import FORMATS, GGMLType

# Byte offsets of a block's float16 scales.
_HALVES = {
    GGMLType.Q4_0: (0,),
    GGMLType.Q4_1: (0, 2),
    GGMLType.Q5_0: (0,),
    GGMLType.Q5_1: (0, 2),
    GGMLType.Q8_0: (0,),
    GGMLType.Q2_K: (80, 82),
    GGMLType.Q3_K: (108,),
    GGMLType.Q4_K: (0, 2),
    GGMLType.Q5_K: (0, 2),
    GGMLType.Q6_K: (208,),
    GGMLType.IQ4_NL: (0,),
    GGMLType.IQ4_XS: (0,),
    GGMLType.IQ1_S: (0,),
    GGMLType.IQ2_XXS: (0,),
    GGMLType.IQ2_XS: (0,),
    GGMLType.IQ2_S: (0,),
    GGMLType.IQ3_XXS: (0,),
    GGMLType.IQ3_S: (0,),
    GGMLType.TQ1_0: (52,),
    GGMLType.TQ2_0: (64,),
}


def plausible_bytes(type: GGMLType, shape: tuple[int, int], device: str) -> torch.Tensor:
    """A file's bytes, uint8 [nbytes], that dequantise to finite numbers around 0.01."""
    block = FORMATS[type]
    count = shape[0] * shape[1] // block.elements
    blocks = torch.randint(0, 256, (count, block.nbytes), dtype=torch.uint8, device=device)
    for offset in _HALVES.get(type, ()):
        # A ternary weight is its scale.
        size = 100.0 if type in (GGMLType.TQ1_0, GGMLType.TQ2_0) else 1.0
        blocks[:, offset : offset + 2] = _scale_bytes(count, device, size)
    if type == GGMLType.IQ1_M:
        d = _scale_bytes(count, device)
        nibbles = torch.stack([d & 15, d >> 4], dim=2).flatten(1)
        blocks[:, 49::2] = (blocks[:, 49::2] & 15) | nibbles << 4
    if type == GGMLType.NVFP4:
        blocks[:, :4] = torch.randint(0, 32, (count, 4), dtype=torch.uint8, device=device)
    if type == GGMLType.MXFP4:
        blocks[:, 0] = torch.randint(112, 124, (count,), dtype=torch.uint8, device=device)
    return blocks.view(-1)


def _scale_bytes(count: int, device: str, size: float = 1.0) -> torch.Tensor:
    return ((torch.rand(count, 1, device=device) * 1e-4 + 1e-5) * size).half().view(torch.uint8)


def quantized(type: GGMLType, shape: tuple[int, int], device: str) -> tuple[PlanesMatrix, torch.Tensor]:
    """A matrix in planes, and its weights as float64 [N, K]."""
    raw = plausible_bytes(type, shape, device)
    return repack(raw, type, shape), dequantize(raw, type, shape).double()


def activations(rows: int, columns: int, device: str) -> Activations:
    """Standard normal values and their sums."""
    values = torch.randn(rows, columns, device=device).half()
    padded = torch.nn.functional.pad(values.float(), (0, -columns % SUM_WIDTH))
    return Activations(values, padded.unflatten(1, (-1, SUM_WIDTH)).sum(-1))


def relative_error(result: torch.Tensor, expected: torch.Tensor) -> float:
    """‖result − expected‖ / ‖expected‖ in float64; NaN when any element is."""
    return float((result.double() - expected.double()).norm() / expected.double().norm())
