"""From the processor's packed tiles to a GPU's planes, on the GPU: both hold the same fields of the file.

`kernels.cpu.packed.form` says how tiles of 16 rows lie, `kernels.planes.layout` how planes of 64 rows do.
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from kernels.cpu.block_readers import READERS
from kernels.cpu.packed.form import FORMS, sizes
from kernels.planes.layout import COLUMNS, LAYOUTS, PLANES, ROWS, WIDTH, PlanesMatrix
from kernels.quant.formats import FORMATS, GGMLType

TILE = 16
"""Rows of a packed tile."""

_ROWS, _WIDTH, _PLANES = tl.constexpr(ROWS), tl.constexpr(WIDTH), tl.constexpr(PLANES)
_TILE, _VECTOR = tl.constexpr(TILE), tl.constexpr(4 * TILE)


@dataclass(frozen=True, slots=True)
class TileFields:
    """What the kernel knows of a type's packed tiles."""

    low_bits: int
    high_bits: int
    halves: int
    """float16 factors of a block."""
    numbers: int
    """Whole numbers of a block."""
    group_bytes: int
    """Quants of 32 columns of a tile."""
    record_bytes: int
    """Scales of a block of a tile."""
    groups: int
    """Of 32 columns in a block."""


def fields_of(type: GGMLType) -> TileFields:
    """Of a type that has both layouts."""
    form, own = FORMS[type], sizes(type)
    return TileFields(
        form.low_bits, form.high_bits, len(READERS[type].halves), form.numbers, form.group_bytes,
        own.record_bytes, own.groups,
    )  # fmt: skip


def tile_bytes(type: GGMLType, columns: int) -> tuple[int, int]:
    """Quants and scales of one packed tile."""
    blocks, own = columns // FORMATS[type].elements, fields_of(type)
    return blocks * own.groups * own.group_bytes, blocks * own.record_bytes


