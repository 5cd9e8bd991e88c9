"""Quantised matrices as planes: the layout that the Triton kernels read.

A matrix [N, K] has its rows padded to a multiple of ROWS = 64 (a tile) and its columns to a multiple
of COLUMNS = 256 (a super-block), NT tiles and S super-blocks; padding has zero scales. A super-block
of a row is P = 8 planes of W = 32 consecutive columns: column 256 s + 32 p + j is element j of plane
p of super-block s. A scale serves one plane, half of one (`scale_width` 16) or all (scales "one").

A weight is `scale * (value(u) - offset) - minimum`, u its unsigned quant; `value` is the identity or an
entry of a table of 8 or 16 times a power of two (`table`, `unit`). The grids and signs of IQ1 to IQ3 are
looked up when a matrix is repacked, so that their quants are entries too (`kernels.quant.coded`). Three
tensors hold everything, each tile-major:

- `quants`, int16 [NT, S, 8 / F, 64, 32]: the low `bits` bits of u, F = 16 / bits planes to a word;
  plane p = F g + i lies in word g at bits `bits * i` upwards.
- `high`, [NT, S, 1, 64, 32], for quants of 5, 6 and 3 bits: their upper bits, those of plane p at bit
  `high_places[p]`. Q6_K: int16, two bits a plane; others: uint8, one. The places are such that
  one shift of the word brings the upper bits of several planes just above their lower bits: to bits
  4 and 8 for the nibbles at bits 0 and 4, to bits 2, 4, 6, 8 for pairs. Empty otherwise: [NT, S, 0, …].
- `meta`, int32 [NT, S, C, 64]: word c of each row's scales, least significant part first.
  scales "k": bytes sc, then a word d (float16) | dmin << 16; scale = d * sc. Q4_K, Q5_K (C = 5):
  8 bytes sc, 8 bytes m, minimum = dmin * m. Q2_K (C = 5): 16 bytes sc | m << 4, likewise. Q6_K, Q3_K
  (C = 5, 16 bytes) and IQ4_XS (C = 3, 8 bytes): sc signed (Q3_K, IQ4_XS: already less 32), no dmin.
  So too IQ1 to IQ3, of which sc is twice the file's and one more (C = 3 or 5).
  scales "half" (C = 4): word c holds the float16 scales of planes 2 c and 2 c + 1.
  scales "pair" (C = 8): word p is d | m << 16 of plane p, both float16; the minimum is -m.
  scales "one" (C = 1): d of the whole super-block.
  scales "e8m0" (C = 2): bytes, scale = 2 ** (byte - 128), with the table of doubled values.
  scales "e4m3" (C = 4): bytes, scale = half of a float with 4 exponent and 3 mantissa bits; likewise.

Rows may be permuted when repacked. Gate and up projections lie in one matrix with their rows in
pairs (`gate_up_order`): row 2 i is gate i, row 2 i + 1 is up i.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from kernels.planes.repack import SPLITS
from kernels.quant.coded import CODED
from kernels.quant.formats import FORMATS, GGMLType

ROWS = 64
"""Rows of one tile."""
WIDTH = 32
"""W, columns of one plane."""
PLANES = 8
"""P, planes of one super-block."""
COLUMNS = WIDTH * PLANES
"""Columns of one super-block."""

IQ4_TABLE = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
MXFP4_TABLE = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)

# Weights repacked at once; the temporary memory is some 16 bytes for each.
_SLAB = 1 << 24
_CPU_SLAB = 1 << 20


@dataclass(frozen=True, slots=True)
class PlanesFormat:
    """One type's layout; the module's docstring defines the fields."""

    bits: int
    scales: Literal["k", "half", "pair", "one", "e8m0", "e4m3"]
    words: int
    """C, int32 words of scales per row and super-block."""
    offset: int = 0
    minima: bool = False
    scale_width: int = WIDTH
    high_bits: int = 0
    high_places: tuple[int, ...] = ()
    table: tuple[int, ...] = ()
    unit: float = 1.0

    @property
    def high_dtype(self) -> torch.dtype:
        """Element type of `high`."""
        return torch.uint8 if self.high_bits == 1 else torch.int16


_FIFTH = (0, 4, 1, 5, 2, 6, 3, 7)
_THIRD = (0, 2, 4, 6, 1, 3, 5, 7)
_UPPER_PAIRS = (0, 4, 2, 6, 8, 12, 10, 14)


def _by_code(type: GGMLType, scale_width: int = WIDTH) -> PlanesFormat:
    """Of codes with whole scales: nibbles, or three bits where a table has no more entries."""
    coded, words = CODED[type], COLUMNS // scale_width // 4 + 1
    form = PlanesFormat(4, "k", words, scale_width=scale_width, table=coded.table, unit=coded.unit)
    return form if len(coded.table) > 8 else replace(form, bits=2, high_bits=1, high_places=_THIRD)


_TERNARY = PlanesFormat(2, "one", 1, offset=1)

LAYOUTS: dict[GGMLType, PlanesFormat] = {
    GGMLType.Q4_0: PlanesFormat(4, "half", 4, offset=8),
    GGMLType.Q4_1: PlanesFormat(4, "pair", 8, minima=True),
    GGMLType.Q5_0: PlanesFormat(4, "half", 4, offset=16, high_bits=1, high_places=_FIFTH),
    GGMLType.Q5_1: PlanesFormat(4, "pair", 8, minima=True, high_bits=1, high_places=_FIFTH),
    GGMLType.Q8_0: PlanesFormat(8, "half", 4, offset=128),
    GGMLType.Q2_K: PlanesFormat(2, "k", 5, minima=True, scale_width=16),
    GGMLType.Q3_K: PlanesFormat(2, "k", 5, offset=4, scale_width=16, high_bits=1, high_places=_THIRD),
    GGMLType.Q4_K: PlanesFormat(4, "k", 5, minima=True),
    GGMLType.Q5_K: PlanesFormat(4, "k", 5, minima=True, high_bits=1, high_places=_FIFTH),
    GGMLType.Q6_K: PlanesFormat(4, "k", 5, offset=32, scale_width=16, high_bits=2, high_places=_UPPER_PAIRS),
    GGMLType.IQ4_NL: PlanesFormat(4, "half", 4, table=IQ4_TABLE),
    GGMLType.IQ4_XS: PlanesFormat(4, "k", 3, table=IQ4_TABLE),
    GGMLType.MXFP4: PlanesFormat(4, "e8m0", 2, table=MXFP4_TABLE),
    GGMLType.NVFP4: PlanesFormat(4, "e4m3", 4, scale_width=16, table=MXFP4_TABLE),
    GGMLType.IQ1_S: _by_code(GGMLType.IQ1_S),
    GGMLType.IQ1_M: _by_code(GGMLType.IQ1_M, 16),
    GGMLType.IQ2_XXS: _by_code(GGMLType.IQ2_XXS),
    GGMLType.IQ2_XS: _by_code(GGMLType.IQ2_XS, 16),
    GGMLType.IQ2_S: _by_code(GGMLType.IQ2_S, 16),
    GGMLType.IQ3_XXS: _by_code(GGMLType.IQ3_XXS),
    GGMLType.IQ3_S: _by_code(GGMLType.IQ3_S),
    GGMLType.TQ1_0: _TERNARY,
    GGMLType.TQ2_0: _TERNARY,
}
"""The types with planes, and how each is laid out."""


@dataclass(frozen=True, slots=True)
class PlanesMatrix:
    """A repacked matrix; the module's docstring defines `quants`, `high` and `meta`."""

    type: GGMLType
    shape: tuple[int, int]
    """(N, K) without padding."""
    quants: Tensor
    high: Tensor
    meta: Tensor

    @property
    def format(self) -> PlanesFormat:
        """The layout of this matrix' type."""
        return LAYOUTS[self.type]

    @property
    def padded(self) -> tuple[int, int]:
        """(N, K) rounded up to whole tiles and super-blocks."""
        return self.quants.shape[0] * ROWS, self.quants.shape[1] * COLUMNS

    @property
    def nbytes(self) -> int:
        """Bytes that the three tensors hold."""
        return self.quants.nbytes + self.high.nbytes + self.meta.nbytes


