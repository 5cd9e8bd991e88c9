"""Unpacking the K types: Q2_K to Q6_K, super-blocks of 256 elements with packed sub-scales.

Each function turns blocks, uint8 [n, block bytes], into `out`, float32 [n, 256]. Every product and
sum is rounded on its own, in the reference's order, so that results are equal bit for bit.
"""

import torch
from torch import Tensor

from kernels.quant.legacy import half


def unpack_q2_k(blocks: Tensor, out: Tensor) -> None:
    """Q2_K: 16 sub-blocks of 16, each with a 4-bit scale and a 4-bit minimum; 2-bit values."""
    scales = blocks[:, :16]
    values = out.view(-1, 2, 4, 32)
    _pairs_of_bits(blocks[:, 16:80].view(-1, 2, 32), values)
    values = out.view(-1, 16, 16)
    values.mul_((half(blocks, 80) * (scales & 15)).unsqueeze(-1))
    values.sub_((half(blocks, 82) * (scales >> 4)).unsqueeze(-1))


def unpack_q3_k(blocks: Tensor, out: Tensor) -> None:
    """Q3_K: 16 sub-blocks of 16 with signed 6-bit scales; 2 low bits and a mask of third bits."""
    mask, packed = blocks[:, :32], blocks[:, 96:108]
    low = torch.cat([packed[:, :8] & 15, packed[:, :8] >> 4], dim=1)
    high = torch.cat([(packed[:, 8:] >> shift) & 3 for shift in (0, 2, 4, 6)], dim=1)
    scales = (low | (high << 4)).float() - 32
    values = out.view(-1, 2, 4, 32)
    quarters = blocks[:, 32:96].view(-1, 2, 32)
    for index in range(4):
        for side in range(2):
            third = ((mask >> (4 * side + index)) & 1) << 2
            values[:, side, index].copy_(((quarters[:, side] >> (2 * index)) & 3) | third)
    out.sub_(4)
    out.view(-1, 16, 16).mul_((half(blocks, 108) * scales).unsqueeze(-1))


def unpack_q4_k(blocks: Tensor, out: Tensor) -> None:
    """Q4_K: 8 sub-blocks of 32 with 6-bit scales and minima; 4-bit values."""
    packed = blocks[:, 16:].view(-1, 4, 32)
    values = out.view(-1, 4, 2, 32)
    values[:, :, 0].copy_(packed & 15)
    values[:, :, 1].copy_(packed >> 4)
    _scale_and_shift(blocks, out)


def unpack_q5_k(blocks: Tensor, out: Tensor) -> None:
    """Q5_K: as Q4_K, with 32 bytes of fifth bits."""
    high, packed = blocks[:, 16:48], blocks[:, 48:].view(-1, 4, 32)
    values = out.view(-1, 4, 2, 32)
    for index in range(4):
        even = ((high >> (2 * index)) & 1) << 4
        odd = ((high >> (2 * index + 1)) & 1) << 4
        values[:, index, 0].copy_((packed[:, index] & 15) | even)
        values[:, index, 1].copy_((packed[:, index] >> 4) | odd)
    _scale_and_shift(blocks, out)


def unpack_q6_k(blocks: Tensor, out: Tensor) -> None:
    """Q6_K: 16 sub-blocks of 16 with signed 8-bit scales; 4 low and 2 high bits a value."""
    low, high = blocks[:, :128].view(-1, 2, 2, 32), blocks[:, 128:192].view(-1, 2, 32)
    values = out.view(-1, 2, 4, 32)
    for index in range(4):
        nibble = low[:, :, index % 2]
        nibble = nibble & 15 if index < 2 else nibble >> 4
        values[:, :, index].copy_(nibble | (((high >> (2 * index)) & 3) << 4))
    scales = blocks[:, 192:208].view(torch.int8)
    out.sub_(32).view(-1, 16, 16).mul_((half(blocks, 208) * scales).unsqueeze(-1))


def _pairs_of_bits(packed: Tensor, values: Tensor) -> None:
    for index in range(4):
        values[:, :, index].copy_((packed >> (2 * index)) & 3)


def _scale_and_shift(blocks: Tensor, out: Tensor) -> None:
    """Turn q into d * scale * q - dmin * minimum, per sub-block of 32; bytes 0 to 15 hold all four."""
    first, second, both = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat([first & 63, (both & 15) | ((first >> 2) & 48)], dim=1)
    minima = torch.cat([second & 63, (both >> 4) | ((second >> 2) & 48)], dim=1)
    values = out.view(-1, 8, 32)
    values.mul_((half(blocks, 0) * scales).unsqueeze(-1))
    values.sub_((half(blocks, 2) * minima).unsqueeze(-1))
