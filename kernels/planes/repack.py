"""Blocks of a file taken apart into quants and scale words.

`SPLITS[type](blocks)` turns uint8 [n, block bytes] into `quants`, uint8 [n, block elements] in the
order of the columns, and `meta`, int32 [n, words], the block's scales as `planes.layout` describes them.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.quant.coded import CODED
from kernels.quant.formats import GGMLType
from kernels.quant.legacy import aligned

Split = Callable[[Tensor], tuple[Tensor, Tensor]]
"""How one block type comes apart."""


def _words(parts: Tensor) -> Tensor:
    """Bytes uint8 [n, 4 w] as int32 [n, w], little-endian."""
    return aligned(parts).view(torch.int32)


def _zeros_like(part: Tensor, width: int) -> Tensor:
    return torch.zeros((part.shape[0], width), dtype=torch.uint8, device=part.device)


def _split_halves(packed: Tensor, group: int) -> Tensor:
    """Nibbles of groups of `group` bytes: all low ones of a group, then all high ones."""
    grouped = packed.reshape(packed.shape[0], -1, group)
    return torch.stack([grouped & 15, grouped >> 4], dim=2).flatten(1)


def _split_pairs(packed: Tensor, group: int) -> Tensor:
    """2-bit fields of groups of `group` bytes: first all lowest fields of a group, and so on."""
    grouped = packed.reshape(packed.shape[0], -1, group)
    return torch.stack([(grouped >> shift) & 3 for shift in (0, 2, 4, 6)], dim=2).flatten(1)


def _split_bits(packed: Tensor) -> Tensor:
    """32 bytes of bits: bit i of byte j belongs to column 32 i + j."""
    return torch.stack([(packed >> shift) & 1 for shift in range(8)], dim=1).flatten(1)


def _legacy(meta_bytes: int, high: bool) -> Split:
    """Blocks of 32: scale bytes, perhaps 4 bytes of fifth bits, 16 bytes of nibbles."""
    start = meta_bytes + 4 * high

    def split(blocks: Tensor) -> tuple[Tensor, Tensor]:
        quants = _split_halves(blocks[:, start:], 16)
        if high:
            places = torch.arange(8, dtype=torch.uint8, device=blocks.device)
            bits = (blocks[:, meta_bytes:start].unsqueeze(-1) >> places) & 1
            quants |= bits.flatten(1) << 4
        meta = blocks[:, :meta_bytes]
        return quants, _words(torch.cat([meta, _zeros_like(meta, 4 - meta_bytes)], dim=1))

    return split


def _split_q8_0(blocks: Tensor) -> tuple[Tensor, Tensor]:
    scale = blocks[:, :2]
    return blocks[:, 2:] ^ 128, _words(torch.cat([scale, _zeros_like(scale, 2)], dim=1))


def _split_six_bit(packed: Tensor) -> Tensor:
    """The 12 bytes of Q4_K and Q5_K: 8 scales, then 8 minima, one byte each."""
    first, second, both = packed.split(4, dim=1)
    low = [first & 63, (both & 15) | ((first >> 6) << 4)]
    high = [second & 63, (both >> 4) | ((second >> 6) << 4)]
    return torch.cat([*low, *high], dim=1)


def _split_q4_k(blocks: Tensor) -> tuple[Tensor, Tensor]:
    meta = torch.cat([_split_six_bit(blocks[:, 4:16]), blocks[:, :4]], dim=1)
    return _split_halves(blocks[:, 16:], 32), _words(meta)


def _split_q5_k(blocks: Tensor) -> tuple[Tensor, Tensor]:
    meta = torch.cat([_split_six_bit(blocks[:, 4:16]), blocks[:, :4]], dim=1)
    return _split_halves(blocks[:, 48:], 32) | (_split_bits(blocks[:, 16:48]) << 4), _words(meta)


def _split_q6_k(blocks: Tensor) -> tuple[Tensor, Tensor]:
    quants = _split_halves(blocks[:, :128], 64)
    quants = quants.view(-1, 2, 2, 64)
    quants = quants | (_split_pairs(blocks[:, 128:192], 32) << 4).view_as(quants)
    scale = blocks[:, 208:]
    meta = torch.cat([blocks[:, 192:208], scale, _zeros_like(scale, 2)], dim=1)
    return quants.flatten(1), _words(meta)


def _split_q2_k(blocks: Tensor) -> tuple[Tensor, Tensor]:
    meta = torch.cat([blocks[:, :16], blocks[:, 80:]], dim=1)
    return _split_pairs(blocks[:, 16:80], 32), _words(meta)


def _split_q3_k(blocks: Tensor) -> tuple[Tensor, Tensor]:
    quants = _split_pairs(blocks[:, 32:96], 32) | (_split_bits(blocks[:, :32]) << 2)
    packed = blocks[:, 96:108]
    low = torch.cat([packed[:, :8] & 15, packed[:, :8] >> 4], dim=1)
    high = torch.cat([(packed[:, 8:] >> shift) & 3 for shift in (0, 2, 4, 6)], dim=1)
    scales = (low | (high << 4)) - 32
    scale = blocks[:, 108:]
    return quants, _words(torch.cat([scales, scale, _zeros_like(scale, 2)], dim=1))


def _split_iq4_xs(blocks: Tensor) -> tuple[Tensor, Tensor]:
    packed = blocks[:, 4:8]
    low = torch.stack([packed & 15, packed >> 4], dim=2).flatten(1)
    places = torch.arange(0, 8, 2, dtype=torch.uint8, device=blocks.device)
    high = ((blocks[:, 2:4].unsqueeze(-1) >> places) & 3).flatten(1)
    scale = blocks[:, :2]
    meta = torch.cat([(low | (high << 4)) - 32, scale, _zeros_like(scale, 2)], dim=1)
    return _split_halves(blocks[:, 8:], 16), _words(meta)


def _split_mxfp4(blocks: Tensor) -> tuple[Tensor, Tensor]:
    scale = blocks[:, :1]
    return _split_halves(blocks[:, 1:], 16), _words(torch.cat([scale, _zeros_like(scale, 3)], dim=1))


def _split_nvfp4(blocks: Tensor) -> tuple[Tensor, Tensor]:
    scales = blocks[:, :4]
    return _split_halves(blocks[:, 4:], 8), _words(torch.where(scales == 0x7F, 0, scales & 0x7F))


def _coded(type: GGMLType) -> Split:
    """The only scale of a block needs no byte beside d."""

    def split(blocks: Tensor) -> tuple[Tensor, Tensor]:
        codes, scales, d = CODED[type].split(blocks)
        parts = [d, _zeros_like(d, 2)] if scales.shape[1] == 1 else [scales, d, _zeros_like(d, 2)]
        return codes, _words(torch.cat(parts, dim=1))

    return split


SPLITS: dict[GGMLType, Split] = {
    GGMLType.Q4_0: _legacy(2, high=False),
    GGMLType.Q4_1: _legacy(4, high=False),
    GGMLType.Q5_0: _legacy(2, high=True),
    GGMLType.Q5_1: _legacy(4, high=True),
    GGMLType.Q8_0: _split_q8_0,
    GGMLType.Q2_K: _split_q2_k,
    GGMLType.Q3_K: _split_q3_k,
    GGMLType.Q4_K: _split_q4_k,
    GGMLType.Q5_K: _split_q5_k,
    GGMLType.Q6_K: _split_q6_k,
    GGMLType.IQ4_NL: _legacy(2, high=False),
    GGMLType.IQ4_XS: _split_iq4_xs,
    GGMLType.MXFP4: _split_mxfp4,
    GGMLType.NVFP4: _split_nvfp4,
    **{type: _coded(type) for type in CODED},
}
"""How each type's blocks come apart. Legacy blocks of 32 give one word: the file's scale bytes."""
