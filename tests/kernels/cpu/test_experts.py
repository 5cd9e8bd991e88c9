"""Experts from the file's own blocks against the definition: few rows, and many."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("llvmlite")

from kernels.contract import ExpertMatrices, QuantizedMatrix, Routing
from kernels.cpu import experts as cpu_experts
from kernels.cpu.compiler import wide_registers
from kernels.cpu.dots import host_dots
from kernels.cpu.operations import CPUOperations
from kernels.cpu.packed import products, values
from kernels.quant.formats import GGMLType
from kernels.reference.operations import TorchOperations
from tests.kernels.cpu.test_operations import AFFINE, CPU, relative
from tests.kernels.quant_cases import plausible_bytes

FLOATS = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}
COUNT, HIDDEN, SIZE = 5, 256, 256
ACTIVATIONS = ["silu", "gelu", "relu2", "swiglu_oai"]


def matrix(name: str, rows: int, columns: int) -> QuantizedMatrix:
    if name in FLOATS:
        raw = (torch.randn(rows, columns) / columns**0.5).to(FLOATS[name]).view(torch.uint8).flatten()
    else:
        raw = plausible_bytes(GGMLType[name], (rows, columns), "cpu")
    return QuantizedMatrix(raw, GGMLType[name], (rows, columns))


def layer(gate: str, up: str | None = None, down: str | None = None, size: int = SIZE) -> ExpertMatrices:
    """up: None for both in one matrix."""
    wide = [matrix(name, COUNT * size, HIDDEN) for name in (gate, up)] if up else None
    return ExpertMatrices(
        COUNT,
        matrix("F32", COUNT, HIDDEN),
        None,
        wide or [matrix(gate, COUNT * 2 * size, HIDDEN)],
        matrix(down or gate, COUNT * HIDDEN, size),
    )


def biased(matrices: ExpertMatrices) -> ExpertMatrices:
    return replace(
        matrices,
        router_bias=torch.randn(COUNT),
        gate_up_bias=torch.randn(COUNT, 2, SIZE) / 10,
        down_bias=torch.randn(COUNT, HIDDEN) / 10,
    )


def both(
    matrices: ExpertMatrices, activation: str, tokens: int, dtype: str = "float32", scale: float = 0.25
) -> list[torch.Tensor]:
    """Ours and the definition's."""
    x, routing = torch.randn(tokens, HIDDEN), Routing(2, "softmax", True, 1.5)
    results = []
    for kind in (CPUOperations, TorchOperations):
        ops = kind(CPU, dtype, dtype, 32)
        results.append(ops.experts(x, ops.make_experts(matrices, routing, activation, scale)))
    return results


def refuse(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def fail(*arguments: object) -> None:
        raise AssertionError(name)

    monkeypatch.setattr(cpu_experts, name, fail)


@pytest.mark.parametrize("name", [*AFFINE, *FLOATS])
def test_experts_of_few_rows_are_those_of_the_definition(name: str, monkeypatch: pytest.MonkeyPatch):
    """Experts with one row and with more than are multiplied together."""
    refuse(monkeypatch, "_by_slices")
    for tokens in (1, 11):
        assert relative(*both(layer(name), "silu", tokens)) < 3e-6


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_and_biases_are_those_of_the_definition(activation: str):
    matrices = layer("MXFP4", "MXFP4", "Q4_1")
    assert relative(*both(matrices, activation, 3)) < 3e-6
    assert relative(*both(biased(matrices), activation, 3)) < 3e-6


@pytest.mark.parametrize("tokens", [1, 7])
def test_every_part_has_its_own_type(tokens: int):
    assert relative(*both(layer("Q4_K", "Q8_0", "Q6_K"), "silu", tokens)) < 3e-6
    assert relative(*both(layer("Q5_0", "IQ4_NL", "Q5_1", size=96), "gelu", tokens)) < 3e-6


@pytest.mark.parametrize(("dtype", "limit"), [("float32", 3e-6), ("bfloat16", 2e-2)])
@pytest.mark.parametrize(
    ("name", "blocks"), [("Q4_K", False), ("Q4_K", True), ("MXFP4", False), ("F16", False)]
)
def test_experts_of_many_rows_are_multiplied_one_after_another(
    name: str, blocks: bool, dtype: str, limit: float, monkeypatch: pytest.MonkeyPatch
):
    """By blocks of rows, as narrow registers need them, or slice by slice."""
    monkeypatch.setattr(products, "MORE_IN_BLOCKS", blocks)
    refuse(monkeypatch, "_by_rows")
    refuse(monkeypatch, "few_rows")
    monkeypatch.setattr(cpu_experts, "_most_rows", lambda _experts, _dtype: 0)
    monkeypatch.setattr(cpu_experts, "_SLICE_VALUES", 100 * HIDDEN)
    monkeypatch.setattr(values, "SLICE_BYTES", 100 * HIDDEN)
    for matrices in (biased(layer(name)), layer(name, "Q6_K")):
        assert relative(*both(matrices, "silu", 30, dtype)) < limit


@pytest.mark.skipif(
    not (wide_registers() and host_dots().by_bytes), reason="elsewhere they are decoded before"
)
def test_packed_experts_of_a_prompt_are_multiplied_as_they_lie_in_memory(monkeypatch: pytest.MonkeyPatch):
    refuse(monkeypatch, "_by_slices")
    x, routing = torch.randn(60, HIDDEN), Routing(2, "softmax", True, 1.5)
    matrices = biased(layer("Q4_K", "Q4_K", "Q6_K"))
    ours, expected = (
        kind(CPU, name, "float32", 32)
        for kind, name in ((CPUOperations, "bfloat16"), (TorchOperations, "float32"))
    )
    results = [ops.experts(x, ops.make_experts(matrices, routing, "silu")) for ops in (ours, expected)]
    assert relative(*results) < 1e-3


def test_rounded_activations_of_experts_lose_little():
    """Both products have them."""
    x, routing = torch.randn(3, HIDDEN), Routing(2, "softmax", True, 1.5)
    matrices = biased(layer("Q4_K", "Q4_K", "Q6_K"))
    ours, exact = (
        ops.experts(x, ops.make_experts(matrices, routing, "silu"))
        for ops in (CPUOperations(CPU, name, "float32", 32) for name in ("bfloat16", "float32"))
    )
    assert 0 < relative(ours, exact) < 1e-4


def test_a_token_does_not_depend_on_the_others():
    ops = CPUOperations(CPU, "bfloat16", "bfloat16", 32)
    experts = ops.make_experts(layer("Q4_K"), Routing(2, "sigmoid", False, 1.0), "silu")
    x = torch.randn(9, HIDDEN)
    together = ops.experts(x, experts)
    for row in range(9):
        assert relative(ops.experts(x[row : row + 1], experts)[0], together[row]) < 1e-6


def test_types_and_sizes_that_are_not_read_here_go_to_the_definition():
    unread = layer("IQ2_XXS")
    for part in (*unread.gate_up, unread.down):
        part.raw.view(-1, 66)[:, :2] = torch.tensor([1e-3], dtype=torch.float16).view(torch.uint8)
    for matrices in (unread, layer("Q8_0", "Q8_0", "F16", size=40)):
        ours, definition = both(matrices, "silu", 2)
        assert torch.equal(ours, definition)
