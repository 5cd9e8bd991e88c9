"""Experts of float16, bfloat16 or float32 weights: one product for gate and up, one for down."""

import triton
import triton.language as tl

from kernels.experts.routing import find_expert
from kernels.experts.rows_kernels import store_pairs


@triton.jit
def _float_products(
    weights: tl.tensor,
    x: tl.tensor,
    expert: tl.tensor,
    token: tl.tensor,
    N: tl.tensor,
    K: tl.tensor,
    BN: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
) -> tl.tensor:
    """float32 [BN, BM] of an expert's rows and rows `token` of x."""
    row = tl.minimum(tl.program_id(0) * BN + tl.arange(0, BN), N - 1)
    column = tl.arange(0, BK)
    pw = weights + (expert.to(tl.int64) * N + row)[:, None] * K + column[None, :]
    px = x + token.to(tl.int64)[None, :] * K + column[:, None]
    acc = tl.zeros((BN, BM), tl.float32)
    for at in tl.range(0, K, BK, num_stages=STAGES):
        w = tl.load(pw + at, mask=(column + at < K)[None, :], other=0)
        v = tl.load(px + at, mask=(column + at < K)[:, None], other=0)
        if PRECISION == "none":
            acc = tl.dot(w, v, acc)
        else:
            acc = tl.dot(w.to(tl.float32), v.to(tl.float32), acc, input_precision=PRECISION)
    return acc


@triton.jit(do_not_specialize=["experts", "N", "K", "tokens"])
def float_experts_kernel(
    weights: tl.tensor,
    x: tl.tensor,
    order: tl.tensor,
    starts: tl.tensor,
    pair_weights: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    out_sums: tl.tensor,
    experts: int,
    N: int,
    K: int,
    tokens: int,
    USED: tl.constexpr,
    PADDED: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
    GATE: tl.constexpr,
    SCALE: tl.constexpr,
    BIAS: tl.constexpr,
) -> None:
    """What `experts_rows_kernel` computes. grid: (⌈N / BN⌉, tiles of BM pairs)."""
    expert, first, end = find_expert(starts, tl.program_id(1), experts, PADDED, BM)
    if first >= end:
        return
    place = first + tl.arange(0, BM)
    live = place < end
    pair = tl.load(order + tl.minimum(place, end - 1))
    row = pair // USED if GATE != "" else pair
    acc = _float_products(weights, x, expert, row, N, K, BN, BM, BK, STAGES, PRECISION)
    store_pairs(
        acc, bias, pair_weights, out, out_sums, expert, pair, live, N, tokens, USED, BN, BM, GATE, SCALE, BIAS
    )
