"""The types whose blocks say little by themselves: grids of IQ1 to IQ3 and ternary TQ, as plain codes.

`CODED[type].split(blocks)` looks grids and signs up: uint8 [n, block bytes] become codes, uint8
[n, 256], whole scales, uint8 [n, 1, 8 or 16], each of as many columns, and the bytes of a float16
d, uint8 [n, 2]. A weight is `table[code] * unit * scale * d`, exactly.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from kernels.quant.formats import GGMLType
from kernels.quant.legacy import aligned

Codes = tuple[Tensor, Tensor, Tensor]
"""Codes, scales and d."""


@dataclass(frozen=True, slots=True)
class Coded:
    """One type's codes; the module's docstring defines the fields."""

    split: Callable[[Tensor], Codes]
    table: tuple[int, ...]
    unit: float = 1.0


@cache
def _grid(name: str) -> Tensor:
    """Levels of a grid's points by gguf's own tables: the bytes of one number a point."""
    from gguf import quants

    kind = getattr(quants, name)
    kind.init_grid()
    levels = torch.from_numpy(np.searchsorted(kind.grid_map, kind.grid[0, 0]).astype(np.uint8))
    return levels.view(torch.int64 if levels.shape[1] == 8 else torch.int32)[:, 0]


def _points(name: str, index: Tensor) -> Tensor:
    """The levels of blocks, uint8 [n, 256]."""
    return _grid(name).to(index.device)[index.int()].view(torch.uint8)


def _bits(packed: Tensor) -> Tensor:
    """The bits of bytes, lowest first: uint8 [n, ...] to [n, all of them]."""
    return ((packed.unsqueeze(-1) >> _places(packed, 8, 1)) & 1).flatten(1)


def _fields(packed: Tensor, count: int, width: int) -> Tensor:
    """`count` fields of each element, lowest first: [n, ...] to [n, all of them], of the same type."""
    return ((packed.unsqueeze(-1) >> _places(packed, count, width)) & ((1 << width) - 1)).flatten(1)


def _places(packed: Tensor, count: int, width: int) -> Tensor:
    return torch.arange(0, count * width, width, dtype=packed.dtype, device=packed.device)


def _numbers(part: Tensor, size: torch.dtype) -> Tensor:
    """Bytes as little-endian numbers of 16 or 32 bits, int32 [n, …]; those of 32 keep their sign."""
    numbers = aligned(part).view(size)
    return numbers.int() & 0xFFFF if size == torch.int16 else numbers


def _signs_of_seven(index: Tensor) -> Tensor:
    """Eight signs from seven bits, uint8 [n, …]: the last makes the number of negative ones even."""
    table = torch.tensor([i | (i.bit_count() & 1) << 7 for i in range(128)], dtype=torch.uint8)
    return table.to(index.device)[index]


def _odd(scales: Tensor) -> Tensor:
    return (2 * scales + 1).to(torch.uint8)


def _iq1_s(blocks: Tensor) -> Codes:
    words = _numbers(blocks[:, 34:50], torch.int16)
    upper = _fields(words, 4, 3)
    levels = _points("IQ1_S", blocks[:, 2:34].int() | upper << 8)
    deltas = (words >> 15).to(torch.uint8).repeat_interleave(32, dim=1)
    return levels | deltas << 2, _odd(words >> 12 & 7), blocks[:, :2]


def _iq1_m(blocks: Tensor) -> Codes:
    nibbles = _fields(blocks[:, 32:48], 2, 4)
    levels = _points("IQ1_M", blocks[:, :32].int() | (nibbles & 7).int() << 8)
    deltas = (nibbles >> 3).repeat_interleave(8, dim=1)
    top = blocks[:, 49:56:2]
    d = top[:, ::2] >> 4 | top[:, 1::2] & 0xF0
    return levels | deltas << 2, _odd(_fields(_numbers(blocks[:, 48:56], torch.int16), 4, 3)), d


def _iq2_xxs(blocks: Tensor) -> Codes:
    words = _numbers(blocks[:, 2:66], torch.int32).view(-1, 8, 2)
    levels = _points("IQ2_XXS", blocks[:, 2:66].reshape(-1, 8, 8)[..., :4].flatten(1))
    signs = _bits(_signs_of_seven(_fields(words[..., 1], 4, 7)))
    return levels | signs << 2, _odd(words[..., 1] >> 28 & 15), blocks[:, :2]


def _iq2_xs(blocks: Tensor) -> Codes:
    words = _numbers(blocks[:, 2:66], torch.int16)
    signs = _bits(_signs_of_seven(words >> 9))
    return _points("IQ2_XS", words & 511) | signs << 2, _odd(_fields(blocks[:, 66:74], 2, 4)), blocks[:, :2]


def _iq2_s(blocks: Tensor) -> Codes:
    upper = _fields(blocks[:, 66:74], 4, 2).int()
    levels = _points("IQ2_S", blocks[:, 2:34].int() | upper << 8)
    return levels | _bits(blocks[:, 34:66]) << 2, _odd(_fields(blocks[:, 74:82], 2, 4)), blocks[:, :2]


def _iq3_xxs(blocks: Tensor) -> Codes:
    words = _numbers(blocks[:, 66:98], torch.int32)
    signs = _bits(_signs_of_seven(_fields(words, 4, 7)))
    return _points("IQ3_XXS", blocks[:, 2:66]) | signs << 3, _odd(words >> 28 & 15), blocks[:, :2]


def _iq3_s(blocks: Tensor) -> Codes:
    upper = _bits(blocks[:, 66:74]).int()
    levels = _points("IQ3_S", blocks[:, 2:66].int() | upper << 8)
    return levels | _bits(blocks[:, 74:106]) << 3, _odd(_fields(blocks[:, 106:110], 2, 4)), blocks[:, :2]


def _tq1_0(blocks: Tensor) -> Codes:
    """Five trits of a byte are a fraction of 243: each comes to the top when it is tripled, as a byte."""
    parts = []
    for start, end, width, trits in ((0, 32, 32, 5), (32, 48, 16, 5), (48, 52, 4, 4)):
        powers = torch.tensor([3**i for i in range(trits)], dtype=torch.uint8, device=blocks.device)
        packed = blocks[:, start:end].reshape(-1, 1, width) * powers[:, None]
        parts.append(packed.flatten(1))
    codes = torch.cat(parts, dim=1).short() * 3 >> 8
    return codes.to(torch.uint8), torch.ones_like(blocks[:, :1]), blocks[:, 52:54]


def _tq2_0(blocks: Tensor) -> Codes:
    packed = blocks[:, :64].reshape(-1, 2, 1, 32)
    codes = packed >> _places(packed, 4, 2)[:, None] & 3
    return codes.flatten(1), torch.ones_like(blocks[:, :1]), blocks[:, 64:66]


def unpacker(type: GGMLType) -> Callable[[Tensor, Tensor], None]:
    """Blocks, uint8 [n, block bytes], into float32 [n, 256], bit for bit as gguf's reference."""
    coded = CODED[type]

    def unpack(blocks: Tensor, out: Tensor) -> None:
        codes, scales, d = coded.split(blocks)
        table = torch.tensor(coded.table, dtype=torch.float32, device=out.device) * coded.unit
        torch.index_select(table, 0, codes.int().view(-1), out=out.view(-1))
        factors = aligned(d).view(torch.float16).float() * scales
        out.view(len(out), scales.shape[1], -1).mul_(factors.unsqueeze(-1))

    return unpack


