"""What of the processor's weights becomes which planes, and the pieces in which it crosses the bus."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from kernels.cpu.linear import CPULinear
from kernels.cpu.packed.experts import PackedExperts, Stack
from kernels.cpu.packed.tiles import PackedMatrix
from kernels.planes.layout import ROWS
from kernels.quant.formats import GGMLType
from kernels.streaming.tiles import TILE, has_both_layouts, tile_bytes

TILES = ROWS // TILE
"""Packed tiles of a tile of planes."""


@dataclass(frozen=True, slots=True)
class Source:
    """One matrix of planes and the packed ones that it is made of: one, or two whose rows lie in pairs."""

    type: GGMLType
    shape: tuple[int, int]
    stacks: tuple[Stack, ...]
    rows: int
    """Of one expert, which padding follows up to whole tiles; all where there are none."""

    @property
    def tiles(self) -> int:
        """Of planes."""
        return -(-self.shape[0] // ROWS)

    @property
    def tiles_of_one(self) -> int:
        """Of planes of one expert."""
        return -(-self.rows // ROWS)

    @property
    def step(self) -> int:
        """Packed tiles of each stack for one tile of planes."""
        return TILES // len(self.stacks)

    @property
    def bytes_of_tile(self) -> int:
        """What crosses over for one tile of planes."""
        return TILES * sum(tile_bytes(self.type, self.shape[1]))


def linear_sources(linear: CPULinear) -> list[Source] | None:
    """One for each part; None where a GPU cannot make planes of it."""
    parts = [part for part in linear.parts if isinstance(part, PackedMatrix)]
    if len(parts) < len(linear.parts) or not all(has_both_layouts(part.type) for part in parts):
        return None
    if not linear.gated:
        return [Source(part.type, (part.rows, part.columns), (_whole(part),), part.rows) for part in parts]
    if len(parts) != 1:
        # Gate and up of two types; a GPU makes float16 of them.
        return None
    (part,) = parts
    half, rest = divmod(part.rows, 2 * TILE)
    if rest:
        return None
    gate, up = (replace(_whole(part), first=first, tiles=half) for first in (0, half))
    return [Source(part.type, (part.rows, part.columns), (gate, up), part.rows)]


def expert_sources(experts: PackedExperts) -> list[Source] | None:
    """Gate and up in pairs, then down; None where a GPU cannot make planes of them."""
    gate, up, down = experts.gate, experts.up, experts.down
    kinds = gate.matrix.type, down.matrix.type
    if up.matrix.type != kinds[0] or not all(map(has_both_layouts, kinds)):
        return None
    return [_of_experts(experts.own.count, gate, up), _of_experts(experts.own.count, down)]


def _of_experts(count: int, *stacks: Stack) -> Source:
    rows = TILE * sum(stack.tiles for stack in stacks)
    shape = count * -(-rows // ROWS) * ROWS, stacks[0].matrix.columns
    return Source(stacks[0].matrix.type, shape, stacks, rows)


def _whole(part: PackedMatrix) -> Stack:
    return Stack(part, part.tiles, 0, part.tiles)


@dataclass(frozen=True, slots=True)
class Piece:
    """Some tiles of planes: copies into the staging memory, and where it holds what then."""

    first: int
    count: int
    copies: tuple[tuple[Tensor, Tensor], ...]
    """(of the staging memory, of the host's)."""
    places: tuple[int, int, int, int]
    """As `kernels.streaming.tiles.planes_of_tiles` takes them."""


def pieces_of(source: Source, staging: Tensor) -> list[Piece]:
    """As many as the staging memory makes necessary."""
    most = staging.nbytes // source.bytes_of_tile
    if not most:
        raise ValueError(f"staging memory of {staging.nbytes} bytes holds no tile of {source.shape}")
    starts = range(0, source.tiles, most)
    return [_piece(source, staging, first, min(most, source.tiles - first)) for first in starts]


def _piece(source: Source, staging: Tensor, first: int, count: int) -> Piece:
    packed, at = count * source.step, 0
    copies: list[tuple[Tensor, Tensor]] = []
    places: list[int] = []
    for part in range(2):
        for stack in source.stacks:
            memory = (stack.matrix.quants, stack.matrix.scales)[part]
            places.append(at)
            padded = source.tiles_of_one * source.step
            for start, tiles, later in _runs(stack, padded, first * source.step, packed):
                begin, nbytes = at + later * memory.shape[1], tiles * memory.shape[1]
                target = staging[begin : begin + nbytes]
                copies.append((target, memory[start : start + tiles].view(-1)))
            at += packed * memory.shape[1]
    if len(source.stacks) == 1:
        places = [place for place in places for _ in range(2)]
    return Piece(first, count, tuple(copies), (places[0], places[1], places[2], places[3]))


def _runs(stack: Stack, padded: int, first: int, count: int) -> Iterator[tuple[int, int, int]]:
    """(tile of the matrix, how many, how many came before) for tiles of a stack that begin at `first`.

    padded: tiles from one expert to the next where experts fill whole tiles of planes.
    """
    if stack.step == stack.tiles == padded:
        yield first, count, 0
        return
    done = 0
    while done < count:
        expert, within = divmod(first + done, padded)
        tiles = min(count - done, stack.tiles - within)
        if tiles > 0:
            yield expert * stack.step + stack.first + within, tiles, done
        done += min(count - done, padded - within)
