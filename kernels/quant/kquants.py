"""Unpacking the K types: Q2_K to Q6_K, super-blocks of 256 elements with packed sub-scales.

Each function turns blocks, uint8 [n, block bytes], into `out`, float32 [n, 256]. Every product and
sum is rounded on its own, in the reference's order, so that results are equal bit for bit.

Bits are unpacked eight bytes at a time, as 64-bit words: a shift moves bits of one byte into its
neighbour, and the mask after it drops them.
"""

import torch
from torch import Tensor

from kernels.quant.legacy import aligned, half

_EACH_BYTE = 0x0101010101010101


def unpack_q2_k(blocks: Tensor, out: Tensor) -> None:
    """Q2_K: 16 sub-blocks of 16, each with a 4-bit scale and a 4-bit minimum; 2-bit values."""
    packed = _words(blocks, 16, 80).view(-1, 2, 4)
    values = torch.stack([_bits(packed, 2 * index, 3) for index in range(4)], dim=2)
    out.copy_(_bytes(values))
    scales = blocks[:, :16]
    out.view(-1, 16, 16).mul_((half(blocks, 80) * (scales & 15)).unsqueeze(-1))
    out.view(-1, 16, 16).sub_((half(blocks, 82) * (scales >> 4)).unsqueeze(-1))


def unpack_q3_k(blocks: Tensor, out: Tensor) -> None:
    """Q3_K: 16 sub-blocks of 16 with signed 6-bit scales; 2 low bits and a mask of third bits."""
    mask, packed = _words(blocks, 0, 32), _words(blocks, 32, 96).view(-1, 2, 4)
    third = torch.stack([_bits(mask, index, 1) << 2 for index in range(8)], dim=1)
    low = torch.stack([_bits(packed, 2 * index, 3) for index in range(4)], dim=2)
    out.copy_(_bytes(low.view(-1, 8, 4) | third)).sub_(4)
    scales = blocks[:, 96:108]
    scales_low = torch.cat([scales[:, :8] & 15, scales[:, :8] >> 4], dim=1)
    scales_high = torch.cat([(scales[:, 8:] >> shift) & 3 for shift in (0, 2, 4, 6)], dim=1)
    signed = (scales_low | (scales_high << 4)).float() - 32
    out.view(-1, 16, 16).mul_((half(blocks, 108) * signed).unsqueeze(-1))


def unpack_q4_k(blocks: Tensor, out: Tensor) -> None:
    """Q4_K: 8 sub-blocks of 32 with 6-bit scales and minima; 4-bit values."""
    packed = _words(blocks, 16, 144).view(-1, 4, 4)
    out.copy_(_bytes(torch.stack([_bits(packed, 0, 15), _bits(packed, 4, 15)], dim=2)))
    _scale_and_shift(blocks, out)


def unpack_q5_k(blocks: Tensor, out: Tensor) -> None:
    """Q5_K: as Q4_K, with 32 bytes of fifth bits."""
    high, packed = _words(blocks, 16, 48), _words(blocks, 48, 176).view(-1, 4, 4)
    values = torch.stack([_bits(packed, 0, 15), _bits(packed, 4, 15)], dim=2).view(-1, 8, 4)
    for index in range(8):
        values[:, index] |= _bits(high, index, 1) << 4
    out.copy_(_bytes(values))
    _scale_and_shift(blocks, out)


def unpack_q6_k(blocks: Tensor, out: Tensor) -> None:
    """Q6_K: 16 sub-blocks of 16 with signed 8-bit scales; 4 low and 2 high bits a value."""
    low, high = _words(blocks, 0, 128).view(-1, 2, 8), _words(blocks, 128, 192).view(-1, 2, 4)
    values = torch.stack([_bits(low, 0, 15), _bits(low, 4, 15)], dim=2).view(-1, 2, 4, 4)
    for index in range(4):
        values[:, :, index] |= _bits(high, 2 * index, 3) << 4
    out.copy_(_bytes(values)).sub_(32)
    scales = blocks[:, 192:208].view(torch.int8)
    out.view(-1, 16, 16).mul_((half(blocks, 208) * scales).unsqueeze(-1))


def _words(blocks: Tensor, start: int, end: int) -> Tensor:
    """Bytes `start` to `end` of each block as 64-bit words [n, (end - start) / 8]."""
    return aligned(blocks[:, start:end]).view(torch.int64)


def _bits(words: Tensor, shift: int, mask: int) -> Tensor:
    """(byte >> shift) & mask for every byte of `words`."""
    return (words >> shift) & (mask * _EACH_BYTE)


def _bytes(words: Tensor) -> Tensor:
    """Words of whole super-blocks as uint8 [n, 256]."""
    return words.view(torch.uint8).view(-1, 256)


def _scale_and_shift(blocks: Tensor, out: Tensor) -> None:
    """Turn q into d * scale * q - dmin * minimum, per sub-block of 32; bytes 0 to 15 hold all four."""
    first, second, both = aligned(blocks[:, 4:16]).view(torch.int32).unbind(1)
    low, top = 0x0F0F0F0F, 0x30303030
    scales = torch.stack([first & (low | top), (both & low) | ((first >> 2) & top)], dim=1)
    minima = torch.stack([second & (low | top), ((both >> 4) & low) | ((second >> 2) & top)], dim=1)
    values = out.view(-1, 8, 32)
    values.mul_((half(blocks, 0) * scales.view(torch.uint8)).unsqueeze(-1))
    values.sub_((half(blocks, 2) * minima.view(torch.uint8)).unsqueeze(-1))
