"""Quants are the file's own: they and the dense weights made beside them lose nothing."""

import pytest
import torch

pytest.importorskip("llvmlite")

from kernels.cpu.operations import CPUOperations
from kernels.cpu.quant_weights import LANES, TILE, QuantLinear, make_quant_linear
from kernels.quant.formats import FORMATS, GGMLType
from tests.kernels.cpu.test_operations import AFFINE, CPU, HALVES, matrix, plain

ROWS, COLUMNS = 64, 512


def dequantised(made: QuantLinear) -> torch.Tensor:
    """The weight that the quants stand for, each value rounded once."""
    rows, columns, group = made.out_features, made.in_features, made.group
    quants = made.quants.double().view(rows // TILE, columns // group, group, TILE)
    values = quants * made.scales.double()[:, :, None] + made.offsets.double()[:, :, None]
    lines = values.float().view(rows // TILE, columns, TILE).transpose(1, 2)
    if made.gated:
        lines = lines.reshape(rows // TILE, 2, LANES, columns).transpose(0, 1)
    return lines.reshape(rows, columns)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("other", ["Q5_K", "Q6_K"])
@pytest.mark.parametrize("name", AFFINE)
def test_quants_and_dense_weights_are_the_files_values(name: str, other: str, gated: bool):
    """Beside a type with other groups; with rows in another order."""
    parts = [
        matrix(GGMLType[name], ROWS, COLUMNS, order=True),
        matrix(GGMLType[other], ROWS, COLUMNS, seed=1),
    ]
    expected = plain(parts)
    for dtype in (torch.float32, torch.bfloat16):
        dense = torch.empty(2 * ROWS, COLUMNS, dtype=dtype)
        made = make_quant_linear(parts, None, gated, dense)
        assert made is not None
        assert torch.equal(dequantised(made), expected)
        assert torch.equal(dense, expected.to(dtype))


@pytest.mark.parametrize("name", HALVES)
def test_scales_of_every_size_are_read_as_the_definition_reads_them(name: str):
    """Tiny and negative ones among them."""
    type = GGMLType[name]
    whole = matrix(type, ROWS, COLUMNS)
    raw = whole.raw.view(-1, FORMATS[type].nbytes).clone()
    scales = torch.tensor([6e-8, -0.02, 3.0, -1e-5, 100.0], dtype=torch.float16).view(torch.uint8)
    scales = scales.view(-1, 2)
    places = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "Q4_1": (0, 2), "Q5_1": (0, 2)}
    for number, at in enumerate(places.get(name, (0, 2) if name in ("Q4_K", "Q5_K") else (0,))):
        raw[:, at : at + 2] = scales[(torch.arange(len(raw)) + number) % len(scales)]
    whole.raw.copy_(raw.view(-1))
    dense = torch.empty(ROWS, COLUMNS)
    made = make_quant_linear([whole], None, False, dense)
    assert made is not None
    assert torch.equal(dense, plain([whole])) and torch.equal(dequantised(made), plain([whole]))


@pytest.mark.parametrize("scale", [float("inf"), float("nan")])
@pytest.mark.parametrize("name", HALVES)
def test_scales_that_are_not_finite_are_left_to_the_definition(name: str, scale: float):
    type = GGMLType[name]
    broken = matrix(type, ROWS, COLUMNS)
    at = {"Q2_K": 80, "Q3_K": 108, "Q6_K": 208}.get(name, 0)
    broken.raw[at : at + 2] = torch.tensor([scale], dtype=torch.float16).view(torch.uint8)
    assert make_quant_linear([broken], None, False) is None
    handle = CPUOperations(CPU, "float32", "float32", 32).make_linear([broken], None)
    assert handle.quantised is None
    assert torch.equal(handle.dense.product(torch.zeros(1, COLUMNS))[:, 1:], torch.zeros(1, ROWS - 1))


def test_powers_of_two_are_read_as_the_definition_reads_them():
    """Those of MXFP4: the smallest are subnormal, the largest is too large for the least of its values."""
    whole = matrix(GGMLType.MXFP4, ROWS, COLUMNS)
    powers = whole.raw.view(-1, 17)[:, 0]
    powers.copy_(torch.arange(len(powers)) % 250)
    dense = torch.empty(ROWS, COLUMNS)
    made = make_quant_linear([whole], None, False, dense)
    assert made is not None and torch.equal(dense, plain([whole]))
    assert torch.equal(dequantised(made), plain([whole]))
    powers[3] = 255
    assert make_quant_linear([whole], None, False) is None


def test_embeddings_are_the_files_values():
    ops = CPUOperations(CPU, "bfloat16", "bfloat16", 32)
    for part in (matrix(GGMLType.Q6_K, ROWS, COLUMNS), matrix(GGMLType.IQ4_NL, ROWS, COLUMNS)):
        assert torch.equal(ops.make_embedding(part).dense, plain([part]))
