"""Decode attention against float64, over poisoned pages."""

import dataclasses

import pytest
import torch

from kernels.attention.decode import MANY_ROWS, _stages, _tile, attend_decode, attention_decode, plan_decode
from kernels.attention.rope_append import rope_append
from kernels.attention.shape import add_sums
from kernels.kv.pages import TritonKV
from tests.kernels.attention.attention_cases import (
    LONG_HEADS,
    REAL,
    SMALL,
    check_sums,
    fill_contexts,
    make_rotation,
    make_tables,
    poisoned_kv,
    poisoned_output,
    random_queries,
    relative,
)
from tests.kernels.attention.twins import attention_torch

LIMITS = {"float32": 3e-4, "float16": 6e-4, "bfloat16": 6e-4, "q8_0": 1e-3}
"""Of float32 what rounding the output alone loses."""


def prepare(shape, contexts, device, kv_format="float16", seed=0):
    tables, blocks = make_tables(
        [1] * len(contexts), contexts, len(contexts), shape.block_size, device, seed=seed
    )
    kv = poisoned_kv(shape, blocks, kv_format, device)
    fill_contexts(kv, tables, shape)
    return tables, kv, random_queries(len(contexts), shape, device, kv=kv)


def check(shape, contexts, device, kv_format="float16", sinks=None):
    tables, kv, q = prepare(shape, contexts, device, kv_format)
    out = poisoned_output(len(contexts), shape, device)
    plan = plan_decode(tables, shape)
    plan.partials.fill_(float("nan"))
    plan.row_stats.fill_(float("nan"))
    attention_decode(q, tables, kv.layer(1), shape, plan, out, sinks)
    expected = attention_torch(q, tables, kv.layer(1), shape, sinks, torch.float64)
    assert torch.isfinite(out.values).all()
    assert relative(out.values, expected) < LIMITS[kv_format]
    for row in range(len(contexts)):
        if contexts[row]:
            assert relative(out.values[row], expected[row]) < 2 * LIMITS[kv_format]
        else:
            assert not out.values[row].any()
    add_sums(out, shape)
    check_sums(out)
    assert not plan.counters.any()
    again = poisoned_output(len(contexts), shape, device)
    attention_decode(q, tables, kv.layer(1), shape, plan, again, sinks)
    add_sums(again, shape)
    assert torch.equal(again.values, out.values) and torch.equal(again.sums, out.sums)


CONTEXTS = [[1], [33], [700], [17, 0, 1, 300, 64], [5] * 9, [900, 3, 40, 0, 0, 16, 31]]


@pytest.mark.parametrize("contexts", CONTEXTS)
def test_contexts(contexts, device):
    check(SMALL, contexts, device)


