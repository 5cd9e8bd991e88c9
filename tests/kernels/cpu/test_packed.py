"""Packed weights are the file's own: their values lose nothing, and they take little more than the file."""

import numpy as np
import pytest
import torch

pytest.importorskip("llvmlite")

from kernels.contract import QuantizedMatrix
from kernels.cpu.linear import RawMatrix
from kernels.cpu.operations import CPUOperations
from kernels.cpu.packed import tiles as module
from kernels.cpu.packed.tiles import PackedMatrix, pack
from kernels.cpu.packed.values import rows_of, slices_of
from kernels.quant.formats import FORMATS, GGMLType
from tests.kernels.cpu.test_operations import AFFINE, CPU, HALVES, matrix, plain

ROWS, COLUMNS = 64, 512


def values(made: PackedMatrix, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """[rows, columns]."""
    return torch.cat([part.t().clone() for _, part in slices_of(made, dtype)])


@pytest.mark.parametrize("rows", [16, 64, 37])
@pytest.mark.parametrize("name", AFFINE)
def test_values_are_the_files_own(name: str, rows: int):
    """Of two matrices, one with rows in another order; the last tile may be padded."""
    parts = [matrix(GGMLType[name], ROWS, COLUMNS, order=True), matrix(GGMLType[name], rows, COLUMNS, seed=1)]
    made, expected = pack(parts), plain(parts)
    assert made is not None
    for dtype in (torch.float32, torch.bfloat16):
        assert torch.equal(values(made, dtype), expected.to(dtype))
    ids = torch.tensor([0, ROWS + rows - 1, 5, ROWS])
    assert torch.equal(rows_of(made, ids), expected[ids])
    if rows % 16 == 0:
        assert made.nbytes <= 1.04 * sum(part.raw.nbytes for part in parts)


class Stored:
    """Bytes that are read when they are asked for."""

    def __init__(self, raw: torch.Tensor) -> None:
        self.raw, self.nbytes = raw, raw.numel()

    def read_into(self, target: np.ndarray, start: int = 0) -> None:
        target[:] = self.raw[start : start + len(target)].numpy()


@pytest.mark.parametrize("slice_bytes", [1, 20_000])
def test_a_file_is_read_slice_by_slice(slice_bytes: int, monkeypatch):
    monkeypatch.setattr(module, "_SLICE_BYTES", slice_bytes)
    whole = matrix(GGMLType.Q5_K, 101, COLUMNS)
    made = pack([QuantizedMatrix(Stored(whole.raw), whole.type, whole.shape)])
    assert made is not None and torch.equal(values(made), plain([whole]))


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
    made = pack([whole])
    assert made is not None and torch.equal(values(made), plain([whole]))


@pytest.mark.parametrize("scale", [float("inf"), float("nan")])
@pytest.mark.parametrize("name", HALVES)
def test_scales_that_are_not_finite_are_left_to_the_definition(name: str, scale: float):
    type = GGMLType[name]
    broken = matrix(type, ROWS, COLUMNS)
    at = {"Q2_K": 80, "Q3_K": 108, "Q6_K": 208}.get(name, 0)
    broken.raw[at : at + 2] = torch.tensor([scale], dtype=torch.float16).view(torch.uint8)
    assert pack([broken]) is None
    ops = CPUOperations(CPU, "float32", "float32", 32)
    handle = ops.make_linear([broken], None)
    assert isinstance(handle.parts[0], RawMatrix)
    for rows in (1, 40):
        assert torch.equal(ops.linear(torch.zeros(rows, COLUMNS), handle)[:, 1:], torch.zeros(rows, ROWS - 1))


def test_powers_of_two_are_read_as_the_definition_reads_them():
    """Those of MXFP4: the smallest are subnormal, the largest is too large for the least of its values."""
    whole = matrix(GGMLType.MXFP4, ROWS, COLUMNS)
    powers = whole.raw.view(-1, 17)[:, 0]
    powers.copy_(torch.arange(len(powers)) % 250)
    made = pack([whole])
    assert made is not None and torch.equal(values(made), plain([whole]))
    powers[3] = 255
    assert pack([whole]) is None


@pytest.mark.parametrize("name", ["Q6_K", "IQ4_NL"])
def test_an_embedding_is_the_outputs_own_weight_or_one_more(name: str):
    ops = CPUOperations(CPU, "bfloat16", "bfloat16", 32)
    part, ids = matrix(GGMLType[name], ROWS, COLUMNS), torch.tensor([3, 63, 3])
    tied, own = ops.make_embedding(part, ops.make_linear([part], None)), ops.make_embedding(part)
    for handle in (tied, own):
        assert torch.equal(ops.embed(ids, handle), plain([part])[ids])
    assert ops.weight_bytes(tied) == 0 and ops.weight_bytes(own) == part.raw.nbytes
