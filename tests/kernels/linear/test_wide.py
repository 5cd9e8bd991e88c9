"""Linears over planes for many rows, against float64 products of the reference's weights."""

from dataclasses import replace

import pytest
import torch

from kernels.cuda.activations import Activations
from kernels.cuda.gpu import Gpu
from kernels.linear.tile_plan import (
    FEW,
    MANY,
    MAX_SPLITS,
    OTHERS,
    SMALL,
    Tile,
    TilePlan,
    plan_tiles,
)
from kernels.linear.tiled import gated_tiled, linear_tiled
from kernels.linear.wide import (
    gated_wide,
    linear_dense,
    linear_wide,
    linear_wide_parts,
)
from kernels.planes.layout import LAYOUTS
from kernels.quant.formats import FORMATS, GGMLType
from tests.kernels.linear.twins import gate_activations_torch, linear_wide_torch
from tests.kernels.quant_cases import activations, quantized, relative_error

# The interpreter takes a program after another: small tiles there, the real ones on a GPU.
TINY = Tile(64, 16, 4, 2, 1)
H200 = Gpu(132, 227 << 10, True)


def plans(full: bool, type: GGMLType = GGMLType.Q4_K) -> list[TilePlan]:
    """All tiles for the type of most files, one for the others: each takes a second to compile."""
    tiles = (*FEW, *MANY, *OTHERS, *SMALL) if type == GGMLType.Q4_K else MANY[1:2]
    tiles = tiles if full else (TINY,)
    return [TilePlan(tile, splits, tma) for tile in tiles for splits, tma in ((1, False), (3, True))]


@pytest.mark.parametrize("type", LAYOUTS, ids=lambda type: type.name)
def test_tiled_product(type: GGMLType, device: str, full: bool) -> None:
    columns = 288 if FORMATS[type].elements == 32 else 512
    matrix, weights = quantized(type, (70, columns), device)
    bias = torch.randn(70, device=device)
    x = activations(300 if full else 19, columns, device)
    expected = x.values.double() @ weights.T + bias
    for plan in plans(full, type):
        result = linear_tiled(x, [(matrix, bias)], plan)
        assert result.shape == (plan.splits, *expected.shape)
        assert relative_error(result.double().sum(0), expected) < 9e-4


@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_gate_in_the_epilogue(activation, device: str, full: bool) -> None:
    matrix, _ = quantized(GGMLType.Q4_K, (96, 512), device)
    bias = torch.randn(96, device=device)
    x = activations(300 if full else 19, 512, device)
    for plan in [replace(plan, splits=1) for plan in plans(full)[:8]]:
        result = gated_tiled(x, matrix, bias, activation, plan)
        expected = gate_activations_torch(linear_tiled(x, [(matrix, bias)], plan), activation)
        assert relative_error(result.values, expected.values) < 1e-3
        assert relative_error(result.sums, expected.sums) < 1e-3


def test_gated_product_of_any_number_of_rows(device: str, full: bool) -> None:
    shape = (6144, 1024) if full else (96, 256)
    matrix, weights = quantized(GGMLType.Q6_K, shape, device)
    for rows in (33, 200, 500) if full else (3, 385):
        x = activations(rows, shape[1], device)
        gate, up = (x.values.double() @ weights.T).unflatten(1, (-1, 2)).unbind(-1)
        result = gated_wide(x, matrix, None)
        assert relative_error(result.values, torch.nn.functional.silu(gate) * up) < 2e-3
        assert relative_error(result.sums, result.values.double().unflatten(1, (-1, 16)).sum(-1)) < 1e-5


def test_real_shapes(device: str, full: bool) -> None:
    if not full:
        pytest.skip("a GPU's work")
    for type, shape in ((GGMLType.Q4_K, (6144, 4096)), (GGMLType.Q6_K, (4096, 12288))):
        matrix, weights = quantized(type, shape, device)
        for rows in (33, 64, 200, 512, 700):
            x = activations(rows, shape[1], device)
            expected = x.values.double() @ weights.T
            assert relative_error(linear_wide(x, matrix, None).double().sum(0), expected) < 9e-4


