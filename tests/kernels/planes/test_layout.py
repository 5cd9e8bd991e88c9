"""Repacking loses nothing, for random bytes of every type, odd sizes and permuted rows."""

import pytest
import torch

from kernels.planes.layout import LAYOUTS, gate_up_order, repack
from kernels.quant.dequant import dequantize
from kernels.quant.formats import FORMATS, GGMLType
from tests.kernels.planes.inverse import JOINS, unpack
from tests.kernels.planes.twins import weights_by_definition

SHAPES = [(64, 256), (70, 768), (130, 512), (65, 160)]


def random_bytes(type: GGMLType, shape: tuple[int, int], device: str) -> torch.Tensor:
    block = FORMATS[type]
    count = shape[0] * shape[1] // block.elements * block.nbytes
    return torch.randint(0, 256, (count,), dtype=torch.uint8, device=device)


def shapes_of(type: GGMLType) -> list[tuple[int, int]]:
    return [shape for shape in SHAPES if shape[1] % FORMATS[type].elements == 0]


@pytest.mark.parametrize("type", JOINS, ids=lambda type: type.name)
def test_unpack_returns_the_bytes_of_the_file(type: GGMLType, device: str) -> None:
    for shape in [*shapes_of(type), (4096, 4096)] if device == "cuda" else shapes_of(type):
        raw = random_bytes(type, shape, device)
        matrix = repack(raw, type, shape)
        assert torch.equal(unpack(matrix), raw)
        assert matrix.nbytes <= 1.06 * matrix.padded[0] * matrix.padded[1] * (
            FORMATS[type].nbytes / FORMATS[type].elements
        )


@pytest.mark.parametrize("type", JOINS, ids=lambda type: type.name)
def test_blocks_of_equal_bytes_survive(type: GGMLType, device: str) -> None:
    for byte in (0, 0xFF):
        raw = torch.full_like(random_bytes(type, (64, 512), device), byte)
        assert torch.equal(unpack(repack(raw, type, (64, 512))), raw)


@pytest.mark.parametrize("type", JOINS, ids=lambda type: type.name)
def test_rows_are_permuted_while_repacking(type: GGMLType, device: str) -> None:
    shape = (130, 512)
    raw = random_bytes(type, shape, device)
    order = torch.randperm(shape[0], device=device)
    permuted = unpack(repack(raw, type, shape, order)).view(shape[0], -1)
    assert torch.equal(permuted, raw.view(shape[0], -1)[order])


@pytest.mark.parametrize("type", LAYOUTS, ids=lambda type: type.name)
def test_planes_hold_what_their_definition_says(type: GGMLType, device: str) -> None:
    """The docstring of the module, written out: weights from planes equal the reference's."""
    shape = (70, 512)
    raw = random_bytes(type, shape, device)
    finite = torch.isfinite(dequantize(raw, type, shape))
    weights = weights_by_definition(repack(raw, type, shape))
    expected = dequantize(raw, type, shape).double()
    error = (weights - expected)[finite].abs()
    # The reference rounds scale * quant to float32 before it subtracts.
    assert (error <= 1e-6 * expected[finite].abs().max()).all()


CODED_BITS = {
    **dict.fromkeys(("TQ1_0", "TQ2_0"), 2.125),
    **dict.fromkeys(("IQ1_S", "IQ2_XXS"), 3.375),
    **dict.fromkeys(("IQ1_M", "IQ2_XS", "IQ2_S"), 3.625),
    **dict.fromkeys(("IQ3_XXS", "IQ3_S"), 4.375),
    "NVFP4": 4.5,
}


@pytest.mark.parametrize("type", LAYOUTS.keys() - JOINS.keys(), ids=lambda type: type.name)
def test_types_whose_grids_are_looked_up_lose_no_weight(type: GGMLType, device: str) -> None:
    """Every finite weight of random blocks is the reference's, and every other is none; rows may move."""
    shape = (130, 512)
    raw = random_bytes(type, shape, device)
    order = torch.randperm(shape[0], device=device)
    matrix = repack(raw, type, shape, order)
    expected = dequantize(raw, type, shape)[order].double()
    finite = torch.isfinite(expected)
    weights = weights_by_definition(matrix)
    assert torch.equal(weights[finite], expected[finite])
    assert not torch.isfinite(weights[~finite]).any()
    assert matrix.nbytes * 8 == CODED_BITS[type.name] * 192 * 512


def test_gate_and_up_rows_alternate() -> None:
    assert gate_up_order(3).tolist() == [0, 3, 1, 4, 2, 5]


def test_bytes_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match="planes"):
        repack(torch.zeros(143, dtype=torch.uint8), GGMLType.Q4_K, (1, 256))
