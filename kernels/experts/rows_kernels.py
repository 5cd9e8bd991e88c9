"""Planes of experts times a few tokens: the kernel for few rows, with an expert for every program.

An expert's rows begin at a tile of their own (`kernels.experts.experts`), so that no tile holds two.
"""

import triton
import triton.language as tl

from kernels.cuda.early import let_next_start, wait_for_inputs
from kernels.experts.router import ids_of, sharers
from kernels.experts.routing import find_expert
from kernels.linear.gate import store_gated
from kernels.linear.rows_kernels import products


@triton.jit(do_not_specialize=["experts", "per_expert", "S", "K", "TILES", "N", "tokens"])
def experts_rows_kernel(
    quants: tl.tensor,
    high: tl.tensor,
    meta: tl.tensor,
    x: tl.tensor,
    sums: tl.tensor,
    order: tl.tensor,
    starts: tl.tensor,
    weights: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    out_sums: tl.tensor,
    experts: int,
    per_expert: int,
    S: int,
    K: int,
    TILES: int,
    N: int,
    tokens: int,
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
    EARLY: tl.constexpr,
) -> None:
    """A program serves up to BM pairs of one expert, whose weights it reads once.

    With GATE, the activation, out is float16 [P, N / 2], the gated product of each pair, and its sums. With
    "" x [P, K] is that, and out float32 [USED, tokens, N] is each pair's product times its weight.
    EXPERTS: their count rounded up where `starts` are those of `Groups`, 0 where they are ids of `Routes`.
    grid: (⌈N / BN⌉, tiles of BM pairs).
    """
    first_product: tl.constexpr = GATE != ""
    # Ids were there before the first product began: the second one may read them before it waits.
    if first_product or EXPERTS > 0:
        wait_for_inputs(EARLY)
    if EXPERTS == 0:
        ids = ids_of(starts, tokens * USED, USED, BM)
        expert, begins, pair, live = sharers(ids, tl.program_id(1), USED, BM)
    else:
        expert, first, end = find_expert(starts, tl.program_id(1), experts, EXPERTS, BM)
        begins = first < end
        place = first + tl.arange(0, BM)
        live = place < end
        pair = tl.load(order + tl.minimum(place, tl.maximum(end - 1, 0)))
    if not first_product and EXPERTS == 0:
        wait_for_inputs(EARLY)
    if not begins:
        return
    row = pair // USED if first_product else pair
    acc = products(
        quants, high, meta, x, sums, S, K, row, live, tl.program_id(0), expert * per_expert, 0, 1,
        FORM, BN, BM, STAGES, RAGGED, BEFORE, FAST, TILES, WARPS,
        CAPPED=True,
    )  # fmt: skip
    let_next_start(EARLY)
    store_pairs(
        acc, bias, weights, out, out_sums, tl.program_id(0), expert, pair, live, N, tokens,
        USED, BN, BM, GATE, SCALE, BIAS,
    )  # fmt: skip


@triton.jit
def store_pairs(
    acc: tl.tensor,
    bias: tl.tensor,
    weights: tl.tensor,
    out: tl.tensor,
    out_sums: tl.tensor,
    block: tl.tensor,
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
