"""Rows of an embedding gathered from its quantised form, which may also be the output matrix."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.cuda.early import early, let_next_start, wait_for_inputs
from kernels.planes.layout import COLUMNS, ROWS, WIDTH, PlanesMatrix
from kernels.planes.unpack import half_operands, plane_float32, row_pointers

_ROWS = tl.constexpr(ROWS)
_COLUMNS = tl.constexpr(COLUMNS)
_WIDTH = tl.constexpr(WIDTH)


def embed_rows(ids: Tensor, w: PlanesMatrix | Tensor) -> Tensor:
    """Rows `ids` (int32 or int64 [T], each below the vocabulary's size) → float32 [T, hidden].

    w is planes, or a dense matrix of any float type. Weights are computed in float32 as the file's
    reference computes them. Grid: T by super-blocks; reads the rows' bytes once.
    """
    if isinstance(w, Tensor):
        return w.index_select(0, ids).float()
    hidden = w.shape[1]
    out = torch.empty((ids.shape[0], hidden), dtype=torch.float32, device=ids.device)
    if ids.shape[0]:
        _embed[(ids.shape[0], w.quants.shape[1])](
            ids, w.quants, w.high, w.meta, out, hidden, w.quants.shape[1], FORM=w.format, num_warps=1,
            **early(out),
        )  # fmt: skip
    return out


@triton.jit
def _embed(
    ids: tl.tensor,
    quants: tl.tensor,
    high: tl.tensor,
    meta: tl.tensor,
    out: tl.tensor,
    hidden: int,
    S: int,
    FORM: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    wait_for_inputs(EARLY)
    let_next_start(EARLY)
    token = tl.program_id(0)
    block = tl.program_id(1)
    source = tl.load(ids + token).to(tl.int64)
    only = tl.arange(0, 1)
    row = (source % _ROWS).to(tl.int32) + only
    pq, ph, pm = row_pointers(quants, high, meta, source // _ROWS, row, S, FORM)
    for side in tl.static_range(2):
        ops = half_operands(pq, ph, pm, meta + row, block * 2 + side, FORM, False)
        for plane in tl.static_range(4):
            column = block * _COLUMNS + (side * 4 + plane) * _WIDTH + tl.arange(0, _WIDTH)
            target = out + token.to(tl.int64) * hidden + only[:, None] + column[None, :]
            tl.store(target, plane_float32(ops, plane, FORM), mask=(column < hidden)[None, :])
