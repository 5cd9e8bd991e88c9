"""The paged KV tensors: sizes, q8_0 quants."""

import pytest
import torch

from kernels.kv.pages import block_nbytes
from kernels.reference.paged_kv import quantize_kv
from tests.kernels.kv_cases import dequantize_kv, make_kv

FORMATS = ["float32", "float16", "bfloat16", "q8_0"]


@pytest.mark.parametrize("kv_format", FORMATS)
def test_bytes_are_those_of_the_tensors(kv_format, device):
    kv = make_kv(2, 5, 4, 64, 16, kv_format, device)
    assert kv.nbytes == 5 * block_nbytes(2, 4, 64, 16, kv_format)
    assert kv.layer(1).values.shape == (5, 2, 4, 16, 64)


def test_q8_0_keeps_values_to_half_a_step():
    x = torch.randn(4, 96) * torch.logspace(-3, 2, 4)[:, None]
    x[0, :32] = 0
    quants, scales = quantize_kv(x)
    kv = make_kv(1, 4, 1, 96, 16, "q8_0", "cpu")
    kv.values[0, :, 0, 0, 0] = quants
    kv.scales[0, :, 0, 0, 0] = scales
    back = dequantize_kv(kv.layer(0), torch.float32)[:, 0, 0, 0]
    error = (back - x).abs().unflatten(-1, (-1, 32)).amax(-1)
    assert (error <= 0.505 * scales.float() + 1e-7).all()
