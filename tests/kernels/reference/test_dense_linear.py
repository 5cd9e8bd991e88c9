"""Packed products equal plain ones, and a pack that is wrong is not used."""

import pytest
import torch
import torch.nn.functional as F

from kernels.reference import dense_linear
from kernels.reference.dense_linear import apply_dense, make_dense


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2, 7, 8, 16, 33, 64, 100])
def test_packed_equals_plain(dtype: torch.dtype, rows: int):
    torch.manual_seed(rows)
    weight, bias = torch.randn(192, 96).to(dtype), torch.randn(192)
    x = torch.randn(rows, 96)
    expected = F.linear(x.to(dtype).double(), weight.double(), bias.double())
    ours = apply_dense(x, make_dense(weight, bias))
    assert ours.dtype is dtype
    limit = 1e-6 if dtype is torch.float32 else 6e-3
    assert float((ours - expected).norm() / expected.norm()) < limit


def test_a_wrong_pack_is_not_used(monkeypatch):
    weight = torch.randn(48, 40)
    monkeypatch.setattr(dense_linear, "_packed_product", lambda _: lambda x: F.linear(x, weight) * 1.001)
    dense = make_dense(weight, None)
    assert not dense.packed
    x = torch.randn(3, 40)
    assert torch.equal(apply_dense(x, dense), F.linear(x, weight))


def test_a_processor_without_packs_still_multiplies(monkeypatch):
    monkeypatch.setattr(dense_linear, "_packed_product", lambda _: None)
    weight, x = torch.randn(8, 12), torch.randn(5, 12)
    assert torch.equal(apply_dense(x, make_dense(weight, None)), F.linear(x, weight))
