"""Heads whose size is no power of two, or no whole number of sums or of groups of q8_0."""

import dataclasses

import pytest

from tests.kernels.attention.attention_cases import SMALL
from tests.kernels.attention.test_decode import check, check_fused
from tests.kernels.attention.test_prefill import check as check_prefill
from tests.kernels.attention.test_rope_append import run as check_rope

SIZES = [100, 80, 96, 112, 160, 120]


def shape(head_dim: int, **options):
    return dataclasses.replace(SMALL, head_dim=head_dim, scale=head_dim**-0.5, **options)


@pytest.mark.parametrize("head_dim", SIZES)
@pytest.mark.parametrize("kv_format", ["float16", "bfloat16", "float32", "q8_0"])
def test_rotation_and_append(kv_format, head_dim, device):
    check_rope(shape(head_dim), device, kv_format)


@pytest.mark.parametrize("head_dim", SIZES)
@pytest.mark.parametrize("kv_format", ["q8_0", "bfloat16", "float32", "float16"])
def test_decode(kv_format, head_dim, device):
    check(shape(head_dim), [70, 1, 16], device, kv_format)


@pytest.mark.parametrize("head_dim", SIZES)
@pytest.mark.parametrize("kv_format", ["float16", "bfloat16", "float32", "q8_0"])
def test_fused_decode(kv_format, head_dim, device):
    check_fused(shape(head_dim), [70, 1, 16], device, kv_format)


@pytest.mark.parametrize("head_dim", SIZES)
@pytest.mark.parametrize("kv_format", ["q8_0", "bfloat16", "float32", "float16"])
def test_prefill(kv_format, head_dim, device):
    check_prefill(shape(head_dim), [20, 9], [50, 9], device, kv_format=kv_format, padding=3)


def test_heads_that_share_a_sum(device):
    """One query head: its width is no whole number of sums either."""
    one = shape(100, q_heads=1, kv_heads=1)
    check_fused(one, [20, 3], device)
    check_prefill(one, [9], [20], device)


@pytest.mark.parametrize("kv_format", ["float16", "q8_0"])
def test_tiny_heads(kv_format, device):
    check_rope(shape(8), device, kv_format)
    check_fused(shape(8), [20, 3], device, kv_format)
    check_prefill(shape(8), [9], [20], device, kv_format=kv_format)
