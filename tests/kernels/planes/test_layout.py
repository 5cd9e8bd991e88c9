"""Repacking loses nothing, for random bytes of every type, odd sizes and permuted rows."""

import pytest
import torch

from kernels.planes.layout import LAYOUTS, PlanesMatrix, gate_up_order, repack
from kernels.quant.dequant import dequantize
from kernels.quant.formats import FORMATS, GGMLType
from tests.kernels.planes.inverse import unpack

SHAPES = [(64, 256), (70, 768), (130, 512), (65, 160)]


def random_bytes(type: GGMLType, shape: tuple[int, int], device: str) -> torch.Tensor:
    block = FORMATS[type]
    count = shape[0] * shape[1] // block.elements * block.nbytes
    return torch.randint(0, 256, (count,), dtype=torch.uint8, device=device)


def shapes_of(type: GGMLType) -> list[tuple[int, int]]:
    return [shape for shape in SHAPES if shape[1] % FORMATS[type].elements == 0]


@pytest.mark.parametrize("type", LAYOUTS, ids=lambda type: type.name)
def test_unpack_returns_the_bytes_of_the_file(type: GGMLType, device: str) -> None:
    for shape in [*shapes_of(type), (4096, 4096)] if device == "cuda" else shapes_of(type):
        raw = random_bytes(type, shape, device)
        matrix = repack(raw, type, shape)
        assert torch.equal(unpack(matrix), raw)
        assert matrix.nbytes <= 1.06 * matrix.padded[0] * matrix.padded[1] * (
            FORMATS[type].nbytes / FORMATS[type].elements
        )


@pytest.mark.parametrize("type", LAYOUTS, ids=lambda type: type.name)
def test_blocks_of_equal_bytes_survive(type: GGMLType, device: str) -> None:
    for byte in (0, 0xFF):
        raw = torch.full_like(random_bytes(type, (64, 512), device), byte)
        assert torch.equal(unpack(repack(raw, type, (64, 512))), raw)


@pytest.mark.parametrize("type", LAYOUTS, ids=lambda type: type.name)
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


def weights_by_definition(matrix: PlanesMatrix) -> torch.Tensor:
    """float64 [N, K], from the definition in the docstring of `planes`."""
    form = matrix.format
    tiles, blocks = matrix.quants.shape[:2]
    words = matrix.quants.to(torch.int32).unsqueeze(3)
    shifts = torch.arange(0, 16, form.bits, device=words.device).view(-1, 1, 1)
    quants = ((words >> shifts) & ((1 << form.bits) - 1)).flatten(2, 3)
    if form.high_bits:
        places = torch.tensor(form.high_places, device=words.device).view(-1, 1, 1)
        high = (matrix.high.to(torch.int32) >> places) & ((1 << form.high_bits) - 1)
        quants = quants | (high << form.bits)
    quants = quants.permute(0, 3, 1, 2, 4)  # tiles, rows, super-blocks, planes, columns
    table = form.table or range(256)
    values = torch.tensor(table, dtype=torch.float64, device=words.device)[quants.long()] - form.offset
    meta = matrix.meta.permute(0, 3, 1, 2).contiguous()
    scale, minimum = scales_by_definition(meta, matrix)
    values = values.reshape(tiles, 64, blocks, scale.shape[-1], -1)
    weights = values * scale.unsqueeze(-1) - minimum.unsqueeze(-1)
    return weights.reshape(tiles * 64, -1)[: matrix.shape[0], : matrix.shape[1]]


def scales_by_definition(meta: torch.Tensor, matrix: PlanesMatrix) -> tuple[torch.Tensor, torch.Tensor]:
    form = matrix.format
    if form.scales in ("half", "pair"):
        halves = meta.view(torch.float16).double()
        if form.scales == "half":
            return halves, torch.zeros_like(halves)
        return halves[..., ::2], -halves[..., 1::2]
    if form.scales == "e8m0":
        scale = torch.exp2(meta.view(torch.uint8).double() - 128)
        return scale, torch.zeros_like(scale)
    factors = meta[..., -1:].contiguous().view(torch.float16).double()
    parts = meta[..., :-1].contiguous()
    if not form.minima:
        scale = parts.view(torch.int8).double() * factors[..., :1]
        return scale, torch.zeros_like(scale)
    pairs = parts.view(torch.uint8)
    scale, minimum = (pairs & 15, pairs >> 4) if form.scale_width == 16 else pairs.split(8, dim=-1)
    return scale.double() * factors[..., :1], minimum.double() * factors[..., 1:]


def test_gate_and_up_rows_alternate() -> None:
    assert gate_up_order(3).tolist() == [0, 3, 1, 4, 2, 5]


def test_bytes_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match="planes"):
        repack(torch.zeros(143, dtype=torch.uint8), GGMLType.Q4_K, (1, 256))
