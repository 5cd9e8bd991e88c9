"""Norm, rotation and append against the torch twin in float64."""

import dataclasses

import pytest
import torch

from kernels.attention.rope_append import rope_append
from kernels.kv.pages import TritonKV
from kernels.pieces import attention as by_torch
from tests.kernels.attention.attention_cases import (
    LONG_HEADS,
    REAL,
    SMALL,
    make_rotation,
    make_tables,
    poisoned_kv,
    relative,
)
from tests.kernels.kv_cases import dequantize_kv

EPS = 1e-6


def clone(kv: TritonKV) -> TritonKV:
    return TritonKV(kv.values.clone(), None if kv.scales is None else kv.scales.clone())


def run(shape, device, kv_format="float16", pairing="halves", norm=True, splits=2, pairs=None, magnitude=1.0,
        dtype=torch.float32, contexts=(5, 40, 7), queries=(1, 20, 3), far=0, eps=EPS):  # fmt: skip
    tables, blocks = make_tables(list(queries), list(contexts), 1, shape.block_size, device, padding_tokens=2)
    tables = dataclasses.replace(tables, positions=tables.positions + far)
    generator = torch.Generator().manual_seed(3)
    heads = shape.q_heads + 2 * shape.kv_heads
    qkv = torch.randn(splits, tables.num_tokens, heads * shape.head_dim, generator=generator)
    qkv = qkv.to(dtype).to(device)
    weight = None
    if norm:
        weight = torch.rand(shape.normed_heads, shape.head_dim, generator=generator).to(device) + 0.5
    rotation = dataclasses.replace(make_rotation(shape, pairing, device, pairs), magnitude=magnitude)
    kv = poisoned_kv(shape, blocks, kv_format, device)
    twin = clone(kv)
    q = rope_append(qkv, tables, kv.layer(1), shape, rotation, weight, eps)
    expected = by_torch.rope_append(
        qkv, tables, twin.layer(1), shape, rotation, weight, eps, dtype=torch.float64
    )
    assert q.dtype == expected.dtype and torch.isfinite(q).all()
    assert relative(q, expected) < 3e-4
    torch.testing.assert_close(q.float(), expected.float(), rtol=2e-3, atol=2e-4)
    # Padding writes to the scratch block in any order.
    actual, wanted = (dequantize_kv(x.layer(1), torch.float64)[1:] for x in (kv, twin))
    assert torch.equal(actual.isnan(), wanted.isnan())
    actual, wanted = actual.nan_to_num(), wanted.nan_to_num()
    steps = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2, "q8_0": 0.05}
    torch.testing.assert_close(actual, wanted, rtol=steps[kv_format], atol=steps[kv_format] / 2)
    # Triton's interpreter truncates to bfloat16, a GPU rounds.
    limits = {"float32": 1e-6, "float16": 1e-4, "bfloat16": 1e-3 if device == "cuda" else 6e-3, "q8_0": 2e-3}
    assert relative(actual, wanted) < limits[kv_format]
    untouched = kv.values[0] if kv.scales is not None else kv.values[0].isnan()
    assert (untouched == (127 if kv.scales is not None else 1)).all()


@pytest.mark.parametrize("kv_format", ["float16", "bfloat16", "q8_0", "float32"])
@pytest.mark.parametrize("pairing", ["adjacent", "halves"])
def test_formats_and_pairings(kv_format, pairing, device, full):
    run(REAL if full else SMALL, device, kv_format, pairing)


@pytest.mark.parametrize("pairing", ["adjacent", "halves"])
@pytest.mark.parametrize(("pairs", "magnitude"), [(4, 1.0), (12, 1.3)])
def test_partial_and_scaled_rotation(pairing, pairs, magnitude, device):
    run(SMALL, device, pairing=pairing, pairs=pairs, magnitude=magnitude)


@pytest.mark.parametrize(("pairing", "pairs"), [("adjacent", 4), ("halves", None)])
def test_norms_behind_the_rotation(pairing, pairs, device):
    """A magnitude of the rotation falls to them."""
    shape = dataclasses.replace(SMALL, norm_rotated=True)
    run(shape, device, pairing=pairing, pairs=pairs, magnitude=0.01, eps=1e-4)


@pytest.mark.parametrize("kv_format", ["float16", "q8_0"])
@pytest.mark.parametrize("norm_rotated", [False, True])
def test_norms_of_values(kv_format, norm_rotated, device):
    run(dataclasses.replace(SMALL, norms_values=True, norm_rotated=norm_rotated), device, kv_format)


def test_heads_of_512(device):
    run(LONG_HEADS, device, pairs=256)


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("norm", [False, True])
def test_partial_sums_and_norms(splits, dtype, norm, device):
    run(SMALL, device, splits=splits, dtype=dtype, norm=norm)


@pytest.mark.parametrize("shape", [
    dataclasses.replace(SMALL, q_heads=7, kv_heads=1),
    dataclasses.replace(SMALL, q_heads=6, kv_heads=3, head_dim=48),
    dataclasses.replace(SMALL, q_heads=2, kv_heads=2, head_dim=80),
])  # fmt: skip
def test_odd_shapes(shape, device):
    run(shape, device)


def test_far_positions_keep_their_angles(device, full):
    run(REAL if full else SMALL, device, far=100_000)
