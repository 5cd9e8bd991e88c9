"""How a few rows are multiplied: tile, warps, stages and splits, by type, number of rows and shape.

Measured on an H200 with weights outside its caches, Q4_K and Q6_K at the shapes of an 8 B model: tiles of
64 rows on two warps are best or within 5 % of it at every number of rows. More warps on a tile, wider
tiles and more stages lose: what counts is how many small programs share a multiprocessor.
"""

from dataclasses import dataclass, replace
from functools import cache
from math import log

import torch

from kernels.linear.rows_fields import scale_kind
from kernels.planes.layout import COLUMNS, LAYOUTS, WIDTH
from kernels.quant.formats import GGMLType

MAX_ROWS = 32
"""Activation rows that the kernels for few rows take at once."""
TOKEN_TILES = (8, 16, 32)
MAX_SPLITS = 16
_WEIGHTS, _WARPS = 64, 2
_MULTIPROCESSORS = 132
_HELD, _HELD_WEIGHTS, _HELD_PROGRAMS = 2, 16, 10
"""Super-blocks whose weights a warp's registers hold, rows of them, and programs of a multiprocessor: with 16
to 23 of them the attention part of an 8 B model's layer took 34.5 us instead of 32.4."""


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
    """Whether integer scales multiply the quants instead of the products."""
    ahead: int = 0
    """Super-blocks of every program, all of them loaded before it waits for activations; 0: one by one."""


@cache
def rows_plan(
    type: GGMLType, rows: int, shape: tuple[int, int], multiprocessors: int, gated: bool = False
) -> RowsPlan:
    """The plan of `rows` activations times a matrix [N, K]; a gate needs whole columns: one split."""
    tokens = next(tile for tile in TOKEN_TILES if rows <= tile)
    form = LAYOUTS[type]
    narrow = form.scale_width < WIDTH
    before = tokens > 8 and form.bits == 4 and form.minima and form.scales == "k"
    if gated:
        return RowsPlan(_WEIGHTS, tokens, _WARPS, 3, 1, before)
    stages = (2 if tokens == 32 else 3) if narrow else (3 if tokens == 32 else 2)
    programs = multiprocessors * (3.9 if narrow else 2.3 if tokens == 32 else 5.8)
    splits = _splits(-(-shape[0] // _WEIGHTS), -(-shape[1] // COLUMNS), programs)
    return RowsPlan(_WEIGHTS, tokens, _WARPS, stages, splits, before)


def held_plan(
    type: GGMLType, rows: int, shape: tuple[int, int], multiprocessors: int, splits: int
) -> RowsPlan | None:
    """One whose programs have all weights of their share in registers before their inputs are there.

    For a matrix so small that all these programs run at once, cut into so many splits.
    """
    form, plan = LAYOUTS[type], rows_plan(type, rows, shape, multiprocessors)
    each, rest = divmod(-(-shape[1] // COLUMNS), splits)
    many = -(-shape[0] // _HELD_WEIGHTS) * splits > _HELD_PROGRAMS * multiprocessors
    ready = not form.minima or scale_kind(form) == "minima"
    if rest or each > _HELD or plan.tokens > TOKEN_TILES[0] or many or not ready:
        return None
    return replace(plan, weights=_HELD_WEIGHTS, warps=1, ahead=each)


def _splits(tiles: int, blocks: int, programs: float) -> int:
    """The number of splits nearest to so many programs whose shares are about equal."""

    def miss(splits: int) -> float:
        uneven = -(-blocks // splits) * splits / blocks
        return abs(log(splits * tiles / programs)) + 4 * log(uneven)

    return min(range(1, max(1, min(blocks // 2, MAX_SPLITS)) + 1), key=miss)


def multiprocessors(device: torch.device) -> int:
    """Of the device, or an H200's where there is no GPU."""
    return _device_multiprocessors(device.index or 0) if device.type == "cuda" else _MULTIPROCESSORS


@cache
def _device_multiprocessors(index: int) -> int:
    return torch.cuda.get_device_properties(index).multi_processor_count
