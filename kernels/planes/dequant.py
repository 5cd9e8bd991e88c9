"""A matrix of planes as a dense float16 matrix, for products with many rows."""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.cuda.activations import has_ptx
from kernels.planes.layout import ROWS, PlanesMatrix
from kernels.planes.unpack import HALF, chunk_float16, half_operands, row_pointers

_ROWS = tl.constexpr(ROWS)
_HALF = tl.constexpr(HALF)


def dequantize_planes(w: PlanesMatrix, out: Tensor, first_row: int = 0) -> None:
    """Write rows `first_row` (a multiple of 64) and following of `w` to `out`, float16 [rows, K].

    Weights are the same float16 numbers that the fused linear multiplies. Grid: half
    super-blocks by 64 rows; moves the planes' bytes in and 2 bytes a weight out.
    """
    if first_row % ROWS or out.dtype != torch.float16 or out.shape[1] != w.shape[1]:
        raise ValueError(f"{out.dtype} {tuple(out.shape)} from row {first_row} does not fit {w.shape}")
    _dequantize[(triton.cdiv(w.shape[1], HALF), triton.cdiv(out.shape[0], ROWS))](
        w.quants,
        w.high,
        w.meta,
        parity(w.quants.device),
        out,
        first_row // ROWS,
        out.shape[0],
        w.shape[1],
        w.quants.shape[1],
        FORM=w.format,
        FAST=has_ptx(w.quants),
        EVEN=w.shape[1] % HALF == 0,
        num_warps=4,
    )


def parity(device: torch.device) -> Tensor:
    """int32 [2, 64], the row index: a scalar that kernels load as a vector.

    A splat scalar keeps Triton from computing a dot operand where the tensor cores want it. Made at
    the first call for a device, which must not be while a graph is captured.
    """
    return _parity(torch.device("cuda", torch.cuda.current_device()) if str(device) == "cuda" else device)


@cache
def _parity(device: torch.device) -> Tensor:
    return torch.arange(2, dtype=torch.int32, device=device)[:, None].expand(2, ROWS).contiguous()


@triton.jit(do_not_specialize=["first_tile", "rows"])
def _dequantize(
    quants: tl.tensor,
    high: tl.tensor,
    meta: tl.tensor,
    index: tl.tensor,
    out: tl.tensor,
    first_tile: int,
    rows: int,
    K: int,
    S: int,
    FORM: tl.constexpr,
    FAST: tl.constexpr,
    EVEN: tl.constexpr,
) -> None:
    half = tl.program_id(0)
    row = tl.arange(0, _ROWS)
    tile = (first_tile + tl.program_id(1)).to(tl.int64)
    pq, ph, pm = row_pointers(quants, high, meta, tile, row, S, FORM)
    target = tl.program_id(1).to(tl.int64) * _ROWS + row
    ops = half_operands(pq, ph, pm, index + row, half, FORM, FAST)
    for chunk in tl.static_range(2):
        column = half * _HALF + chunk * 64 + tl.arange(0, 64)
        mask = (target < rows)[:, None]
        if not EVEN:
            mask = mask & (column < K)[None, :]
        weights = chunk_float16(ops, chunk, FORM, FAST)
        tl.store(out + target[:, None] * K + column[None, :], weights, mask=mask)
