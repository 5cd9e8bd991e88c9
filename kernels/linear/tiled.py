"""Linear layers over planes in tensor-core tiles, without a dense copy of the weights.

A program takes a tile of weight rows as the left operand, dequantised to float16 in registers, and a
tile of tokens as the right one through shared memory, and adds up in float32.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.contract import Activation
from kernels.cuda.activations import SUM_WIDTH, Activations, has_ptx
from kernels.cuda.streams import owner_of
from kernels.linear.gate import store_gated
from kernels.linear.tile_plan import MAX_SPLITS, TilePlan, batch_invariant_plan, gpu_of, plan_tiles
from kernels.planes.dequant import parity
from kernels.planes.layout import ROWS, PlanesMatrix
from kernels.planes.unpack import CHUNK, HALF, chunk_float16, half_operands, row_pointers
from kernels.quant.formats import GGMLType

PlanesPart = tuple[PlanesMatrix, Tensor | None]
"""A matrix [N, K] and its bias float32 [N]."""

_ROWS = tl.constexpr(ROWS)
_HALF = tl.constexpr(HALF)
_CHUNK = tl.constexpr(CHUNK)


def plan_for(
    x: Activations, type: GGMLType, count: int, max_splits: int = MAX_SPLITS, batch_invariant: bool = False
) -> TilePlan:
    """The plan for x times a matrix of `count` rows; batch_invariant: the same however many rows x has."""
    rows, columns = x.values.shape
    if batch_invariant:
        return batch_invariant_plan(type, count, columns, gpu_of(x.values), max_splits)
    return plan_tiles(type, rows, count, columns, gpu_of(x.values), max_splits)


def linear_tiled(
    x: Activations, parts: Sequence[PlanesPart], plan: TilePlan, batch_invariant: bool = False
) -> Tensor:
    """x @ wᵀ + bias of all parts side by side, without dense copies: → float32 [splits, M, N of all].

    Grid: weight tiles × token tiles (those of one weight tile side by side, so that the second finds
    the weights in the L2) by slices of K. Reads the planes once per token tile and x once per weight
    tile. Weights as in `kernels.planes.unpack`: relative error 4e-4. The plan is that of the
    largest part; other parts use their own tile, and run beside it. batch_invariant: as for `plan_for`.
    """
    total = sum(w.shape[0] for w, _ in parts)
    out = torch.empty((plan.splits, x.values.shape[0], total), dtype=torch.float32, device=x.values.device)
    launches = []
    for (w, bias), column in zip(parts, starts(parts), strict=True):
        own = plan
        if len(parts) > 1:
            own = plan_for(x, w.type, total, batch_invariant=batch_invariant)
            own = replace(own, splits=plan.splits)
        launches.append(partial(_launch, x, w, bias, out[:, :, column:], out, own, ""))
    _together(launches, out.device)
    return out


def _together(launches: Sequence[Callable[[], None]], device: torch.device) -> None:
    """Run launches beside each other, the first on the current stream: a small part fills no GPU.

    On a stream that is not its user's own they run one after another.
    """
    if device.type != "cuda":
        for launch in launches:
            launch()
        return
    current = torch.cuda.current_stream(device)
    owner = owner_of(current)
    sides = [] if owner is None else owner.sides(len(launches) - 1)
    for side, launch in zip(sides, launches[1:], strict=False):
        side.wait_stream(current)
        with torch.cuda.stream(side):
            launch()
    for launch in (launches[0], *launches[1 + len(sides) :]):
        launch()
    for side in sides:
        current.wait_stream(side)


def gated_tiled(
    x: Activations,
    w: PlanesMatrix,
    bias: Tensor | None,
    activation: Activation,
    plan: TilePlan,
    scale: float = 1.0,
) -> Activations:
    """`linear_tiled` with one slice of K, and the gate where the sums are still in registers."""
    rows, features = x.values.shape[0], w.shape[0] // 2
    values = torch.empty((rows, features), dtype=torch.float16, device=x.values.device)
    groups = triton.cdiv(features, SUM_WIDTH)
    sums = torch.empty((rows, groups), dtype=torch.float32, device=x.values.device)
    _launch(x, w, bias, values, sums, plan, activation, scale)
    return Activations(values, sums)


def _launch(
    x: Activations,
    w: PlanesMatrix,
    bias: Tensor | None,
    out: Tensor,
    sums: Tensor,
    plan: TilePlan,
    gate: str,
    scale: float = 1.0,
) -> None:
    rows, columns = x.values.shape
    tile = plan.tile
    tiles = triton.cdiv(w.shape[0], tile.weights) * triton.cdiv(rows, tile.tokens)
    _tiled[(tiles, plan.splits)](
        w.quants,
        w.high,
        w.meta,
        parity(w.quants.device),
        TensorDescriptor.from_tensor(x.values, [tile.tokens, CHUNK]) if plan.tma else x.values,
        x.values if bias is None else bias,
        out,
        sums,
        rows,
        w.shape[0],
        columns,
        out.stride(-2),
        w.quants.shape[1],
        w.quants.shape[0],
        triton.cdiv(columns, HALF),
        FORM=w.format,
        BN=tile.weights,
        BM=tile.tokens,
        BIAS=bias is not None,
        EVEN=columns % HALF == 0,
        TMA=plan.tma,
        GATE=gate,
        SCALE=scale,
        FAST=has_ptx(w.quants),
        STAGES=tile.stages,
        num_warps=tile.warps,
    )


def starts(parts: Sequence[PlanesPart]) -> list[int]:
    """The first output column of each part."""
    return [0, *accumulate(w.shape[0] for w, _ in parts)][:-1]


@triton.jit
def tile_products(
    pq: tl.tensor,
    ph: tl.tensor,
    pm: tl.tensor,
    pi: tl.tensor,
    x: tl.tensor,
    px: tl.tensor,
    first: tl.tensor,
    k: tl.tensor,
    K: tl.tensor,
    start: tl.tensor,
    stop: tl.tensor,
    FORM: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    EVEN: tl.constexpr,
    TMA: tl.constexpr,
    FAST: tl.constexpr,
    STAGES: tl.constexpr,
) -> tl.tensor:
    """float32 [BN, BM]: the sums over halves [start, stop) of rows that `row_pointers` and `pi` point at.

    Tokens come by the descriptor x from row `first` on (TMA), or from px [CHUNK, BM], their columns k.
    """
    acc = tl.zeros((BN, BM), tl.float32)
    for half in tl.range(start, stop, num_stages=STAGES):
        ops = half_operands(pq, ph, pm, pi, half, FORM, FAST)
        for chunk in tl.static_range(2):
            weights = chunk_float16(ops, chunk, FORM, FAST)
            column = half * _HALF + chunk * _CHUNK
            if TMA:
                values = x.load([first, column]).T
            elif EVEN:
                values = tl.load(px + column)
            else:
                values = tl.load(px + column, mask=(column + k < K)[:, None], other=0.0)
            acc = tl.dot(weights, values, acc)
        if FAST:
            # An empty instruction that "reads" the sums makes Triton finish the products here; ptxas
            # runs those left in flight across the loop's edge one by one.
            acc = tl.inline_asm_elementwise("", "=f,0", [acc], dtype=tl.float32, is_pure=True, pack=1)
    return acc


@triton.jit(do_not_specialize=["m_count", "S", "tile_count", "halves"])
def _tiled(
    quants: tl.tensor,
    high: tl.tensor,
    meta: tl.tensor,
    index: tl.tensor,
    x: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    sums: tl.tensor,
    m_count: int,
    N: int,
    K: int,
    stride: int,
    S: int,
    tile_count: int,
    halves: int,
    FORM: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    BIAS: tl.constexpr,
    EVEN: tl.constexpr,
    TMA: tl.constexpr,
    GATE: tl.constexpr,
    SCALE: tl.constexpr,
    FAST: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    token_tiles = tl.cdiv(m_count, BM)
    weight_tile = tl.program_id(0) // token_tiles
    split = tl.program_id(1)
    splits = tl.num_programs(1)
    n = tl.arange(0, BN)
    row = n % _ROWS
    tile = tl.minimum(weight_tile * (BN // _ROWS) + n // _ROWS, tile_count - 1).to(tl.int64)
    pq, ph, pm = row_pointers(quants, high, meta, tile, row, S, FORM)
    first = tl.program_id(0) % token_tiles * BM
    if TMA:
        # The last tile ends with the last token: columns that two tiles share get the same sums twice.
        first = tl.minimum(first, m_count - BM)
    m = first + tl.arange(0, BM)
    k = tl.arange(0, _CHUNK)
    if TMA:
        px = quants
    else:
        # Columns past the last token read other tokens: one token for all of them would be a hot spot.
        px = x + (m % m_count).to(tl.int64)[None, :] * K + k[:, None]
    acc = tile_products(
        pq, ph, pm, index + row, x, px, first, k, K, split * halves // splits, (split + 1) * halves // splits,
        FORM, BN, BM, EVEN, TMA, FAST, STAGES,
    )  # fmt: skip
    n += weight_tile * BN
    if BIAS:
        acc += tl.load(bias + n, mask=n < tl.where(split == 0, N, 0), other=0.0)[:, None]
    if GATE == "":
        target = out + (split * m_count + m).to(tl.int64)[None, :] * stride + n[:, None]
        tl.store(target, acc, mask=(m < m_count)[None, :] & (n < N)[:, None])
    else:
        rows = m.to(tl.int64)
        store_gated(acc, out, sums, weight_tile, rows, m < m_count, N // 2, stride, BN, BM, GATE, SCALE)
