"""Planes of experts times many tokens, in tensor-core tiles of one expert's pairs.

An expert's rows begin at a tile of their own (`kernels.experts.experts`), so that no tile holds two.
"""

import triton
import triton.language as tl

from kernels.experts.routing import find_expert
from kernels.experts.rows_kernels import store_pairs
from kernels.linear.tiled import tile_products
from kernels.planes.layout import ROWS
from kernels.planes.unpack import CHUNK, HALF, row_pointers

_ROWS = tl.constexpr(ROWS)
_CHUNK = tl.constexpr(CHUNK)
_HALF = tl.constexpr(HALF)


@triton.jit(do_not_specialize=["experts", "per_expert", "tile_count", "S", "tokens"])
def experts_tiled_kernel(
    quants: tl.tensor,
    high: tl.tensor,
    meta: tl.tensor,
    index: tl.tensor,
    x: tl.tensor,
    order: tl.tensor,
    starts: tl.tensor,
    weights: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    out_sums: tl.tensor,
    experts: int,
    per_expert: int,
    tile_count: int,
    S: int,
    N: int,
    K: int,
    tokens: int,
    USED: tl.constexpr,
    PADDED: tl.constexpr,
    FORM: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    EVEN: tl.constexpr,
    GATE: tl.constexpr,
    SCALE: tl.constexpr,
    BIAS: tl.constexpr,
    FAST: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """What `experts_rows_kernel` computes, for any number of tokens.

    grid: (⌈N / BN⌉, tiles of BM pairs). Reads an expert's planes once for each of its tiles.
    """
    expert, first, end = find_expert(starts, tl.program_id(1), experts, PADDED, BM)
    if first >= end:
        return
    place = first + tl.arange(0, BM)
    live = place < end
    # Columns past the last pair read other pairs: one for all of them would be a hot spot.
    pair = tl.load(order + tl.where(live, place, first + (place - first) % (end - first)))
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    row = n % _ROWS
    tile = tl.minimum(expert * per_expert + n // _ROWS, tile_count - 1).to(tl.int64)
    pq, ph, pm = row_pointers(quants, high, meta, tile, row, S, FORM)
    source = pair // USED if GATE != "" else pair
    k = tl.arange(0, _CHUNK)
    px = x + source.to(tl.int64)[None, :] * K + k[:, None]
    acc = tile_products(
        pq, ph, pm, index + row, x, px, 0, k, K, 0, tl.cdiv(K, _HALF),
        FORM, BN, BM, EVEN, False, FAST, STAGES,
    )  # fmt: skip
    store_pairs(
        acc, bias, weights, out, out_sums, expert, pair, live, N, tokens, USED, BN, BM, GATE, SCALE, BIAS
    )
