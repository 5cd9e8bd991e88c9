"""Norms over runs of columns against the definition."""

import pytest
import torch

from kernels.linear.norm_columns import norm_columns
from kernels.reference.operations import TorchOperations
from tests.kernels.quant_cases import relative_error


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("splits", "tokens", "widths", "rest"), [(1, 2, (48, 24), 24), (3, 1, (16,), 0), (2, 0, (16,), 8)]
)
def test_kernel_equals_definition(splits, tokens, widths, rest, dtype, device):
    torch.manual_seed(splits)
    output = torch.randn(splits, tokens, sum(widths) + rest).to(dtype)
    output[..., : widths[0]] *= 1e-3
    weights = [(torch.rand(width) + 0.5, 1e-3 * 10**place) for place, width in enumerate(widths)]
    ops = TorchOperations(torch.device("cpu"), "float32", "float32", 16)
    norms = [ops.make_norm(weight, eps) for weight, eps in weights]
    expected = ops.norm_columns(output.float().sum(0), norms)
    actual = norm_columns(output.to(device), [(weight.to(device), eps) for weight, eps in weights])
    assert actual.dtype == torch.float32 and actual.shape == (1, tokens, sum(widths) + rest)
    torch.testing.assert_close(actual[0].cpu(), expected, rtol=2e-5, atol=1e-6)


def test_a_row_does_not_depend_on_its_neighbours(device):
    output, weight = torch.randn(2, 3, 40, device=device), torch.rand(24, device=device)
    alone = norm_columns(output[:, 1:2].contiguous(), [(weight, 1e-6)])
    output[:, 2] = float("nan")
    together = norm_columns(output, [(weight, 1e-6)])
    assert torch.equal(together[:, 1:2], alone)
    assert relative_error(alone[0, :, 24:], output[:, 1:2, 24:].sum(0)) < 1e-6
