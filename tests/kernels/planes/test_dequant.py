"""Dense copies of matrices in planes, against the reference's weights."""

import pytest
import torch

from kernels.planes.dequant import dequantize_planes
from kernels.planes.layout import LAYOUTS
from kernels.quant.formats import FORMATS, GGMLType
from tests.kernels.planes.twins import dequantize_planes_torch
from tests.kernels.quant_cases import quantized, relative_error


@pytest.mark.parametrize("type", LAYOUTS, ids=lambda type: type.name)
def test_weights_are_the_reference_rounded(type: GGMLType, device: str, full: bool) -> None:
    shapes = [(70, 512), (64, 288 if FORMATS[type].elements == 32 else 768)]
    for shape in [*shapes, (4096, 4096)] if full else shapes:
        matrix, expected = quantized(type, shape, device)
        out = torch.full(shape, torch.nan, dtype=torch.float16, device=device)
        dequantize_planes(matrix, out)
        assert relative_error(out, expected) < 6e-4
        twin = torch.empty_like(out)
        dequantize_planes_torch(matrix, twin)
        assert relative_error(out, twin) < 6e-4


def test_a_slice_of_the_rows(device: str) -> None:
    matrix, expected = quantized(GGMLType.Q6_K, (200, 512), device)
    out = torch.full((136, 512), torch.nan, dtype=torch.float16, device=device)
    dequantize_planes(matrix, out, first_row=64)
    assert relative_error(out, expected[64:]) < 6e-4


def test_nothing_outside_is_written(device: str) -> None:
    matrix, _ = quantized(GGMLType.Q4_0, (66, 288), device)
    room = torch.full((80, 288), 7.0, dtype=torch.float16, device=device)
    dequantize_planes(matrix, room[:66])
    assert (room[66:] == 7).all()


def test_wrong_scratch_is_refused(device: str) -> None:
    matrix, _ = quantized(GGMLType.Q4_K, (64, 512), device)
    with pytest.raises(ValueError, match="does not fit"):
        dequantize_planes(matrix, torch.empty(64, 512, device=device))
    with pytest.raises(ValueError, match="does not fit"):
        dequantize_planes(matrix, torch.empty(64, 512, dtype=torch.float16, device=device), first_row=32)
