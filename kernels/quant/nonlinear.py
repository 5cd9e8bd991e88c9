"""Unpacking the 4-bit types whose values come from a table: IQ4_NL, IQ4_XS, MXFP4, NVFP4.

Each function turns blocks, uint8 [n, block bytes], into `out`, float32 [n, block elements], with the
reference's rounding.
"""

import torch
from torch import Tensor

from kernels.quant.legacy import half

IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E2M1_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def _half_e4m3(byte: int) -> float:
    """Half of a float with 4 exponent and 3 mantissa bits; its sign bit is ignored, 0x7F is 0."""
    exponent, mantissa = byte >> 3 & 15, byte & 7
    if byte in (0, 0x7F):
        return 0.0
    if exponent == 0:
        return mantissa * 2.0**-10
    return (1 + mantissa / 8) * 2.0 ** (exponent - 8)


_HALF_E4M3 = tuple(_half_e4m3(byte) for byte in range(256))


def unpack_iq4_nl(blocks: Tensor, out: Tensor) -> None:
    """IQ4_NL: d * table[q]; 16-bit d, 16 bytes of nibbles."""
    _look_up(blocks[:, 2:], IQ4, out.view(-1, 2, 16))
    out.mul_(half(blocks, 0))


def unpack_iq4_xs(blocks: Tensor, out: Tensor) -> None:
    """IQ4_XS: 8 sub-blocks of 32 with signed 6-bit scales, values as in IQ4_NL."""
    places = torch.arange(0, 8, 2, dtype=torch.uint8, device=blocks.device)
    high = ((blocks[:, 2:4].unsqueeze(-1) >> places) & 3).view(-1, 8)
    packed = blocks[:, 4:8]
    low = torch.stack([packed & 15, packed >> 4], dim=-1).view(-1, 8)
    scales = (low | (high << 4)).float() - 32
    _look_up(blocks[:, 8:].view(-1, 8, 16), IQ4, out.view(-1, 8, 2, 16))
    out.view(-1, 8, 32).mul_((half(blocks, 0) * scales).unsqueeze(-1))


def unpack_mxfp4(blocks: Tensor, out: Tensor) -> None:
    """MXFP4: a power of two for 32 four-bit floats; the table is doubled, so the power is halved."""
    exponent = blocks[:, :1].int()
    subnormal = 0x00200000 << exponent.clamp(max=1)
    bits = torch.where(exponent < 2, subnormal, (exponent - 1) << 23)
    _look_up(blocks[:, 1:], E2M1_DOUBLED, out.view(-1, 2, 16))
    out.mul_(bits.view(torch.float32))


def unpack_nvfp4(blocks: Tensor, out: Tensor) -> None:
    """NVFP4: 4 sub-blocks of 16 four-bit floats, each with an 8-bit float as scale."""
    scales = torch.tensor(_HALF_E4M3, dtype=torch.float32, device=blocks.device)[blocks[:, :4].int()]
    _look_up(blocks[:, 4:].view(-1, 4, 8), E2M1_DOUBLED, out.view(-1, 4, 2, 8))
    out.view(-1, 4, 16).mul_(scales.unsqueeze(-1))


def _look_up(packed: Tensor, table: tuple[int, ...], out: Tensor) -> None:
    """Low nibbles into out[..., 0, :], high ones into out[..., 1, :]."""
    values = torch.tensor(table, dtype=torch.float32, device=packed.device)
    out[..., 0, :] = values[(packed & 15).int()]
    out[..., 1, :] = values[(packed >> 4).int()]
