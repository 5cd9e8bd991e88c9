"""Rows of float16, bfloat16 or float32 weights times a few rows of activations."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["M", "SPLITS"])
def float_kernel(
    weights: tl.tensor,
    x: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    N: int,
    K: int,
    M: int,
    SPLITS: int,
    BN: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
    EVEN: tl.constexpr,
    BIAS: tl.constexpr,
) -> None:
    """out float32 [SPLITS, M, N] = the products of each share of K, the bias in the first.

    grid: (⌈N / BN⌉, SPLITS). Bytes: the weights once, the activations once a program (from L2).
    PRECISION: of products of float32; "none" multiplies float16. bfloat16 and float16 are both exact
    in tf32. EVEN: K is a multiple of BK.
    """
    row = tl.program_id(0) * BN + tl.arange(0, BN)
    token = tl.minimum(tl.arange(0, BM), M - 1)
    column = tl.arange(0, BK)
    pw = weights + tl.minimum(row, N - 1).to(tl.int64)[:, None] * K + column[None, :]
    px = x + token[None, :] * K + column[:, None]
    acc = tl.zeros((BN, BM), tl.float32)
    steps = (K + BK - 1) // BK
    share = tl.program_id(1)
    for step in tl.range(steps * share // SPLITS, steps * (share + 1) // SPLITS, num_stages=STAGES):
        at = step * BK
        if EVEN:
            w = tl.load(pw + at)
            v = tl.load(px + at)
        else:
            w = tl.load(pw + at, mask=(column + at < K)[None, :], other=0)
            v = tl.load(px + at, mask=(column + at < K)[:, None], other=0)
        if PRECISION == "none":
            acc = tl.dot(w, v, acc)
        else:
            acc = tl.dot(w.to(tl.float32), v.to(tl.float32), acc, input_precision=PRECISION)
    if BIAS:
        added = tl.load(bias + row, mask=row < N, other=0.0)
        acc += tl.where(share == 0, added, 0.0)[:, None]
    m = tl.arange(0, BM)
    at = out + share.to(tl.int64) * M * N + m[None, :] * N + row[:, None]
    tl.store(at, acc, mask=(m[None, :] < M) & (row[:, None] < N))
