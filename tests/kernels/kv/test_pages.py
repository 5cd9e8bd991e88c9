"""The paged KV tensors: sizes, block copies, q8_0 codes."""

import pytest
import torch

from kernels.kv.pages import block_nbytes, copy_blocks, copy_blocks_torch
from tests.kernels.kv_cases import dequantize_kv, make_kv, quantize_q8

FORMATS = ["float16", "bfloat16", "q8_0"]


def random_kv(kv_format, device, layers=3, blocks=7, heads=2, dim=32, size=16):
    kv = make_kv(layers, blocks, heads, dim, size, kv_format, device)
    kv.values.copy_(torch.randint(-100, 100, kv.values.shape).to(kv.values.dtype))
    if kv.scales is not None:
        kv.scales.copy_(torch.rand(kv.scales.shape))
    return kv


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("pairs", [[], [(1, 4)], [(5, 2), (5, 3), (0, 6)]])
def test_blocks_are_copied_in_every_layer_and_no_other_changes(kv_format, pairs, device, full):
    kv = random_kv(kv_format, device, **({"heads": 8, "dim": 128, "size": 64} if full else {}))
    table = torch.tensor(pairs, dtype=torch.int32, device=device).reshape(-1, 2)
    twin = type(kv)(kv.values.clone(), None if kv.scales is None else kv.scales.clone())
    copy_blocks_torch(twin, table)
    copy_blocks(kv, table)
    assert torch.equal(kv.values, twin.values)
    assert kv.scales is None or torch.equal(kv.scales, twin.scales)


@pytest.mark.parametrize("kv_format", FORMATS)
def test_bytes_are_those_of_the_tensors(kv_format, device):
    kv = make_kv(2, 5, 4, 64, 16, kv_format, device)
    assert kv.nbytes == 5 * block_nbytes(2, 4, 64, 16, kv_format)
    assert kv.layer(1).values.shape == (5, 2, 4, 16, 64)


def test_heads_that_q8_0_cannot_hold_are_refused(device):
    with pytest.raises(ValueError, match="multiple of 32"):
        make_kv(1, 2, 1, 80, 16, "q8_0", device)


def test_q8_0_keeps_values_to_half_a_step():
    x = torch.randn(4, 96) * torch.logspace(-3, 2, 4)[:, None]
    x[0, :32] = 0
    codes, scales = quantize_q8(x)
    kv = make_kv(1, 4, 1, 96, 16, "q8_0", "cpu")
    kv.values[0, :, 0, 0, 0] = codes
    kv.scales[0, :, 0, 0, 0] = scales
    back = dequantize_kv(kv.layer(0), torch.float32)[:, 0, 0, 0]
    error = (back - x).abs().unflatten(-1, (-1, 32)).amax(-1)
    assert (error <= 0.505 * scales.float() + 1e-7).all()
