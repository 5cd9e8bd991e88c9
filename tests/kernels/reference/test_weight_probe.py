"""When bfloat16 is worth a probe."""

import pytest
import torch

from kernels.reference import weight_probe

CPU = torch.device("cpu")


@pytest.fixture
def measured(monkeypatch):
    """Types that were measured; bfloat16 comes out twice as fast."""
    seen = []

    def seconds(dtype):
        seen.append(dtype)
        return [1.0, 1.0] if dtype is torch.float32 else [0.5, 0.5]

    monkeypatch.setattr(weight_probe, "_seconds", seconds)
    monkeypatch.setattr(weight_probe.platform, "machine", lambda: "x86_64")
    return seen


def fastest():
    return weight_probe.fastest_weight_dtype.__wrapped__(CPU)


def test_a_processor_that_emulates_it_is_not_probed(measured, monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    assert fastest() is torch.float32 and measured == []


@pytest.mark.parametrize("unit", ["_is_avx512_bf16_supported", "_is_amx_tile_supported"])
def test_a_processor_that_has_it_is_probed(measured, monkeypatch, unit):
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda there=name == unit: there)
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("torch has no bfloat16 products here")
    assert fastest() is torch.bfloat16 and measured == [torch.float32, torch.bfloat16]
