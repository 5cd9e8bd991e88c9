"""Two matrices of different types times the same few rows, in one launch: q and k beside a wider v.

A launch of its own would cost a small matrix as much as reading it does.
"""

import triton
import triton.language as tl

from kernels.cuda.early import let_next_start, wait_for_inputs
from kernels.linear.rows_kernels import products, store_share


@triton.jit(do_not_specialize=["STRIDE", "N1", "TILES1", "N2", "TILES2", "S", "K", "M", "SPLITS"])
def planes_pair_kernel(
    quants1: tl.tensor,
    high1: tl.tensor,
    meta1: tl.tensor,
    bias1: tl.tensor,
    quants2: tl.tensor,
    high2: tl.tensor,
    meta2: tl.tensor,
    bias2: tl.tensor,
    x: tl.tensor,
    sums: tl.tensor,
    out: tl.tensor,
    STRIDE: int,
    N1: int,
    TILES1: int,
    N2: int,
    TILES2: int,
    S: int,
    K: int,
    M: int,
    SPLITS: int,
    FORM1: tl.constexpr,
    FORM2: tl.constexpr,
    STAGES1: tl.constexpr,
    STAGES2: tl.constexpr,
    BEFORE1: tl.constexpr,
    BEFORE2: tl.constexpr,
    BIAS1: tl.constexpr,
    BIAS2: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    RAGGED: tl.constexpr,
    FAST: tl.constexpr,
    WARPS: tl.constexpr,
    AHEAD: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    """What `planes_kernel` gives for each matrix, the second's columns behind the first's.

    grid: (⌈N1 / BN⌉ + ⌈N2 / BN⌉, SPLITS).
    """
    if AHEAD == 0:
        wait_for_inputs(EARLY)
    block, share, blocks = tl.program_id(0), tl.program_id(1), tl.cdiv(N1, BN)
    token = tl.arange(0, BM)
    row, live = tl.minimum(token, M - 1), token < M
    if block < blocks:
        acc = products(
            quants1, high1, meta1, x, sums, S, K, row, live, block, 0, share, SPLITS,
            FORM1, BN, BM, STAGES1, RAGGED, BEFORE1, FAST, TILES1, WARPS, AHEAD, EARLY,
        )  # fmt: skip
        if AHEAD == 0:
            let_next_start(EARLY)
        store_share(acc, bias1, out, STRIDE, N1, M, block, share, BN, BM, BIAS1)
    else:
        acc = products(
            quants2, high2, meta2, x, sums, S, K, row, live, block - blocks, 0, share, SPLITS,
            FORM2, BN, BM, STAGES2, RAGGED, BEFORE2, FAST, TILES2, WARPS, AHEAD, EARLY,
        )  # fmt: skip
        if AHEAD == 0:
            let_next_start(EARLY)
        store_share(acc, bias2, out + N1, STRIDE, N2, M, block - blocks, share, BN, BM, BIAS2)
