"""The gate's kernel against its twin, and against pairs of gate and up rows."""

import pytest
import torch

from kernels.cuda.activations import Activations
from kernels.linear.gate import gate_activations, sigmoid_gate
from kernels.planes.layout import gate_up_order
from tests.kernels.linear.twins import gate_activations_torch
from tests.kernels.quant_cases import relative_error


@pytest.mark.parametrize("activation", ["silu", "gelu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_kernel_equals_twin(activation, dtype, device: str, full: bool) -> None:
    for splits, rows, features in ((1, 3, 48), (3, 2, 1100), *([(2, 300, 12288)] if full else [])):
        gate_up = torch.randn(splits, rows, 2 * features, device=device).to(dtype) * 3
        result, twin = gate_activations(gate_up, activation), gate_activations_torch(gate_up, activation)
        assert result.values.shape == (rows, features)
        assert relative_error(result.values, twin.values) < 1e-4
        padded = torch.nn.functional.pad(result.values.float(), (0, -features % 16))
        assert torch.allclose(result.sums, padded.unflatten(1, (-1, 16)).sum(-1), atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_sigmoid_gate_equals_its_definition(dtype, device: str) -> None:
    for splits, rows, features in ((1, 3, 48), (3, 2, 1100), (2, 0, 16)):
        x = torch.randn(rows, features, device=device).half()
        sums = torch.empty(rows, -(-features // 16), device=device)
        gate = torch.randn(splits, rows, features, device=device).to(dtype) * 3
        result = sigmoid_gate(Activations(x, sums), gate)
        expected = x.float() * torch.sigmoid(gate.float().sum(0))
        assert result.values.dtype == torch.float16
        torch.testing.assert_close(result.values.float(), expected, rtol=1e-3, atol=1e-6)
        padded = torch.nn.functional.pad(result.values.float(), (0, -features % 16))
        assert torch.allclose(result.sums, padded.unflatten(1, (-1, 16)).sum(-1), atol=1e-4)


def test_pairs_are_gate_and_up(device: str) -> None:
    gate, up = torch.randn(2, 5, 32, device=device)
    stacked = torch.cat([gate, up], dim=1)[:, gate_up_order(32, torch.device(device))]
    result = gate_activations(stacked[None].contiguous()).values
    assert relative_error(result, torch.nn.functional.silu(gate) * up) < 5e-4


def test_large_products_stay_finite(device: str) -> None:
    result = gate_activations(torch.full((1, 1, 32), 1e4, device=device))
    assert (result.values == 65504).all()
