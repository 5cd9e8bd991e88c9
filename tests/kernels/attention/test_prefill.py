"""Prefill attention against float64, over poisoned pages."""

import dataclasses

import pytest
import torch

from kernels.attention.prefill import attention_prefill
from kernels.attention.shape import add_sums
from tests.kernels.attention.attention_cases import (
    LONG_HEADS,
    REAL,
    SMALL,
    check_sums,
    fill_contexts,
    make_tables,
    poisoned_kv,
    poisoned_output,
    random_queries,
    relative,
)
from tests.kernels.attention.twins import attention_torch

LIMITS = {"float32": 3e-4, "float16": 6e-4, "bfloat16": 6e-4, "q8_0": 1e-3}


def check(shape, queries, contexts, device, num_decode=0, kv_format="float16", sinks=None, padding=0):
    tables, blocks = make_tables(queries, contexts, num_decode, shape.block_size, device, padding)
    kv = poisoned_kv(shape, blocks, kv_format, device)
    fill_contexts(kv, tables, shape)
    q = random_queries(tables.num_tokens, shape, device, kv=kv)
    out = poisoned_output(tables.num_tokens, shape, device)
    attention_prefill(q, tables, kv.layer(1), shape, out, sinks)
    assert out.values[:num_decode].isnan().all() and out.sums[:num_decode].isnan().all()
    actual = out.values[num_decode:]
    expected = attention_torch(q, tables, kv.layer(1), shape, sinks, torch.float64)[num_decode:]
    assert torch.isfinite(actual).all()
    assert relative(actual, expected) < LIMITS[kv_format]
    real = tables.num_tokens - padding - num_decode
    errors = (actual[:real].double() - expected[:real]).norm(dim=1) / expected[:real].norm(dim=1)
    assert errors.max() < 2 * LIMITS[kv_format]
    assert not actual[real:].any()
    add_sums(out, shape)
    check_sums(out, slice(num_decode, None))


CASES = [
    ([20], [20], 0, 0),
    ([1], [1], 0, 3),
    ([70], [270], 0, 10),
    ([1, 1, 40, 3, 17], [9, 0, 40, 100, 33], 2, 0),
    ([5, 0, 33], [64, 0, 33], 0, 7),
    ([1, 64, 0], [30, 80, 0], 1, 40),
]


@pytest.mark.parametrize(("queries", "contexts", "num_decode", "padding"), CASES)
def test_packed_chunks(queries, contexts, num_decode, padding, device):
    check(SMALL, queries, contexts, device, num_decode, padding=padding)


@pytest.mark.parametrize("kv_format", ["float16", "bfloat16", "q8_0", "float32"])
@pytest.mark.parametrize(
    ("queries", "contexts"),
    [([2048], [2048]), ([256], [4096]), ([64] * 8, [64] * 8), ([100, 333], [900, 333])],
)
def test_real_shapes(queries, contexts, kv_format, device, full):
    shape = REAL if full else dataclasses.replace(SMALL, head_dim=64)
    if not full:
        queries, contexts = [q // 16 for q in queries[:3]], [c // 16 for c in contexts[:3]]
    check(shape, queries, contexts, device, kv_format=kv_format)


@pytest.mark.parametrize("options", [
    {"window": 20}, {"window": 1}, {"window": 100_000}, {"softcap": 2.0}, {"window": 50, "softcap": 5.0},
])  # fmt: skip
@pytest.mark.parametrize("with_sinks", [False, True])
def test_options(options, with_sinks, device):
    shape = dataclasses.replace(SMALL, **options)
    sinks = torch.linspace(-3, 4, shape.q_heads, device=device) if with_sinks else None
    check(shape, [60, 0, 5], [190, 0, 65], device, sinks=sinks, padding=4)


@pytest.mark.parametrize("shape", [
    dataclasses.replace(SMALL, q_heads=7, kv_heads=1),
    dataclasses.replace(SMALL, q_heads=20, kv_heads=1),
    dataclasses.replace(SMALL, q_heads=6, kv_heads=3, head_dim=96),
    dataclasses.replace(SMALL, q_heads=2, kv_heads=2, head_dim=80, block_size=32),
])  # fmt: skip
def test_odd_shapes(shape, device):
    check(shape, [40, 9], [150, 9], device)
    check(shape, [40, 9], [150, 9], device, kv_format="q8_0")


@pytest.mark.parametrize("options", [{}, {"window": 300}, {"softcap": 2.0}])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_few_tokens_over_long_contexts_are_cut_into_parts(options, with_sinks, device):
    shape = dataclasses.replace(SMALL, **options)
    sinks = torch.linspace(-3, 4, shape.q_heads, device=device) if with_sinks else None
    check(shape, [1, 9, 0, 5], [40, 700, 0, 130], device, num_decode=1, sinks=sinks, padding=6)


@pytest.mark.parametrize("kv_format", ["float16", "q8_0"])
@pytest.mark.parametrize("window", [0, 40])
def test_long_heads(kv_format, window, device):
    """Blocks are read in parts."""
    shape = dataclasses.replace(LONG_HEADS, window=window)
    check(shape, [20, 9], [150, 9], device, kv_format=kv_format)
