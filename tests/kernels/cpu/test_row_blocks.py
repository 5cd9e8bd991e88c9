"""Blocks of rows for narrow registers, and in the registers of tiles: a row gives what it gives alone."""

import pytest
import torch

pytest.importorskip("llvmlite")

from kernels.contract import Activation
from kernels.cpu.operations import CPUOperations
from kernels.cpu.packed import products
from kernels.cpu.tile_registers import has_tile_registers
from kernels.quant.formats import GGMLType
from tests.kernels.cpu.test_operations import AFFINE, CPU, EXACT, ROUNDED, matrix, plain, relative


@pytest.fixture(autouse=True, params=["narrow", "tiles"])
def registers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    if request.param == "tiles":
        if not has_tile_registers():
            pytest.skip("this processor has no registers of tiles")
        return
    monkeypatch.setattr(products, "has_tile_registers", lambda: False)
    monkeypatch.setattr(products, "MORE_IN_BLOCKS", True)
    monkeypatch.setattr(products, "MOST_ROWS", 2)


def operations(weight_dtype: str) -> CPUOperations:
    made = CPUOperations(CPU, weight_dtype, "float32", 32)
    made._packed_rows = 1000
    return made


@pytest.mark.parametrize("weight_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", AFFINE)
def test_a_row_gives_what_it_gives_alone(name: str, weight_dtype: str):
    """Rows that fill blocks and that do not, and more than one call takes; the last stretch may be short."""
    type, ops = GGMLType[name], operations(weight_dtype)
    part, bias = matrix(type, 48, 768 if name.endswith("_K") or name == "IQ4_XS" else 320), torch.randn(48)
    handle, x = ops.make_linear([part], bias), torch.randn(70, part.shape[1])
    alone = torch.cat([ops.linear(row[None], handle) for row in x])
    for rows in (3, 4, 6, 70):
        assert torch.equal(ops.linear(x[:rows], handle), alone[:rows])
    expected = x.double() @ plain([part]).double().t() + bias
    assert relative(alone, expected) < (EXACT if weight_dtype == "float32" else ROUNDED)


@pytest.mark.parametrize("activation", ["silu", "gelu"])
@pytest.mark.parametrize("weight_dtype", ["float32", "bfloat16"])
def test_a_gate_gives_what_it_gives_alone(activation: Activation, weight_dtype: str):
    ops = operations(weight_dtype)
    parts = [matrix(GGMLType.Q4_K, 64, 256, seed=seed) for seed in range(2)]
    handle, x = ops.make_gate(parts, torch.randn(128), activation), torch.randn(67, 256)
    alone = torch.cat([ops.gated_linear(row[None], handle) for row in x])
    for rows in (5, 67):
        assert torch.equal(ops.gated_linear(x[:rows], handle), alone[:rows])


def test_what_is_not_finite_stays_in_its_row():
    ops = operations("bfloat16")
    handle = ops.make_linear([matrix(GGMLType.Q5_K, 32, 256)], None)
    x = torch.randn(6, 256)
    expected = ops.linear(x, handle)
    x[5, 40] = float("inf")
    got = ops.linear(x, handle)
    assert not got[5].isfinite().any() and torch.equal(got[:5], expected[:5])