def repack(
    raw: Tensor, type: GGMLType, shape: tuple[int, int], row_order: Tensor | None = None
) -> PlanesMatrix:
    """Planes from a file's bytes, on the device of `raw` (uint8 [nbytes], row after row).

    `row_order` int64 [N], on the same device, lists the source row of every row; a row may be taken twice.
    Matrices of one type and width stack by concatenating their bytes.
    """
    rows, columns = shape
    block = FORMATS[type]
    per_row, rest = divmod(columns, block.elements)
    line = per_row * block.nbytes
    whole = raw.numel() % line == 0 if row_order is not None and line else raw.numel() == rows * line
    if type not in LAYOUTS or rest or not whole:
        raise ValueError(f"{type.name} {shape} cannot become planes from {tuple(raw.shape)} bytes")
    matrix = empty_planes(type, shape, raw.device)
    blocks = raw.view(-1, per_row, block.nbytes)
    step = _slab_rows(matrix)
    for start in range(0, rows, step):
        if row_order is None:
            part = blocks[start : start + step]
        else:
            part = blocks[row_order[start : start + step]]
        quants, meta = SPLITS[type](part.reshape(-1, block.nbytes))
        _store(matrix, start, quants.view(len(part), -1), meta.view(len(part), -1))
    return matrix


