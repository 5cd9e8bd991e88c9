"""The residual addition and norm against float64 and its torch twin."""

import pytest
import torch

from kernels.linear.norm import add_norm
from tests.kernels.linear.twins import add_norm_torch

EPS = 1e-6


def inputs(tokens: int, hidden: int, splits: int, dtype: torch.dtype, device: str):
    generator = torch.Generator().manual_seed(tokens * hidden + splits)
    residual = torch.randn(tokens, hidden, generator=generator) * 3
    delta = torch.randn(splits, tokens, hidden, generator=generator).to(dtype) if splits else None
    weight = torch.randn(hidden, generator=generator)
    return residual.to(device), None if delta is None else delta.to(device), weight.to(device)


def relative(actual: torch.Tensor, expected: torch.Tensor) -> float:
    difference = (actual.double() - expected.double()).norm()
    return float(difference / expected.double().norm())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("splits", [0, 1, 3, 4])
@pytest.mark.parametrize(("tokens", "hidden"), [(1, 64), (3, 40), (5, 96), (2, 9), (1, 1), (0, 64)])
def test_add_norm_equals_its_twin(tokens, hidden, splits, dtype, device):
    residual, delta, weight = inputs(tokens, hidden, splits, dtype, device)
    _check(residual, delta, weight)


@pytest.mark.parametrize(("tokens", "hidden"), [(1, 4096), (32, 4096), (300, 2560), (7, 5120), (2048, 1024)])
def test_real_shapes(tokens, hidden, device, full):
    if not full:
        tokens = min(tokens, 2)
    residual, delta, weight = inputs(tokens, hidden, 4, torch.float32, device)
    _check(residual, delta, weight)


def _check(residual, delta, weight):
    expected_residual = residual.clone()
    expected = add_norm_torch(expected_residual, delta, weight, EPS)
    actual = add_norm(residual, delta, weight, EPS)
    assert torch.equal(residual, expected_residual)
    assert actual.values.dtype == torch.float16 and actual.sums.dtype == torch.float32
    assert actual.sums.shape == expected.sums.shape
    if residual.numel() == 0:
        return
    exact = residual.double()
    exact = exact / (exact.square().mean(-1, keepdim=True) + EPS).sqrt() * weight
    assert relative(actual.values, exact) < 4e-4
    torch.testing.assert_close(actual.values, expected.values, rtol=2e-3, atol=1e-6)
    own = torch.nn.functional.pad(actual.values.double(), (0, -residual.shape[1] % 16))
    torch.testing.assert_close(actual.sums.double(), own.unflatten(1, (-1, 16)).sum(-1), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("splits", [0, 2])
def test_picked_rows_leave_the_residual_alone(splits, device):
    residual, delta, weight = inputs(6, 48, splits, torch.float32, device)
    rows = torch.tensor([5, 0, 3], dtype=torch.int32, device=device)
    before = residual.clone()
    actual = add_norm(residual, delta, weight, EPS, rows)
    assert torch.equal(residual, before)
    expected = add_norm(residual, delta, weight, EPS)
    assert torch.equal(actual.values, expected.values[rows.long()])
    assert torch.equal(actual.sums, expected.sums[rows.long()])


def test_a_row_does_not_depend_on_its_neighbours(device):
    residual, delta, weight = inputs(4, 80, 2, torch.float32, device)
    alone = add_norm(residual[2:3].clone(), delta[:, 2:3].contiguous(), weight, EPS)
    residual[3] = float("nan")
    together = add_norm(residual, delta, weight, EPS)
    assert torch.equal(together.values[2:3], alone.values) and torch.equal(together.sums[2:3], alone.sums)
    assert torch.isfinite(together.values[:3]).all()


@pytest.mark.parametrize("splits", [0, 2])
def test_without_a_norm_the_sum_itself_is_returned(splits, device):
    residual, delta, _ = inputs(3, 40, splits, torch.float32, device)
    residual[0, 5] = 1e6
    expected = residual if delta is None else residual + (delta[0] + delta[1])
    actual = add_norm(residual, delta, None, 0.0)
    assert torch.equal(residual, expected)
    assert torch.equal(actual.values, expected.clamp(-65504, 65504).half())
    padded = torch.nn.functional.pad(actual.values.float(), (0, 8))
    torch.testing.assert_close(actual.sums, padded.unflatten(1, (-1, 16)).sum(-1))


def test_the_sum_may_be_scaled_as_a_whole(device):
    residual, delta, weight = inputs(3, 40, 2, torch.float32, device)
    expected = (residual + (delta[0] + delta[1])) * 0.3
    rows = torch.tensor([2], dtype=torch.int32, device=device)
    picked = add_norm(residual, delta, weight, EPS, rows, sum_scale=0.3)
    actual = add_norm(residual, delta, weight, EPS, sum_scale=0.3)
    torch.testing.assert_close(residual, expected)
    assert relative(actual.values, add_norm_torch(expected, None, weight, EPS).values) < 1e-3
    assert torch.equal(picked.values, actual.values[2:])
