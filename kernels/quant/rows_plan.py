"""How a few rows are multiplied: tile, warps, stages and splits, by type, number of rows and shape.

Measured on an H200 with weights outside its caches. Elsewhere the same rules hold the programs near
four to a multiprocessor, each with its share of the columns.
"""

from dataclasses import dataclass
from functools import cache

import torch

from kernels.quant.formats import GGMLType
from kernels.quant.planes import LAYOUTS, WIDTH

MAX_ROWS = 32
"""Activation rows that the kernels for few rows take at once."""
TOKEN_TILES = (8, 16, 32)
_MULTIPROCESSORS = 132


@dataclass(frozen=True, slots=True)
class RowsPlan:
    """One launch's constants."""

    weights: int
    """Rows of weights of one program."""
    tokens: int
    """Rows of activations, rounded up."""
    warps: int
    stages: int
    splits: int
    before: bool
    """Whether integer scales multiply the codes instead of the products."""


@cache
def rows_plan(
    type: GGMLType, rows: int, shape: tuple[int, int], multiprocessors: int, gated: bool = False
) -> RowsPlan:
    """The plan of `rows` activations times a matrix [N, K]; a gate needs whole columns: one split."""
    tokens = next(tile for tile in TOKEN_TILES if rows <= tile)
    form = LAYOUTS[type]
    before = tokens > 8 and form.bits == 4 and form.minima and form.scales == "k"
    weights, warps, stages, per = _tile(tokens, form.scale_width < WIDTH)
    tiles = -(-shape[0] // weights)
    blocks = -(-shape[1] // 256)
    wanted = round(per * multiprocessors / tiles)
    splits = 1 if gated else max(1, min(wanted, blocks // 2, 16))
    return RowsPlan(weights, tokens, warps, stages, splits, before)


def _tile(tokens: int, sides: bool) -> tuple[int, int, int, float]:
    """Rows of weights, warps, stages, and programs to a multiprocessor that splits should reach."""
    if sides:
        return (32, 1, 3, 4.0) if tokens == 8 else (128, 4, 3, 2.0)
    if tokens == 8:
        return (64, 2, 3, 5.0)
    return (64, 2, 3, 5.0) if tokens == 16 else (64, 2, 3, 4.0)


def multiprocessors(device: torch.device) -> int:
    """Of the device, or an H200's where there is no GPU."""
    return _device_multiprocessors(device.index or 0) if device.type == "cuda" else _MULTIPROCESSORS


@cache
def _device_multiprocessors(index: int) -> int:
    return torch.cuda.get_device_properties(index).multi_processor_count