def planes_of_tiles(
    packed: Tensor, places: tuple[int, int, int, int], out: PlanesMatrix, first: int, count: int, rows: int
) -> None:
    """Fill `count` tiles of 64 rows of planes from tile `first` on.

    packed: uint8, with packed tiles that begin at `places`: quants of even and odd rows, then their scales.
    Of a matrix whose rows lie as they are both are the same. rows: of one expert, or of the matrix; what
    follows them up to a whole tile is padding with zero scales.
    """
    even, odd, even_scales, odd_scales = places
    columns = out.shape[1]
    quant_bytes, scale_bytes = tile_bytes(out.type, columns)
    _planes_of_tiles[(out.quants.shape[1], count)](
        packed, even, odd, even_scales, odd_scales, out.quants, out.high, out.meta, first,
        -(-rows // ROWS), rows, columns // WIDTH, quant_bytes, scale_bytes, out.quants.shape[1],
        PAIRED=even != odd, FORM=out.format, TILES=fields_of(out.type),
        BLOCKS=COLUMNS // FORMATS[out.type].elements, num_warps=4,
    )  # fmt: skip


def has_both_layouts(type: GGMLType) -> bool:
    """Whether a type can be brought over."""
    return type in FORMS and type in LAYOUTS


@triton.jit
def _plane(
    tiles: tl.tensor, inside: tl.tensor, lane: tl.tensor, column: tl.tensor, START: tl.constexpr,
    BITS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """int32 [rows, 32]: one plane's bits of a group of 32 columns, from the group's address on."""
    quad = column // 4
    at = START + quad % BITS * _VECTOR + column % 4
    byte = tl.load(tiles + at[None, :] + 4 * lane[:, None], mask=inside, other=0).to(tl.int32)
    return (byte >> (BITS * (quad // BITS))[None, :]) & ((1 << BITS) - 1)


@triton.jit
def _half(records: tl.tensor, lane: tl.tensor, inside: tl.tensor, NUMBER: tl.constexpr) -> tl.tensor:
    """int32 [rows]: the bits of a factor."""
    at = records + 2 * (NUMBER * _TILE + lane)
    low = tl.load(at, mask=inside, other=0).to(tl.int32)
    return low | tl.load(at + 1, mask=inside, other=0).to(tl.int32) << 8


@triton.jit
def _number(
    records: tl.tensor, lane: tl.tensor, inside: tl.tensor, NUMBER: tl.constexpr, HALVES: tl.constexpr
) -> tl.tensor:
    """int32 [rows]: one of a block's whole numbers."""
    at = records + 2 * HALVES * _TILE + NUMBER * _TILE + lane
    return tl.load(at, mask=inside, other=0).to(tl.int32)


@triton.jit
def _scale_word(
    records: tl.tensor, lane: tl.tensor, block: tl.tensor, blocks: tl.tensor, real: tl.tensor,
    WORD: tl.constexpr, FORM: tl.constexpr, TILES: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """int32 [rows]: a word of a super-block's scales, as planes have it; block: its first."""
    step: tl.constexpr = TILES.record_bytes
    at = tl.zeros_like(lane) + block
    if FORM.scales == "k":
        own = records + block * step
        if FORM.words == WORD + 1:
            value = _half(own, lane, real, 0)
            if TILES.halves > 1:
                value |= _half(own, lane, real, 1) << 16
        else:
            value = _number(own, lane, real, 4 * WORD, TILES.halves)
            for i in tl.static_range(1, 4):
                value |= _number(own, lane, real, 4 * WORD + i, TILES.halves) << (8 * i)
    elif FORM.scales == "pair":
        there = real & (at + WORD < blocks)
        own = records + (block + WORD) * step
        value = _half(own, lane, there, 0) | _half(own, lane, there, 1) << 16
    elif FORM.scales == "half":
        first = block + 2 * WORD
        value = _half(records + first * step, lane, real & (at + 2 * WORD < blocks), 0)
        value |= _half(records + (first + 1) * step, lane, real & (at + (2 * WORD + 1) < blocks), 0) << 16
    else:
        value = tl.zeros_like(lane)
        for i in tl.static_range(4):
            there = real & (at + (4 * WORD + i) < blocks)
            own = records + (block + 4 * WORD + i) * step
            value |= _number(own, lane, there, 0, TILES.halves) << (8 * i)
    return value


_NUMBERS = [
    "even",
    "odd",
    "even_scales",
    "odd_scales",
    "first",
    "tiles_of_one",
    "rows",
    "groups",
    "quant_bytes",
]
"""Of pieces and matrices, which differ too often for kernels of their own."""


@triton.jit(do_not_specialize=_NUMBERS)
def _planes_of_tiles(
    packed: tl.tensor, even: tl.tensor, odd: tl.tensor, even_scales: tl.tensor, odd_scales: tl.tensor,
    quants: tl.tensor, high: tl.tensor, meta: tl.tensor, first: tl.tensor, tiles_of_one: tl.tensor,
    rows: tl.tensor, groups: tl.tensor, quant_bytes: tl.tensor, scale_bytes: int, S: int,
    PAIRED: tl.constexpr, FORM: tl.constexpr, TILES: tl.constexpr, BLOCKS: tl.constexpr,
) -> None:  # fmt: skip
    """Grid: super-blocks by tiles of 64 rows; moves a tile's bytes in and as many out."""
    block, number = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row, column = tl.arange(0, _ROWS), tl.arange(0, _WIDTH)
    tile = first + number
    real = tile % tiles_of_one * _ROWS + row < rows
    source, starts, records = number * _ROWS + row, even, even_scales
    if PAIRED:
        source = number * (_ROWS // 2) + row // 2
        starts = tl.where(row % 2 == 0, even, odd)
        records = tl.where(row % 2 == 0, even_scales, odd_scales)
    lane = (source % _TILE).to(tl.int32)
    lines = packed + (starts + source // _TILE * quant_bytes)
    scales = packed + (records + source // _TILE * scale_bytes)
    fields: tl.constexpr = 16 // FORM.bits
    words: tl.constexpr = _PLANES // fields
    inner = row[:, None] * _WIDTH + column[None, :]
    place = (tile * S + block).to(tl.int64) * (_ROWS * _WIDTH)
    raised = tl.zeros((_ROWS, _WIDTH), tl.int32)
    for word in tl.static_range(words):
        low = tl.zeros((_ROWS, _WIDTH), tl.int32)
        for field in tl.static_range(fields):
            group = block * _PLANES + word * fields + field
            inside = real[:, None] & (group * _WIDTH + column < groups * _WIDTH)[None, :]
            own = (lines + group.to(tl.int64) * TILES.group_bytes)[:, None]
            bits = _plane(own, inside, lane, column, 0, TILES.low_bits)
            low |= bits << (FORM.bits * field)
            if FORM.high_bits:
                bits = _plane(own, inside, lane, column, _VECTOR * TILES.low_bits, TILES.high_bits)
                raised |= bits << FORM.high_places[word * fields + field]
        tl.store(quants + place * words + word * _ROWS * _WIDTH + inner, low.to(tl.int16))
    if FORM.high_bits:
        tl.store(high + place + inner, raised.to(high.dtype.element_ty))
    blocks = groups // TILES.groups
    scale_words: tl.constexpr = FORM.words
    for word in tl.static_range(scale_words):
        value = _scale_word(scales, lane, block * BLOCKS, blocks, real, word, FORM, TILES)
        tl.store(meta + ((tile * S + block) * scale_words + word) * _ROWS + row, value)
