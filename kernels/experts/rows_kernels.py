"""Planes of experts times a few pairs each: the kernels for few rows, with an expert for every tile.

An expert's rows begin at a tile of their own (`kernels.experts.experts`), so that no tile holds two.
"""

import triton
import triton.language as tl

from kernels.experts.routing import find_expert
from kernels.linear.rows_kernels import products, store_gated


@triton.jit(do_not_specialize=["experts", "per_expert", "S", "K", "TILES", "N"])
def gate_planes_kernel(
    quants: tl.tensor,
    high: tl.tensor,
    meta: tl.tensor,
    x: tl.tensor,
    sums: tl.tensor,
    order: tl.tensor,
    starts: tl.tensor,
    values: tl.tensor,
    value_sums: tl.tensor,
    experts: int,
    per_expert: int,
    S: int,
    K: int,
    TILES: int,
    N: int,
    USED: tl.constexpr,
    PADDED: tl.constexpr,
    FORM: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    STAGES: tl.constexpr,
    RAGGED: tl.constexpr,
    BEFORE: tl.constexpr,
    GELU: tl.constexpr,
    FAST: tl.constexpr,
    WARPS: tl.constexpr,
) -> None:
    """values float16 [P, N / 2] = activation(gate) * up of the pairs in order, and their sums of 16.

    grid: (⌈N / BN⌉, tiles of BM pairs). Weights of an expert are read once for BM of its pairs.
    """
    expert, first, end = find_expert(starts, tl.program_id(1), experts, PADDED, BM)
    if first >= end:
        return
    place = first + tl.arange(0, BM)
    live = place < end
    token = tl.load(order + tl.minimum(place, end - 1)) // USED
    acc = products(
        quants, high, meta, x, sums, S, K, token, tl.program_id(0), expert * per_expert, 0, 1,
        FORM, BN, BM, STAGES, RAGGED, BEFORE, FAST, TILES, WARPS,
    )  # fmt: skip
    store_gated(acc, values, value_sums, tl.program_id(0), place.to(tl.int64), live, N // 2, BN, BM, GELU)


@triton.jit(do_not_specialize=["experts", "per_expert", "S", "K", "TILES", "N", "tokens"])
def down_planes_kernel(
    quants: tl.tensor,
    high: tl.tensor,
    meta: tl.tensor,
    x: tl.tensor,
    sums: tl.tensor,
    order: tl.tensor,
    starts: tl.tensor,
    weights: tl.tensor,
    out: tl.tensor,
    experts: int,
    per_expert: int,
    S: int,
    K: int,
    TILES: int,
    N: int,
    tokens: int,
    USED: tl.constexpr,
    PADDED: tl.constexpr,
    FORM: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    STAGES: tl.constexpr,
    RAGGED: tl.constexpr,
    BEFORE: tl.constexpr,
    FAST: tl.constexpr,
    WARPS: tl.constexpr,
) -> None:
    """out float32 [USED, tokens, N] = each pair's product times its weight, at its slot and token.

    x [P, K] in the order of pairs. grid: (⌈N / BN⌉, tiles of BM pairs).
    """
    expert, first, end = find_expert(starts, tl.program_id(1), experts, PADDED, BM)
    if first >= end:
        return
    place = first + tl.arange(0, BM)
    live = place < end
    place = tl.minimum(place, end - 1)
    acc = products(
        quants, high, meta, x, sums, S, K, place, tl.program_id(0), expert * per_expert, 0, 1,
        FORM, BN, BM, STAGES, RAGGED, BEFORE, FAST, TILES, WARPS,
    )  # fmt: skip
    store_weighed(acc, out, order, weights, place, live, tl.program_id(0), N, tokens, USED, BN)


@triton.jit
def store_weighed(
    acc: tl.tensor,
    out: tl.tensor,
    order: tl.tensor,
    weights: tl.tensor,
    place: tl.tensor,
    live: tl.tensor,
    block: tl.tensor,
    N: tl.tensor,
    tokens: tl.tensor,
    USED: tl.constexpr,
    BN: tl.constexpr,
) -> None:
    """acc [BN, BM] of the pairs at `place` in order, times their weights, to their slot and token."""
    pair = tl.load(order + place)
    weight = tl.load(weights + pair)
    target = (pair % USED).to(tl.int64) * tokens + pair // USED
    row = block * BN + tl.arange(0, BN)
    at = out + target[None, :] * N + row[:, None]
    tl.store(at, acc * weight[None, :], mask=live[None, :] & (row < N)[:, None])
