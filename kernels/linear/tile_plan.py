"""Which tiles a fused linear over planes takes: a static choice by shape, type and GPU.

The choice fills the multiprocessors: of the measured tiles and numbers of splits, that whose programs
leave the fewest places empty in their last round, less what partial sums cost.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from kernels.cuda.gpu import Gpu
from kernels.planes.layout import LAYOUTS, WIDTH
from kernels.planes.unpack import HALF
from kernels.quant.formats import GGMLType

FEW_ROWS = 32
"""Up to so many rows a linear waits for its weights, and a kernel for few rows reads them faster."""
DENSE_ROWS = 512
"""Above so many rows a product goes through a dense copy of its weights."""
MAX_SPLITS = 8
"""Partial sums are written and read once more."""

_ALONE = 0.75
"""Speed of 4 warps that have a multiprocessor to themselves: nothing hides their unpacking."""
_SPLIT_COST = 250
"""What a further split costs, in columns of K."""


@dataclass(frozen=True, slots=True)
class Tile:
    """One program's share, and how it is run."""

    weights: int
    """Rows of weights."""
    tokens: int
    warps: int
    stages: int
    resident: int
    """Programs of one multiprocessor that the registers allow."""
    speed: float = 1.0
    """Relative to the others when all places are taken."""
    overhead: int = 100
    """What starting and ending a program costs, in columns of K."""

    def shared(self, type: GGMLType) -> int:
        """Bytes of shared memory: `stages` tiles of x, one fewer of words and scales."""
        form = LAYOUTS[type]
        quants = max(HALF * form.bits // 8, 2 * WIDTH)
        high = WIDTH * form.high_dtype.itemsize if form.high_bits else 0
        scales = {"pair": 4, "half": 2, "one": 1, "e8m0": 1, "e4m3": 2}
        scales["k"] = 3 if form.minima or form.scale_width < WIDTH else 2
        index = form.high_bits > 0 or form.bits == 2
        row = quants + high + 4 * (scales[form.scales] + index)
        barriers = 64
        return barriers + self.stages * HALF * self.tokens * 2 + (self.stages - 1) * self.weights * row


@dataclass(frozen=True, slots=True)
class TilePlan:
    """A tile, the number of slices of K, and how tokens come into shared memory."""

    tile: Tile
    splits: int
    tma: bool = False
    """By the bulk tensor copy engine; needs a whole tile of tokens."""


FEW = (Tile(128, 64, 4, 3, 3), Tile(64, 64, 4, 3, 4, 0.92))
"""Up to 64 tokens."""
MANY = (
    Tile(64, 128, 4, 3, 3, 0.79),
    Tile(64, 128, 4, 2, 3, 0.79),
    Tile(128, 128, 4, 2, 2, 0.81),
    Tile(128, 256, 8, 3, 1, 1.0, 300),
)
"""More."""
OTHERS = (Tile(64, 64, 4, 3, 4, 0.9), Tile(64, 128, 4, 2, 2))
"""For GPUs whose tensor cores take sums and operands from fewer registers than Hopper's."""
SMALL = (Tile(64, 64, 4, 2, 4),)
"""For any number of tokens, where the others do not fit."""


Path = Literal["rows", "tiles", "dense"]


def linear_plan(rows: int) -> Path:
    """Which kernel multiplies so many rows fastest on an H200, for every type.

    "rows" is `linear_rows`, "tiles" `linear_tiled`, "dense" `linear_dense`.
    """
    if rows <= FEW_ROWS:
        return "rows"
    return "tiles" if rows <= DENSE_ROWS else "dense"


@cache
def batch_invariant_plan(
    type: GGMLType, count: int, columns: int, gpu: Gpu, max_splits: int = MAX_SPLITS
) -> TilePlan:
    """One plan for any number of rows of x: that of a tile of few tokens."""
    return replace(plan_tiles(type, FEW[0].tokens, count, columns, gpu, max_splits), tma=False)


@cache
def plan_tiles(
    type: GGMLType, rows: int, count: int, columns: int, gpu: Gpu, max_splits: int = MAX_SPLITS
) -> TilePlan:
    """The plan for x [rows, columns] times [count, columns] of a type."""
    few = rows <= FEW[0].tokens
    tiles: tuple[Tile, ...] = OTHERS[: 1 if few else 2]
    if gpu.tma:
        # Without bulk copies the largest tile's address arithmetic costs more than it saves.
        tiles = FEW if few else tuple(tile for tile in MANY if tile.tokens < 256 or rows >= tile.tokens)
    plans = [
        # Bulk copies that reach past the last token are slow.
        TilePlan(tile, splits, gpu.tma and rows >= tile.tokens)
        for tile in [tile for tile in tiles if tile.shared(type) <= gpu.shared] or SMALL
        for splits in range(1, min(max_splits, -(-columns // HALF)) + 1)
    ]
    return max(plans, key=lambda plan: _score(plan, type, rows, count, columns, gpu))


def _score(plan: TilePlan, type: GGMLType, rows: int, count: int, columns: int, gpu: Gpu) -> float:
    """Expected speed relative to full multiprocessors that never start or end a program."""
    tile = plan.tile
    room = (gpu.shared + 1024) // (tile.shared(type) + 1024)
    resident = max(1, min(tile.resident, room))
    token_tiles = -(-rows // tile.tokens)
    rounds = -(-count // tile.weights) * token_tiles * plan.splits / (resident * gpu.multiprocessors)
    filled = rounds / -(-rounds // 1) * rows / (token_tiles * tile.tokens)
    slice = columns / plan.splits
    speed = tile.speed * (_ALONE if resident * tile.warps <= 4 else 1.0) * slice / (slice + tile.overhead)
    return speed * filled / (1 + _SPLIT_COST * (plan.splits - 1) / columns)
