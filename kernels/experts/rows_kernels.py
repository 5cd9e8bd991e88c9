"""Planes of experts times a few tokens: the kernel for few rows, with an expert for every program.

An expert's rows begin at a tile of their own (`kernels.experts.experts`), so that no tile holds two.
"""

import triton
import triton.language as tl

from kernels.experts.routing import find_expert
from kernels.linear.gate import store_gated
from kernels.linear.rows_kernels import products


@triton.jit
def find_pairs(
    ids: tl.tensor, pair: tl.tensor, pairs: int, PAIRS: tl.constexpr, BM: tl.constexpr
) -> tl.tuple:
    """The expert of pair number `pair`, how many pairs it has, and these [BM], their first repeated.

    The count is 0 where an earlier pair has the same expert: that one's program serves all of them.
    """
    number = tl.arange(0, PAIRS)
    expert = tl.load(ids + pair)
    same = (tl.load(ids + number, mask=number < pairs, other=-1) == expert).to(tl.int32)
    rank = tl.where(same > 0, tl.cumsum(same, axis=0) - 1, -1)
    first = tl.min(tl.where(same > 0, number, PAIRS), axis=0)
    count = tl.where(first == pair, tl.sum(same, axis=0), 0)
    lane = tl.arange(0, BM)
    found = tl.sum(tl.where(rank[:, None] == lane[None, :], number[:, None], 0), axis=0)
    return expert, count, tl.where(lane < count, found, pair)


@triton.jit(do_not_specialize=["pairs", "experts", "per_expert", "S", "K", "TILES", "N", "tokens"])
def experts_rows_kernel(
    quants: tl.tensor,
    high: tl.tensor,
    meta: tl.tensor,
    x: tl.tensor,
    sums: tl.tensor,
    ids: tl.tensor,
    order: tl.tensor,
    starts: tl.tensor,
    weights: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    out_sums: tl.tensor,
    pairs: int,
    experts: int,
    per_expert: int,
    S: int,
    K: int,
    TILES: int,
    N: int,
    tokens: int,
    PAIRS: tl.constexpr,
    EXPERTS: tl.constexpr,
    USED: tl.constexpr,
    FORM: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    STAGES: tl.constexpr,
    RAGGED: tl.constexpr,
    BEFORE: tl.constexpr,
    GATE: tl.constexpr,
    SCALE: tl.constexpr,
    BIAS: tl.constexpr,
    FAST: tl.constexpr,
    WARPS: tl.constexpr,
) -> None:
    """Up to BM tokens: a program for every pair, of which the first of an expert serves all of them.

    EXPERTS, if it is not 0: the pairs were grouped, and a program serves BM of an expert's; PAIRS and EXPERTS
    are their counts rounded up. With GATE, the activation, out is float16 [P, N / 2], the gated product of
    each pair, and its sums. With "" x [P, K] is that, and out float32 [USED, tokens, N] is each pair's
    product times its weight.
    grid: (⌈N / BN⌉, P, or tiles of BM pairs). Weights of an expert are read once for a program's pairs.
    """
    if EXPERTS == 0:
        expert, count, pair = find_pairs(ids, tl.program_id(1), pairs, PAIRS, BM)
    else:
        expert, first, end = find_expert(starts, tl.program_id(1), experts, EXPERTS, BM)
        count = end - first
        pair = tl.load(order + tl.minimum(first + tl.arange(0, BM), tl.maximum(end - 1, 0)))
    if count <= 0:
        return
    live = tl.arange(0, BM) < count
    row = pair // USED if GATE != "" else pair
    acc = products(
        quants, high, meta, x, sums, S, K, row, tl.program_id(0), expert * per_expert, 0, 1,
        FORM, BN, BM, STAGES, RAGGED, BEFORE, FAST, TILES, WARPS,
    )  # fmt: skip
    store_pairs(
        acc, bias, weights, out, out_sums, expert, pair, live, N, tokens, USED, BN, BM, GATE, SCALE, BIAS
    )


@triton.jit
def store_pairs(
    acc: tl.tensor,
    bias: tl.tensor,
    weights: tl.tensor,
    out: tl.tensor,
    out_sums: tl.tensor,
    expert: tl.tensor,
    pair: tl.tensor,
    live: tl.tensor,
    N: tl.tensor,
    tokens: tl.tensor,
    USED: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    GATE: tl.constexpr,
    SCALE: tl.constexpr,
    BIAS: tl.constexpr,
) -> None:
    """What this program's rows of an expert gave for the pairs [BM] that are `live`: acc [BN, BM].

    With GATE their gated product times SCALE goes to out [P, N / 2] and its sums to out_sums, with ""
    their product times the pairs' weights to the slot and token of out [USED, tokens, N].
    """
    block = tl.program_id(0)
    row = block * BN + tl.arange(0, BN)
    if BIAS:
        acc += tl.load(bias + expert * N + row, mask=row < N, other=0.0)[:, None]
    if GATE != "":
        width = N // 2
        store_gated(acc, out, out_sums, block, pair.to(tl.int64), live, width, width, BN, BM, GATE, SCALE)
    else:
        target = (pair % USED).to(tl.int64) * tokens + pair // USED
        weighed = acc * tl.load(weights + pair)[None, :]
        at = out + target[None, :] * N + row[:, None]
        tl.store(at, weighed, mask=live[None, :] & (row < N)[:, None])
