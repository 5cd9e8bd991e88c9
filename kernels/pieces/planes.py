"""Weights out of planes in plain torch: the definition of `kernels.planes.layout`."""

from functools import cache

import torch
from torch import Tensor

from kernels.linear.linear import Weight
from kernels.planes.layout import ROWS, PlanesFormat


def rows_of(weight: Weight, first: int, count: int) -> Tensor:
    """float32 [count, K]: rows from `first` on, of planes a multiple of 64."""
    if isinstance(weight, Tensor):
        return weight[first : first + count].float()
    where = slice(first // ROWS, -(-(first + count) // ROWS))
    tiles = weight.quants[where], weight.high[where], weight.meta[where]
    return plane_values(weight.format, *tiles)[:count, : weight.shape[1]]


def gathered_rows(weight: Weight, ids: Tensor) -> Tensor:
    """float32 [T, K]: the rows `ids`, of any order."""
    if isinstance(weight, Tensor):
        return weight.index_select(0, ids).float()
    tile, row = ids.long() // ROWS, ids.long() % ROWS
    quants, high = (part[tile, :, :, row][:, :, :, None] for part in (weight.quants, weight.high))
    meta = weight.meta[tile, :, :, row][..., None]
    return plane_values(weight.format, quants, high, meta)[:, : weight.shape[1]]


def plane_values(
    form: PlanesFormat, quants: Tensor, high: Tensor, meta: Tensor, dtype: torch.dtype = torch.float32
) -> Tensor:
    """The planes of some tiles, of any number of rows R each → `dtype` [tiles * R, columns]."""
    tiles, blocks, _, rows, _ = quants.shape
    shifts = _constant(tuple(range(0, 16, form.bits)), torch.int32, quants.device).view(-1, 1, 1)
    values = ((quants.to(torch.int32).unsqueeze(3) >> shifts) & ((1 << form.bits) - 1)).flatten(2, 3)
    if form.high_bits:
        places = _constant(form.high_places, torch.int32, quants.device).view(-1, 1, 1)
        values = values | (((high.to(torch.int32) >> places) & ((1 << form.high_bits) - 1)) << form.bits)
    # Tiles, rows, super-blocks, planes, columns.
    values = values.permute(0, 3, 1, 2, 4)
    if form.table:
        values = _constant(form.table, dtype, quants.device)[values.long()]
    values = values.to(dtype) * form.unit - form.offset
    # One word, or one row, is contiguous to torch whatever its strides are; a view of halves needs them.
    words = meta.permute(0, 3, 1, 2).clone(memory_format=torch.contiguous_format)
    scale, minimum = _scales(words, form, dtype)
    weights = values.reshape(tiles, rows, blocks, scale.shape[-1], -1) * scale.unsqueeze(-1)
    if minimum is not None:
        weights = weights - minimum.unsqueeze(-1)
    return weights.reshape(tiles * rows, -1)


@cache
def _constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Made before a graph is captured: the host's memory cannot be read from one."""
    return torch.tensor(values, dtype=dtype, device=device)


def _scales(meta: Tensor, form: PlanesFormat, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Scale and minimum of every part of a super-block, from int32 [tiles, R, S, C]."""
    if form.scales in ("half", "pair"):
        halves = meta.view(torch.float16).to(dtype)
        return (halves, None) if form.scales == "half" else (halves[..., ::2], -halves[..., 1::2])
    if form.scales == "one":
        return meta.view(torch.float16)[..., :1].to(dtype), None
    if form.scales == "e4m3":
        scale = meta.view(torch.float8_e4m3fn).to(dtype) / 2
        # The bits of the largest are no number to torch.
        return torch.where(meta.view(torch.uint8) == 0x7F, 240.0, scale), None
    if form.scales == "e8m0":
        return torch.exp2(meta.view(torch.uint8).to(dtype) - 128), None
    factors = meta[..., -1:].contiguous().view(torch.float16).to(dtype)
    parts = meta[..., :-1].contiguous()
    if not form.minima:
        return parts.view(torch.int8).to(dtype) * factors[..., :1], None
    pairs = parts.view(torch.uint8)
    scale, minimum = (pairs & 15, pairs >> 4) if form.scale_width == 16 else pairs.split(8, dim=-1)
    return scale.to(dtype) * factors[..., :1], minimum.to(dtype) * factors[..., 1:]
