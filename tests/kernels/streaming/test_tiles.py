"""What the processor has packed becomes the planes that a GPU makes of the file itself, bit by bit."""

import pytest
import torch

from kernels.contract import QuantizedMatrix
from kernels.cpu.packed.form import FORMS
from kernels.cpu.packed.tiles import PackedMatrix, pack
from kernels.planes.layout import LAYOUTS, PlanesMatrix, empty_planes, gate_up_order, repack
from kernels.quant.formats import GGMLType
from kernels.streaming.tiles import planes_of_tiles, tile_bytes
from tests.kernels.quant_cases import plausible_bytes

TYPES = [type for type in FORMS if type in LAYOUTS]


def packed_bytes(parts: list[PackedMatrix], device: str) -> tuple[torch.Tensor, list[int]]:
    """All quants, then all scales, and where each begins."""
    pieces = [part.quants.flatten() for part in parts] + [part.scales.flatten() for part in parts]
    ends = torch.tensor([0, *(len(piece) for piece in pieces)]).cumsum(0).tolist()
    return torch.cat(pieces).to(device), ends[:-1]


def assert_same(made: PlanesMatrix, expected: PlanesMatrix) -> None:
    for name in ("quants", "high", "meta"):
        assert torch.equal(getattr(made, name), getattr(expected, name)), name


@pytest.mark.parametrize("type", TYPES, ids=lambda type: type.name)
@pytest.mark.parametrize("shape", [(70, 256), (130, 512)], ids=str)
def test_rows_as_they_are(type: GGMLType, shape: tuple[int, int], device: str) -> None:
    raw = plausible_bytes(type, shape, "cpu")
    packed = pack([QuantizedMatrix(raw, type, shape)])
    assert packed is not None
    source, (quants, scales) = packed_bytes([packed], device)
    made = empty_planes(type, shape, torch.device(device))
    made.meta.fill_(-1)
    planes_of_tiles(source, (quants, quants, scales, scales), made, 0, made.quants.shape[0], shape[0])
    assert_same(made, repack(raw.to(device), type, shape))


@pytest.mark.parametrize("type", [GGMLType.Q4_K, GGMLType.Q5_0, GGMLType.Q6_K], ids=lambda type: type.name)
def test_rows_of_gate_and_up_in_pairs_and_in_pieces(type: GGMLType, device: str) -> None:
    shape = (96, 256)
    gate, up = (plausible_bytes(type, shape, "cpu") for _ in range(2))
    parts = [pack([QuantizedMatrix(raw, type, shape)]) for raw in (gate, up)]
    source, places = packed_bytes([part for part in parts if part is not None], device)
    made = empty_planes(type, (192, 256), torch.device(device))
    for first, count in ((0, 2), (2, 1)):
        later = [size * 2 * first for size in tile_bytes(type, 256) for _ in range(2)]
        begin = tuple(place + step for place, step in zip(places, later, strict=True))
        planes_of_tiles(source, begin, made, first, count, 192)
    both = torch.cat([gate, up]).to(device)
    assert_same(made, repack(both, type, (192, 256), gate_up_order(96, torch.device(device))))