@pytest.mark.parametrize("kv_format", ["float16", "bfloat16", "q8_0", "float32"])
@pytest.mark.parametrize("contexts", [[2000], [640] * 8, [640] * 32, [32_000] + [500] * 30 + [0], [16_384]])
def test_real_shapes(contexts, kv_format, device, full):
    shape = REAL if full else dataclasses.replace(SMALL, head_dim=64)
    check(shape, contexts if full else [c // 40 for c in contexts[:3]], device, kv_format)


@pytest.mark.parametrize("options", [
    {"window": 20}, {"window": 1}, {"window": 100_000}, {"softcap": 2.0}, {"window": 50, "softcap": 5.0},
])  # fmt: skip
@pytest.mark.parametrize("with_sinks", [False, True])
def test_options(options, with_sinks, device):
    shape = dataclasses.replace(SMALL, **options)
    sinks = torch.linspace(-3, 4, shape.q_heads, device=device) if with_sinks else None
    check(shape, [300, 7, 0, 65], device, sinks=sinks)


@pytest.mark.parametrize("shape", [
    dataclasses.replace(SMALL, q_heads=7, kv_heads=1),
    dataclasses.replace(SMALL, q_heads=20, kv_heads=1),
    dataclasses.replace(SMALL, q_heads=6, kv_heads=3, head_dim=96),
    dataclasses.replace(SMALL, q_heads=2, kv_heads=2, head_dim=80, block_size=32),
    dataclasses.replace(SMALL, block_size=64),
    dataclasses.replace(SMALL, block_size=64, head_dim=256, window=70),
])  # fmt: skip
def test_odd_shapes(shape, device):
    check(shape, [150, 1, 64], device)
    check(shape, [150, 1, 64], device, "q8_0")


def test_a_long_row_is_cut_and_short_ones_are_not(device):
    tables, _, _ = prepare(SMALL, [1600, 30, 0, 30], device)
    splits = plan_decode(tables, SMALL).splits
    assert splits[:, 0].tolist().count(0) > 20
    assert [splits[:, 0].tolist().count(row) for row in (1, 2, 3)] == [1, 1, 1]
    length = (splits[:, 4] - splits[:, 3])[splits[:, 0] >= 0]
    assert length.sum() == 100 + 2 + 2 and length.max() <= 5


def test_unused_table_entries_are_never_read(device):
    tables, kv, q = prepare(SMALL, [70, 20], device)
    wide = torch.full((2, 99), 1 << 30, dtype=torch.int32, device=device)
    wide[:, : tables.block_tables.shape[1]] = tables.block_tables
    wide[1, 2:] = 1 << 30
    results = []
    for table in (tables.block_tables, wide):
        used = dataclasses.replace(tables, block_tables=table)
        out = poisoned_output(2, SMALL, device)
        attention_decode(q, used, kv.layer(1), SMALL, plan_decode(used, SMALL), out)
        results.append(out.values)
    assert torch.equal(*results)


def check_fused(shape, contexts, device, kv_format="float16", pairing="halves", norm=True, splits=2,
                pairs=None, sinks=None, dtype=torch.float32, overlaps=False):  # fmt: skip
    tables, kv, _ = prepare(shape, contexts, device, kv_format)
    rows = len(contexts)
    generator = torch.Generator().manual_seed(5)
    heads = shape.q_heads + 2 * shape.kv_heads
    qkv = torch.randn(splits, rows, heads * shape.head_dim, generator=generator).to(dtype).to(device)
    weight = None
    if norm:
        weight = torch.rand(shape.normed_heads, shape.head_dim, generator=generator).to(device) + 0.5
    rotation = make_rotation(shape, pairing, device, pairs)
    # The newest slot of every context is unwritten.
    newest, offset = tables.slots // shape.block_size, tables.slots % shape.block_size
    kv.values[:, newest, :, :, offset] = 127 if kv.scales is not None else float("nan")
    if kv.scales is not None:
        kv.scales[:, newest, :, :, offset] = float("nan")
    twin = TritonKV(kv.values.clone(), None if kv.scales is None else kv.scales.clone())
    out = poisoned_output(rows, shape, device)
    plan = plan_decode(tables, shape, rotation)
    plan.partials.fill_(float("nan"))
    attend_decode(qkv, tables, kv.layer(1), shape, plan, out, weight, 1e-6, sinks, overlaps)
    q = rope_append(qkv, tables, twin.layer(1), shape, rotation, weight, 1e-6)
    expected = attention_torch(q, tables, twin.layer(1), shape, sinks, torch.float64)
    assert torch.isfinite(out.values).all()
    assert relative(out.values, expected) < LIMITS[kv_format]
    add_sums(out, shape)
    check_sums(out)
    assert not plan.counters.any()
    written = [block for block, context in zip(newest.tolist(), contexts, strict=True) if context]
    for ours, theirs in ((kv.values, twin.values), (kv.scales, twin.scales)):
        if ours is not None:
            close = {"rtol": 1e-2, "atol": 1 if ours.dtype == torch.int8 else 1e-3, "equal_nan": True}
            torch.testing.assert_close(ours[1, written], theirs[1, written], **close)
            assert torch.equal(ours[0].nan_to_num(7), theirs[0].nan_to_num(7))
            assert torch.equal(ours[1, 0].nan_to_num(7), kv_poison(ours)), "scratch block"


def kv_poison(values):
    return torch.full_like(values[1, 0], 127 if values.dtype == torch.int8 else 7)


def test_fused_beside_the_next_kernel(device):
    check_fused(SMALL, [17, 0, 300, 64], device, overlaps=True)


@pytest.mark.parametrize(("kv_heads", "rows"), [(4, 3), (8, 3), (2, 9)])
def test_fused_with_and_without_a_first_tile_before_inputs(kv_heads, rows, device):
    check_fused(dataclasses.replace(SMALL, q_heads=8, kv_heads=kv_heads), [17, 300, 64] * (rows // 3), device)


@pytest.mark.parametrize("kv_format", ["float16", "bfloat16", "q8_0", "float32"])
@pytest.mark.parametrize("contexts", [[1], [16], [17, 0, 300, 64], [5] * 9])
def test_fused_with_rotation_and_append(contexts, kv_format, device):
    check_fused(SMALL, contexts, device, kv_format)


@pytest.mark.parametrize("options", [
    {"pairing": "adjacent"}, {"pairing": "adjacent", "pairs": 4}, {"pairs": 6}, {"norm": False, "splits": 1},
    {"splits": 3, "dtype": torch.float16},
])  # fmt: skip
def test_fused_options(options, device):
    check_fused(SMALL, [100, 1, 0, 48], device, **options)


@pytest.mark.parametrize("shape", [
    dataclasses.replace(SMALL, q_heads=15, kv_heads=1),
    dataclasses.replace(SMALL, q_heads=6, kv_heads=3, head_dim=96),
    dataclasses.replace(SMALL, q_heads=2, kv_heads=2, head_dim=80, block_size=32),
    dataclasses.replace(SMALL, block_size=64),
    dataclasses.replace(SMALL, window=20, softcap=3.0),
])  # fmt: skip
def test_fused_odd_shapes(shape, device):
    check_fused(shape, [150, 1, 64], device, sinks=torch.linspace(-1, 2, shape.q_heads, device=device))


@pytest.mark.parametrize("kv_format", ["float16", "q8_0"])
@pytest.mark.parametrize("window", [0, 40])
def test_fused_long_heads(kv_format, window, device):
    """Blocks are read in parts."""
    check_fused(dataclasses.replace(LONG_HEADS, window=window), [150, 1, 64], device, kv_format)


def test_tiles_fit_into_shared_memory():
    for dim in (64, 128, 256, 512):
        shape = dataclasses.replace(LONG_HEADS, head_dim=dim)
        step = 4 * _tile(shape) * dim
        for shared in (64 << 10, 99 << 10, 163 << 10, 227 << 10):
            stages = _stages(shape, MANY_ROWS, shared)
            assert stages == 1 or stages * step < shared
        assert _stages(shape, MANY_ROWS, 227 << 10) >= 3


def test_fused_with_norms_of_values(device):
    check_fused(dataclasses.replace(SMALL, norms_values=True), [18, 0, 3], device)


def test_fused_with_norms_behind_the_rotation(device):
    check_fused(dataclasses.replace(SMALL, norm_rotated=True), [18, 0, 3], device, pairs=6)


@pytest.mark.parametrize("contexts", [[2000], [640] * 8, [640] * 32, [32_000] + [500] * 30 + [0]])
def test_fused_real_shapes(contexts, device, full):
    check_fused(
        REAL if full else SMALL, contexts if full else [c // 40 for c in contexts[:3]], device, splits=4
    )