def gate_up_order(ffn: int, device: torch.device | None = None) -> Tensor:
    """Row order int64 [2 ffn] that pairs rows of [gate; up]: gate 0, up 0, gate 1, up 1, …"""
    return torch.arange(2 * ffn, device=device).view(2, ffn).T.reshape(-1)


def empty_planes(type: GGMLType, shape: tuple[int, int], device: torch.device) -> PlanesMatrix:
    """A matrix of zeros."""
    memory = torch.zeros(planes_nbytes(type, shape), dtype=torch.uint8, device=device)
    return planes_within(memory, type, shape)


def planes_nbytes(type: GGMLType, shape: tuple[int, int]) -> int:
    """Memory of a matrix."""
    return sum(math.prod(size) * dtype.itemsize for size, dtype in _tensors(type, shape))


def planes_within(memory: Tensor, type: GGMLType, shape: tuple[int, int]) -> PlanesMatrix:
    """A matrix in memory that holds it, uint8."""
    made, start = [], 0
    for size, dtype in _tensors(type, shape):
        nbytes = math.prod(size) * dtype.itemsize
        made.append(memory[start : start + nbytes].view(dtype).view(size))
        start += nbytes
    quants, meta, high = made
    return PlanesMatrix(type, shape, quants, high, meta)


def _tensors(type: GGMLType, shape: tuple[int, int]) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Quants, meta and high, which has the narrowest elements."""
    form = LAYOUTS[type]
    head = -(-shape[0] // ROWS), -(-shape[1] // COLUMNS)
    return [
        ((*head, PLANES * form.bits // 16, ROWS, WIDTH), torch.int16),
        ((*head, form.words, ROWS), torch.int32),
        ((*head, int(form.high_bits > 0), ROWS, WIDTH), form.high_dtype),
    ]


def _slab_rows(matrix: PlanesMatrix) -> int:
    weights = _CPU_SLAB if matrix.quants.device.type == "cpu" else _SLAB
    return max(1, weights // (ROWS * matrix.padded[1])) * ROWS


def _store(matrix: PlanesMatrix, start: int, quants: Tensor, meta: Tensor) -> None:
    """Packs quants uint8 [rows, K] and block words int32 [rows, words] into the planes."""
    form = matrix.format
    tiles, blocks = -(-len(quants) // ROWS), matrix.quants.shape[1]
    where = slice(start // ROWS, start // ROWS + tiles)
    quants = _pad(quants, tiles * ROWS, matrix.padded[1])
    planes = quants.view(tiles, ROWS, blocks, PLANES, WIDTH).permute(0, 2, 3, 1, 4)
    places = tuple(range(0, 16, form.bits))
    matrix.quants[where] = _pack(planes, places, (1 << form.bits) - 1)
    if form.high_bits:
        high = _pack(planes >> form.bits, form.high_places, (1 << form.high_bits) - 1)
        matrix.high[where] = high.to(form.high_dtype)
    words = COLUMNS // FORMATS[matrix.type].elements * _block_words(matrix.type)
    meta = _pad(meta, tiles * ROWS, blocks * words).view(-1, blocks, words)
    matrix.meta[where] = _fold(meta, form).view(tiles, ROWS, blocks, form.words).permute(0, 2, 3, 1)


def _pad(values: Tensor, rows: int, columns: int) -> Tensor:
    if values.shape == (rows, columns):
        return values
    out = values.new_zeros((rows, columns))
    out[: values.shape[0], : values.shape[1]] = values
    return out


def _pack(planes: Tensor, places: tuple[int, ...], mask: int) -> Tensor:
    """uint8 [tiles, blocks, P, 64, W] to int16 [tiles, blocks, P / len(places), 64, W]."""
    fields = planes.unflatten(2, (-1, len(places)))
    out = torch.zeros_like(fields[:, :, :, 0], dtype=torch.int32)
    for index, place in enumerate(places):
        out |= (fields[:, :, :, index] & mask).to(torch.int32) << place
    return out.to(torch.int16)


def _block_words(type: GGMLType) -> int:
    """Words that one block of the file gives."""
    return LAYOUTS[type].words if FORMATS[type].elements == COLUMNS else 1


def _fold(meta: Tensor, form: PlanesFormat) -> Tensor:
    """Words of 8 blocks of 32 closed up to `form.words`: halves to pairs, bytes to fours."""
    if form.scales not in ("half", "e8m0"):
        return meta
    size = torch.int16 if form.scales == "half" else torch.uint8
    return meta.contiguous().view(size).unflatten(2, (8, -1))[..., 0].contiguous().view(torch.int32)