def _signed(*levels: int) -> tuple[int, ...]:
    """A table of levels and, behind the next power of two of them, their negatives."""
    filled = levels + (0,) * (-len(levels) % 4)
    return (*filled, *(-level for level in filled))


_IQ1 = (-7, 1, 9, 0, -9, -1, 7, 0)
"""Eighths: a level of -1, 0 or 1 moved up by one eighth, or down."""
_IQ2 = _signed(8, 25, 43)
_TERNARY = (-1, 0, 1, 2)

CODED: dict[GGMLType, Coded] = {
    GGMLType.IQ1_S: Coded(_iq1_s, _IQ1, 0.125),
    GGMLType.IQ1_M: Coded(_iq1_m, _IQ1, 0.125),
    GGMLType.IQ2_XXS: Coded(_iq2_xxs, _IQ2, 0.125),
    GGMLType.IQ2_XS: Coded(_iq2_xs, _IQ2, 0.125),
    GGMLType.IQ2_S: Coded(_iq2_s, _IQ2, 0.125),
    GGMLType.IQ3_XXS: Coded(_iq3_xxs, _signed(4, 12, 20, 28, 36, 44, 52, 62), 0.25),
    GGMLType.IQ3_S: Coded(_iq3_s, _signed(*range(1, 16, 2))),
    GGMLType.TQ1_0: Coded(_tq1_0, _TERNARY),
    GGMLType.TQ2_0: Coded(_tq2_0, _TERNARY),
}
"""The types with codes."""
