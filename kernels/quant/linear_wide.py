"""Linear layers over planes for many rows: fused up to a few hundred, through a dense copy above.

`linear_tiled` multiplies quantised weights in tensor-core tiles: a program takes a tile of weight rows
as the left operand, dequantised to float16 in registers, and a tile of tokens as the right one through
shared memory, and adds up in float32. `linear_dense` dequantises into scratch and multiplies with
torch. Above DENSE_ROWS rows the second is faster: it dequantises once, the first once per token tile.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.quant.dequant_planes import dequantize_planes, parity
from kernels.quant.plane_weights import HALF, chunk_float16, half_operands, has_ptx, row_pointers
from kernels.quant.planes import ROWS, PlanesMatrix
from kernels.quant.tile_plan import TilePlan, gpu_of, plan_tiles
from kernels.triton_types import Activations

DENSE_ROWS = 512
"""Above so many rows a product goes through a dense copy of its weights."""
SCRATCH_WEIGHTS = 128 << 20
"""Weights dequantised at once for a dense product. In slices the product itself gets slower."""

_ROWS = tl.constexpr(ROWS)
_HALF = tl.constexpr(HALF)


def linear_wide(x: Activations, w: PlanesMatrix | Tensor, bias: Tensor | None) -> Tensor:
    """x @ wᵀ + bias for more rows than fit a decode kernel.

    x [M, K]; w planes or a dense float16, bfloat16 or float32 matrix [N, K]; bias float32 [N].
    → float32 [splits, M, N], partial sums to be added up in index order.
    """
    if isinstance(w, Tensor):
        return _with_bias(_matmul(x.values, w), bias)
    if x.values.shape[0] <= DENSE_ROWS:
        return linear_tiled(x, w, bias)
    return linear_dense(x, w, bias)


def linear_tiled(
    x: Activations, w: PlanesMatrix, bias: Tensor | None, plan: TilePlan | None = None
) -> Tensor:
    """x @ wᵀ + bias without a dense copy of w: → float32 [splits, M, N].

    Grid: weight tiles × token tiles (those of one weight tile side by side, so that the second finds
    the weights in the L2) by slices of K. Reads the planes once per token tile and x once per weight
    tile. Weights as in `kernels.quant.plane_weights`: relative error 4e-4.
    """
    rows, columns = x.values.shape
    halves = triton.cdiv(columns, HALF)
    if plan is None:
        plan = plan_tiles(w.type, rows, w.shape[0], columns, gpu_of(x.values))
    tile, splits = plan.tile, plan.splits
    tiles = triton.cdiv(w.shape[0], tile.weights) * triton.cdiv(rows, tile.tokens)
    out = torch.empty((splits, rows, w.shape[0]), dtype=torch.float32, device=x.values.device)
    _tiled[(tiles, splits)](
        w.codes,
        w.high,
        w.meta,
        parity(w.codes.device),
        x.values,
        x.values if bias is None else bias,
        out,
        rows,
        w.shape[0],
        columns,
        w.codes.shape[1],
        w.codes.shape[0],
        halves,
        FORM=w.format,
        BN=tile.weights,
        BM=tile.tokens,
        BIAS=bias is not None,
        EVEN=columns % HALF == 0,
        FAST=has_ptx(w.codes),
        STAGES=tile.stages,
        num_warps=tile.warps,
    )
    return out


def linear_dense(x: Activations, w: PlanesMatrix, bias: Tensor | None) -> Tensor:
    """x @ wᵀ + bias through dequantised slices of w: → float32 [1, M, N]."""
    count, columns = w.shape
    step = max(ROWS, SCRATCH_WEIGHTS // columns // ROWS * ROWS)
    scratch = torch.empty((min(step, count), columns), dtype=torch.float16, device=x.values.device)
    if step >= count:
        dequantize_planes(w, scratch)
        return _with_bias(_matmul(x.values, scratch), bias)
    out = torch.empty((1, x.values.shape[0], count), dtype=torch.float32, device=x.values.device)
    for start in range(0, count, step):
        part = scratch[: min(step, count - start)]
        dequantize_planes(w, part, start)
        out[0, :, start : start + step] = _matmul(x.values, part)[0]
    return _with_bias(out, bias)


def linear_wide_torch(x: Activations, w: Tensor, bias: Tensor | None) -> Tensor:
    """Plain torch twin over dense weights [N, K]."""
    product = x.values.float() @ w.float().T
    return (product if bias is None else product + bias)[None]


def _matmul(values: Tensor, w: Tensor) -> Tensor:
    """values float16 [M, K] @ wᵀ → float32 [1, M, N]."""
    if w.dtype == torch.float32:
        return (values.float() @ w.T)[None]
    if values.is_cuda:
        return torch.mm(values.to(w.dtype), w.T, out_dtype=torch.float32)[None]
    return (values.float() @ w.float().T)[None]


def _with_bias(product: Tensor, bias: Tensor | None) -> Tensor:
    return product if bias is None else product.add_(bias)


@triton.jit(do_not_specialize=["m_count", "S", "tile_count", "halves"])
def _tiled(
    codes: tl.tensor,
    high: tl.tensor,
    meta: tl.tensor,
    index: tl.tensor,
    x: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    m_count: int,
    N: int,
    K: int,
    S: int,
    tile_count: int,
    halves: int,
    FORM: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    BIAS: tl.constexpr,
    EVEN: tl.constexpr,
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
    pc, ph, pm = row_pointers(codes, high, meta, tile, row, S, FORM)
    m = tl.program_id(0) % token_tiles * BM + tl.arange(0, BM)
    k = tl.arange(0, 64)
    # Columns past the last token read other tokens: one token for all of them would be a hot spot.
    px = x + (m % m_count).to(tl.int64)[None, :] * K + k[:, None]
    acc = tl.zeros((BN, BM), tl.float32)
    start = split * halves // splits
    stop = (split + 1) * halves // splits
    for half in tl.range(start, stop, num_stages=STAGES):
        ops = half_operands(pc, ph, pm, index + row, half, FORM, FAST)
        for chunk in tl.static_range(2):
            weights = chunk_float16(ops, chunk, FORM, FAST)
            column = half * _HALF + chunk * 64
            if EVEN:
                values = tl.load(px + column)
            else:
                values = tl.load(px + column, mask=(column + k < K)[:, None], other=0.0)
            acc = tl.dot(weights, values, acc)
        if FAST:
            # An empty instruction that "reads" the sums makes Triton finish the products here; ptxas
            # runs those left in flight across the loop's edge one by one.
            acc = tl.inline_asm_elementwise("", "=f,0", [acc], dtype=tl.float32, is_pure=True, pack=1)
    n += weight_tile * BN
    if BIAS:
        acc += tl.load(bias + n, mask=n < tl.where(split == 0, N, 0), other=0.0)[:, None]
    target = out + (split * m_count + m).to(tl.int64)[None, :] * N + n[:, None]
    tl.store(target, acc, mask=(m < m_count)[None, :] & (n < N)[:, None])
