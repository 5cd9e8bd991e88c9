"""The inverse of `kernels.planes.layout.repack`: a file's bytes out of planes, so nothing is lost."""

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.planes.layout import ROWS, PlanesFormat, PlanesMatrix, _block_words, _slab_rows
from kernels.quant.formats import FORMATS, GGMLType
from kernels.quant.legacy import aligned

Join = Callable[[Tensor, Tensor], Tensor]


def unpack(matrix: PlanesMatrix) -> Tensor:
    """The file's bytes, uint8 [nbytes]: the inverse of `repack` (rows in their repacked order)."""
    rows, columns = matrix.shape
    block = FORMATS[matrix.type]
    per_row = columns // block.elements
    out = torch.empty((rows, per_row * block.nbytes), dtype=torch.uint8, device=matrix.quants.device)
    step = _slab_rows(matrix)
    for start in range(0, rows, step):
        count = min(step, rows - start)
        quants, meta = _load(matrix, start, count)
        quants = quants.view(count, -1)[:, :columns].reshape(-1, block.elements)
        meta = meta.reshape(count, -1)[:, : per_row * _block_words(matrix.type)]
        joined = JOINS[matrix.type](quants, meta.reshape(len(quants), -1))
        out[start : start + count] = joined.view(count, -1)
    return out.view(-1)


