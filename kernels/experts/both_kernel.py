"""Both products of a few tokens' experts in one launch: the second begins where the first is done.

A launch for each would leave most multiprocessors idle while the first one's last programs end.
"""

import triton
import triton.language as tl

from kernels.cuda.early import let_next_start, wait_for_inputs
from kernels.experts.router import firsts, ids_of, pair_of, sharers
from kernels.experts.rows_kernels import store_pairs
from kernels.linear.rows_kernels import products


@triton.jit(do_not_specialize=["pairs", "tokens", "N1", "K1", "S1", "TILES1", "N2", "K2", "S2", "TILES2"])
def experts_both_kernel(
    quants1: tl.tensor,
    high1: tl.tensor,
    meta1: tl.tensor,
    quants2: tl.tensor,
    high2: tl.tensor,
    meta2: tl.tensor,
    x: tl.tensor,
    sums: tl.tensor,
    ids: tl.tensor,
    weights: tl.tensor,
    bias1: tl.tensor,
    bias2: tl.tensor,
    opened: tl.tensor,
    opened_sums: tl.tensor,
    out: tl.tensor,
    done: tl.tensor,
    pairs: int,
    tokens: int,
    N1: int,
    K1: int,
    S1: int,
    TILES1: int,
    N2: int,
    K2: int,
    S2: int,
    TILES2: int,
    USED: tl.constexpr,
    FORM1: tl.constexpr,
    FORM2: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES1: tl.constexpr,
    STAGES2: tl.constexpr,
    RAGGED1: tl.constexpr,
    RAGGED2: tl.constexpr,
    GATE: tl.constexpr,
    SCALE: tl.constexpr,
    BIAS1: tl.constexpr,
    BIAS2: tl.constexpr,
    FAST: tl.constexpr,
    WARPS: tl.constexpr,
    DENSE: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    """opened float16 [P, N1 / 2] and its sums, out float32 [USED, tokens, N2]; see `experts_rows_kernel`.

    ids: those of `Routes`, of at most BM tokens. done: int32 [1 + P], zero before: how many programs began,
    and how many of the first product ended for the expert that a pair is the first to have.
    DENSE: turns are those of experts in use alone, so that programs without one come last. Else they come
    where pairs share an expert, and from the places that they leave at once others start late.
    grid: P · (⌈N1 / BN⌉ + ⌈N2 / BN⌉). Who began first has a first product, and those wait for nobody, so
    whoever waits waits for programs that run. FAST: a program's number says when it began, as NVIDIA's
    hardware begins programs in the order of their numbers; elsewhere they are counted.
    """
    wait_for_inputs(EARLY)
    chosen = ids_of(ids, pairs, USED, BM)
    turn = tl.program_id(0) if FAST else tl.atomic_add(done, 1, sem="relaxed")
    blocks1, blocks2 = tl.cdiv(N1, BN), tl.cdiv(N2, BN)
    count, numbers = pairs, chosen
    if DENSE:
        numbers, count = firsts(chosen, USED, BM)
    if turn < count * blocks1:
        number, block = turn // blocks1, turn % blocks1
        if DENSE:
            number = pair_of(numbers, number, USED, BM)
        expert, begins, pair, live = sharers(chosen, number, USED, BM)
        if begins:
            acc = products(
                quants1, high1, meta1, x, sums, S1, K1, pair // USED, live, block,
                expert * tl.cdiv(N1, ROWS), 0, 1, FORM1, BN, BM, STAGES1, RAGGED1, False, FAST, TILES1, WARPS,
                CAPPED=True,
            )  # fmt: skip
            store_pairs(
                acc, bias1, weights, opened, opened_sums, block, expert, pair, live, N1, tokens,
                USED, BN, BM, GATE, SCALE, BIAS1,
            )  # fmt: skip
            # All threads' values must be written before one of them counts this program as done.
            tl.debug_barrier()
            tl.atomic_add(done + 1 + number, 1, sem="release")
    else:
        let_next_start(EARLY)
        rest = turn - count * blocks1
        number, block = rest // blocks2, rest % blocks2
        if DENSE:
            number = pair_of(numbers, number, USED, BM)
        expert, begins, pair, live = sharers(chosen, number, USED, BM)
        if begins:
            while tl.atomic_add(done + 1 + number, 0, sem="acquire") < blocks1:
                pass
            acc = products(
                quants2, high2, meta2, opened, opened_sums, S2, K2, pair, live, block,
                expert * tl.cdiv(N2, ROWS), 0, 1, FORM2, BN, BM, STAGES2, RAGGED2, False, FAST, TILES2, WARPS,
                CAPPED=True,
            )  # fmt: skip
            store_pairs(
                acc, bias2, weights, out, out, block, expert, pair, live, N2, tokens,
                USED, BN, BM, "", 1.0, BIAS2,
            )  # fmt: skip
