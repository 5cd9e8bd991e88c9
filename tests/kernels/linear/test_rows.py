"""Linears of few rows against float64 on the dequantised weights, for every type of weight."""

from dataclasses import replace

import pytest
import torch

from kernels.cuda.activations import Activations
from kernels.linear.rows import (
    gated_rows,
    linear_rows,
    linear_rows_parts,
    loads_early,
)
from kernels.linear.rows_plan import held_plan, multiprocessors, rows_plan
from kernels.planes.layout import LAYOUTS, empty_planes, gate_up_order, repack
from kernels.quant.formats import GGMLType
from tests.kernels.linear.twins import gated_rows_torch, linear_rows_torch
from tests.kernels.quant_cases import activations, plausible_bytes, quantized, relative_error

LIMIT = 1e-5
TYPES = list(LAYOUTS)


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that a kernel does not write shows."""
    empty = torch.empty

    def poison(*size: object, **options: object) -> torch.Tensor:
        made = empty(*size, **options)
        return made.fill_(float("nan")) if made.is_floating_point() else made.fill_(0x7F)

    monkeypatch.setattr(torch, "empty", poison)


def shape_of(full: bool) -> tuple[int, int]:
    return (4096, 4096) if full else (70, 512)


@pytest.mark.parametrize("type", TYPES, ids=lambda type: type.name)
@pytest.mark.parametrize("rows", [1, 13, 32])
def test_equals_float64(type: GGMLType, rows: int, device: str, full: bool) -> None:
    if not full and rows == 13 and type not in (GGMLType.Q4_K, GGMLType.Q6_K):
        pytest.skip("the interpreter is slow")
    matrix, weights = quantized(type, shape_of(full), device)
    x = activations(rows, matrix.shape[1], device)
    bias = torch.randn(matrix.shape[0], device=device)
    out = linear_rows(x, matrix, bias)
    assert out.shape[1:] == (rows, matrix.shape[0])
    expected = x.values.double() @ weights.T + bias
    assert relative_error(out.sum(0), expected) < LIMIT
    assert relative_error(linear_rows_torch(x, matrix, bias).sum(0), expected) < LIMIT


@pytest.mark.parametrize("type", [GGMLType.Q4_K, GGMLType.Q6_K, GGMLType.Q8_0], ids=lambda type: type.name)
def test_weights_may_be_loaded_before_activations_or_one_by_one(type: GGMLType, device: str) -> None:
    matrix, weights = quantized(type, (70, 512), device)
    x = activations(3, 512, device)
    processors = multiprocessors(matrix.quants.device)
    held = held_plan(type, 3, matrix.shape, processors, splits=1)
    assert held is not None and held.ahead == 2
    expected = x.values.double() @ weights.T
    for plan in (held, rows_plan(type, 3, matrix.shape, processors)):
        assert relative_error(linear_rows(x, matrix, plan=plan).sum(0), expected) < LIMIT


def test_registers_hold_the_weights_of_small_shares_alone() -> None:
    def ahead(type: GGMLType, rows: int, shape: tuple[int, int], splits: int) -> int | None:
        plan = held_plan(type, rows, shape, 132, splits)
        return None if plan is None else plan.ahead

    assert ahead(GGMLType.Q4_K, 8, (2048, 4096), 8) == 2
    assert ahead(GGMLType.Q4_K, 8, (2048, 2048), 8) == 1
    assert ahead(GGMLType.Q4_K, 8, (2048, 4096), 5) is None
    assert ahead(GGMLType.Q4_K, 8, (2048, 4096), 4) is None
    assert ahead(GGMLType.Q4_K, 9, (2048, 4096), 8) is None
    assert ahead(GGMLType.Q4_K, 8, (4096, 4096), 8) is None
    assert ahead(GGMLType.Q4_1, 8, (2048, 4096), 8) is None


def test_a_small_matrix_alone_has_work_before_its_inputs_are_there() -> None:
    small, large = (empty_planes(GGMLType.Q4_K, (rows, 4096), torch.device("meta")) for rows in (2048, 4096))
    assert loads_early([small], 1) and loads_early([small, small], 8)
    assert not loads_early([small], 9) and not loads_early([small], 4096)
    assert not loads_early([large], 1) and not loads_early([small, large], 1)
    assert not loads_early([torch.empty(2048, 4096)], 8)


@pytest.mark.parametrize("rows", [3, 20])
@pytest.mark.parametrize("kinds", [("Q4_K", "Q6_K"), ("TQ2_0", "NVFP4"), ("IQ2_XXS", "Q4_K")], ids="-".join)
def test_matrices_of_two_types_stand_side_by_side(kinds: tuple[str, str], rows: int, device: str) -> None:
    first, first_weights = quantized(GGMLType[kinds[0]], (128, 512), device)
    second, second_weights = quantized(GGMLType[kinds[1]], (70, 512), device)
    x, bias = activations(rows, 512, device), torch.randn(70, device=device)
    out = linear_rows_parts(x, [(first, None), (second, bias)]).sum(0)
    assert relative_error(out[:, :128], x.values.double() @ first_weights.T) < LIMIT
    assert relative_error(out[:, 128:], x.values.double() @ second_weights.T + bias) < LIMIT


def test_matrices_of_three_types_stand_side_by_side(device: str) -> None:
    kinds = (GGMLType.Q4_K, GGMLType.Q8_0, GGMLType.Q6_K)
    parts, weights = zip(*(quantized(kind, (66, 512), device) for kind in kinds), strict=True)
    x = activations(2, 512, device)
    out = linear_rows_parts(x, [(part, None) for part in parts]).sum(0)
    assert relative_error(out, x.values.double() @ torch.cat(weights).T) < LIMIT


def test_two_types_take_one_launch(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [(quantized(kind, (70, 512), device)[0], None) for kind in (GGMLType.Q4_K, GGMLType.Q6_K)]
    monkeypatch.setattr("kernels.linear.rows.planes_kernel", None)
    assert linear_rows_parts(activations(2, 512, device), parts).shape[1:] == (2, 140)


@pytest.mark.parametrize("type", [GGMLType.Q8_0, GGMLType.Q5_1], ids=lambda type: type.name)
def test_columns_need_not_fill_a_super_block(type: GGMLType, device: str) -> None:
    matrix, weights = quantized(type, (66, 416), device)
    x = activations(3, 416, device)
    assert relative_error(linear_rows(x, matrix).sum(0), x.values.double() @ weights.T) < LIMIT


@pytest.mark.parametrize("type", [GGMLType.Q4_K, GGMLType.Q6_K], ids=lambda type: type.name)
def test_small_activations_keep_their_minima(type: GGMLType, device: str) -> None:
    matrix, weights = quantized(type, (64, 512), device)
    for size in (1e-3, 1e3):
        x = activations(2, 512, device)
        values = (x.values.float() * size).half()
        x = Activations(values, values.float().unflatten(1, (-1, 16)).sum(-1))
        assert relative_error(linear_rows(x, matrix).sum(0), values.double() @ weights.T) < LIMIT


@pytest.mark.parametrize("type", [GGMLType.Q4_K, GGMLType.Q6_K], ids=lambda type: type.name)
def test_a_row_does_not_depend_on_its_batch_mates(type: GGMLType, device: str, full: bool) -> None:
    matrix, _ = quantized(type, shape_of(full), device)
    x = activations(8, matrix.shape[1], device)
    together = linear_rows(x, matrix)
    alone = linear_rows(Activations(x.values[3:4].clone(), x.sums[3:4].clone()), matrix)
    assert torch.equal(together[:, 3:4], alone)


def test_splits_add_up_to_the_same(device: str) -> None:
    matrix, weights = quantized(GGMLType.Q4_K, (64, 1280), device)
    x = activations(5, 1280, device)
    plan = rows_plan(GGMLType.Q4_K, 5, matrix.shape, multiprocessors(torch.device(device)))
    for splits in (1, 3, 5):
        out = linear_rows(x, matrix, plan=replace(plan, splits=splits))
        assert out.shape[0] == splits
        assert relative_error(out.sum(0), x.values.double() @ weights.T) < LIMIT


@pytest.mark.parametrize(
    "type", [GGMLType.Q4_K, GGMLType.Q6_K, GGMLType.IQ1_M, GGMLType.Q8_0], ids=lambda type: type.name
)
@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_gate_is_applied_in_registers(
    type: GGMLType, rows: int, activation: str, device: str, full: bool
) -> None:
    ffn, columns = (12288, 4096) if full else (72, 256)
    raw = plausible_bytes(type, (2 * ffn, columns), device)
    matrix = repack(raw, type, (2 * ffn, columns), gate_up_order(ffn, torch.device(device)))
    x = activations(rows, columns, device)
    out, expected = gated_rows(x, matrix, activation), gated_rows_torch(x, matrix, activation)
    assert relative_error(out.values, expected.values) < 1e-3
    padded = torch.nn.functional.pad(out.values.float(), (0, -ffn % 16))
    assert relative_error(out.sums, padded.unflatten(1, (-1, 16)).sum(-1)) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("rows", [1, 17])
def test_floats_stay_as_they_are(dtype: torch.dtype, rows: int, device: str, full: bool) -> None:
    shape = (4096, 4096) if full else (70, 200)
    weights = torch.randn(shape, device=device).to(dtype)
    x = activations(rows, shape[1], device)
    bias = torch.randn(shape[0], device=device)
    expected = x.values.double() @ weights.double().T + bias
    assert relative_error(linear_rows(x, weights, bias).sum(0), expected) < LIMIT
    assert relative_error(linear_rows_torch(x, weights, bias).sum(0), expected) < LIMIT


def test_more_rows_are_refused(device: str) -> None:
    with pytest.raises(ValueError, match="1 to 32"):
        linear_rows(activations(33, 64, device), torch.zeros(64, 64, device=device))