def test_parts_of_two_types_side_by_side(device: str, full: bool) -> None:
    shapes = (
        {GGMLType.Q4_K: (5120, 4096), GGMLType.Q6_K: (1024, 4096)} if full else {GGMLType.Q4_K: (64, 256)}
    )
    made = [quantized(type, shape, device) for type, shape in (shapes | {GGMLType.Q8_0: (70, 256)}).items()]
    made = made if not full else made[:2]
    bias = torch.randn(made[-1][1].shape[0], device=device)
    parts = [(made[0][0], None), (made[1][0], bias)]
    for rows in (100, 600) if full else (17,):
        x = activations(rows, made[0][1].shape[1], device)
        first, second = (x.values.double() @ weights.T for _, weights in made)
        result = linear_wide_parts(x, parts).double().sum(0)
        assert relative_error(result, torch.cat([first, second + bias], dim=1)) < 9e-4
    dense = torch.randn(32, x.values.shape[1], device=device).half()
    result = linear_wide_parts(x, [parts[0], (dense, None)]).double().sum(0)
    assert relative_error(result, torch.cat([first, x.values.double() @ dense.double().T], dim=1)) < 9e-4


def test_dense_product_in_slices(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix, weights = quantized(GGMLType.Q4_K, (200, 512), device)
    x = activations(7, 512, device)
    bias = torch.randn(200, device=device)
    expected = x.values.double() @ weights.T + bias
    assert relative_error(linear_dense(x, [(matrix, bias)])[0], expected) < 9e-4
    monkeypatch.setattr("kernels.linear.wide.SCRATCH_WEIGHTS", 64 * 512)
    twice = linear_dense(x, [(matrix, bias), (matrix, None)])[0]
    assert relative_error(twice[:, :200], expected) < 9e-4
    assert relative_error(twice[:, 200:], expected - bias) < 9e-4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_dense_weights(dtype: torch.dtype, device: str) -> None:
    weight = (torch.randn(96, 160, device=device) / 10).to(dtype)
    x = activations(40, 160, device)
    bias = torch.randn(96, device=device)
    result = linear_wide(x, weight, bias)
    assert relative_error(result, linear_wide_torch(x, weight, bias)) < 1e-5


def test_a_row_does_not_depend_on_the_others(device: str, full: bool) -> None:
    matrix, _ = quantized(GGMLType.Q6_K, (64, 512), device)
    plan = plans(full)[0]
    x = activations(24, 512, device)
    noise = x.values.clone()
    noise[:5], noise[6:] = 1000, -1000
    alone = linear_tiled(Activations(noise, x.sums), [(matrix, None)], plan)
    assert torch.equal(alone[:, 5], linear_tiled(x, [(matrix, None)], plan)[:, 5])


def test_nothing_outside_is_read(device: str, full: bool) -> None:
    """NaN behind the last token and the last column reaches no result."""
    matrix, weights = quantized(GGMLType.Q4_0, (66, 288), device)
    room = torch.full((20, 288), torch.nan, dtype=torch.float16, device=device)
    x = Activations(room[:17].normal_(), torch.empty(0, device=device))
    result = linear_tiled(x, [(matrix, None)], plans(full)[0])
    assert relative_error(result[0], x.values.double() @ weights.T) < 9e-4


@pytest.mark.parametrize("type", LAYOUTS, ids=lambda type: type.name)
def test_plans_fit_their_gpu(type: GGMLType) -> None:
    for gpu in (H200, Gpu(128, 99 << 10, False), Gpu(304, 64 << 10, False)):
        for rows in (33, 64, 65, 256, 512):
            plan = plan_tiles(type, rows, 4096, 4096, gpu)
            assert plan.tile.shared(type) <= gpu.shared
            assert 1 <= plan.splits <= MAX_SPLITS


def test_plans_fill_the_gpu() -> None:
    assert plan_tiles(GGMLType.Q4_K, 256, 4096, 12288, H200) == TilePlan(MANY[3], 4, True)
    assert plan_tiles(GGMLType.Q4_K, 256, 24576, 4096, H200, max_splits=1) == TilePlan(MANY[0], 1, True)
    assert plan_tiles(GGMLType.Q6_K, 512, 4096, 12288, H200).tile.tokens == 128