def _load(matrix: PlanesMatrix, start: int, rows: int) -> tuple[Tensor, Tensor]:
    """The inverse of `_store`, with the padded columns still there."""
    form = matrix.format
    tiles = -(-rows // ROWS)
    where = slice(start // ROWS, start // ROWS + tiles)
    planes = _spread(matrix.quants[where], tuple(range(0, 16, form.bits)), (1 << form.bits) - 1)
    if form.high_bits:
        high = _spread(matrix.high[where], form.high_places, (1 << form.high_bits) - 1)
        planes = planes | (high << form.bits)
    quants = planes.permute(0, 3, 1, 2, 4).reshape(tiles * ROWS, -1)[:rows]
    meta = matrix.meta[where].permute(0, 3, 1, 2).reshape(tiles * ROWS, -1, form.words)[:rows]
    return quants, _unfold(meta, form)


def _spread(words: Tensor, places: tuple[int, ...], mask: int) -> Tensor:
    """The inverse of `_pack`."""
    fields = [((words.to(torch.int32) >> place) & mask).to(torch.uint8) for place in places]
    return torch.stack(fields, dim=3).flatten(2, 3)


def _unfold(meta: Tensor, form: PlanesFormat) -> Tensor:
    """The inverse of `_fold`; bits above the scale are zero."""
    if form.scales not in ("half", "e8m0"):
        return meta
    size, mask = (torch.int16, 0xFFFF) if form.scales == "half" else (torch.uint8, 0xFF)
    return meta.contiguous().view(size).to(torch.int32) & mask


def _bytes(words: Tensor) -> Tensor:
    """int32 [n, w] as uint8 [n, 4 w]."""
    return aligned(words).view(torch.uint8)


def _join_halves(quants: Tensor, group: int) -> Tensor:
    grouped = quants.reshape(quants.shape[0], -1, 2, group)
    return ((grouped[:, :, 0] & 15) | (grouped[:, :, 1] << 4)).flatten(1)


def _join_pairs(quants: Tensor, group: int) -> Tensor:
    fields = (quants & 3).reshape(quants.shape[0], -1, 4, group)
    low = fields[:, :, 0] | (fields[:, :, 1] << 2)
    return (low | (fields[:, :, 2] << 4) | (fields[:, :, 3] << 6)).flatten(1)


def _join_bits(bits: Tensor) -> Tensor:
    fields = bits.reshape(bits.shape[0], 8, 32)
    out = fields[:, 0].clone()
    for shift in range(1, 8):
        out |= fields[:, shift] << shift
    return out


def _join_q8_0(quants: Tensor, meta: Tensor) -> Tensor:
    return torch.cat([_bytes(meta)[:, :2], quants ^ 128], dim=1)


def _join_six_bit(parts: Tensor) -> Tensor:
    first, upper, second, higher = parts.split(4, dim=1)
    both = (upper & 15) | (higher << 4)
    return torch.cat([first | ((upper >> 4) << 6), second | ((higher >> 4) << 6), both], dim=1)


def _join_q4_k(quants: Tensor, meta: Tensor) -> Tensor:
    parts = _bytes(meta)
    return torch.cat([parts[:, 16:], _join_six_bit(parts[:, :16]), _join_halves(quants, 32)], dim=1)


def _join_q5_k(quants: Tensor, meta: Tensor) -> Tensor:
    parts = _bytes(meta)
    head = [parts[:, 16:], _join_six_bit(parts[:, :16]), _join_bits(quants >> 4)]
    return torch.cat([*head, _join_halves(quants, 32)], dim=1)


def _join_q6_k(quants: Tensor, meta: Tensor) -> Tensor:
    parts = _bytes(meta)
    return torch.cat([_join_halves(quants, 64), _join_pairs(quants >> 4, 32), parts[:, :18]], dim=1)


def _join_q2_k(quants: Tensor, meta: Tensor) -> Tensor:
    parts = _bytes(meta)
    return torch.cat([parts[:, :16], _join_pairs(quants, 32), parts[:, 16:]], dim=1)


def _join_q3_k(quants: Tensor, meta: Tensor) -> Tensor:
    parts = _bytes(meta)
    scales = parts[:, :16] + 32
    low = (scales[:, :8] & 15) | (scales[:, 8:] << 4)
    high = _join_pairs(scales >> 4, 4)
    head = [_join_bits((quants >> 2) & 1), _join_pairs(quants, 32)]
    return torch.cat([*head, low, high, parts[:, 16:18]], dim=1)


def _join_iq4_xs(quants: Tensor, meta: Tensor) -> Tensor:
    parts = _bytes(meta)
    scales = (parts[:, :8] + 32).view(-1, 4, 2)
    low = (scales[:, :, 0] & 15) | (scales[:, :, 1] << 4)
    fields = (scales.flatten(1) >> 4).view(-1, 2, 4)
    places = (1 << torch.arange(0, 8, 2, device=quants.device)).to(torch.uint8)
    high = (fields * places).sum(-1).to(torch.uint8)
    return torch.cat([parts[:, 8:10], high, low, _join_halves(quants, 16)], dim=1)


def _join_mxfp4(quants: Tensor, meta: Tensor) -> Tensor:
    return torch.cat([_bytes(meta)[:, :1], _join_halves(quants, 16)], dim=1)


def _legacy(meta_bytes: int, high: bool) -> Join:
    def join(quants: Tensor, meta: Tensor) -> Tensor:
        parts = [_bytes(meta)[:, :meta_bytes]]
        if high:
            bits = (quants >> 4).reshape(quants.shape[0], 4, 8)
            places = 1 << torch.arange(8, device=quants.device)
            parts.append((bits * places).sum(-1).to(torch.uint8))
        return torch.cat([*parts, _join_halves(quants, 16)], dim=1)

    return join


JOINS: dict[GGMLType, Join] = {
    GGMLType.Q4_0: _legacy(2, high=False),
    GGMLType.Q4_1: _legacy(4, high=False),
    GGMLType.Q5_0: _legacy(2, high=True),
    GGMLType.Q5_1: _legacy(4, high=True),
    GGMLType.Q8_0: _join_q8_0,
    GGMLType.Q2_K: _join_q2_k,
    GGMLType.Q3_K: _join_q3_k,
    GGMLType.Q4_K: _join_q4_k,
    GGMLType.Q5_K: _join_q5_k,
    GGMLType.Q6_K: _join_q6_k,
    GGMLType.IQ4_NL: _legacy(2, high=False),
    GGMLType.IQ4_XS: _join_iq4_xs,
    GGMLType.MXFP4: _join_mxfp4,
}
"""How each type's blocks are put together from `quants` and `meta`."""
