"""Norms of the residual stream: the residual addition before it and the sums after it, in one kernel."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.cuda.activations import SUM_WIDTH, Activations
from kernels.cuda.early import early, let_next_start, wait_for_inputs
from kernels.linear.gate import held

FEW_ROWS = 132
"""Up to so many rows every row has a multiprocessor of its own, and threads hide its latency."""
EARLY_ROWS = 32
"""Rows of a pass whose kernels are so short that each had better start while the one before it ends."""


def add_norm(
    residual: Tensor,
    delta: Tensor | None,
    weight: Tensor | None,
    eps: float,
    rows: Tensor | None = None,
    batch_invariant: bool = False,
    joins: tuple[Tensor, float] | None = None,
    scale: float = 1.0,
    bias: Tensor | None = None,
    centred: bool = False,
    sum_scale: float = 1.0,
    overlaps: bool = False,
) -> Activations:
    """Add the partial sums of a linear to the residual stream, and normalise the result.

    residual float32 [T, H], updated in place; delta float32 or float16 [S, T, H], added up over S in
    index order and then to the residual; weight float32 [H]. With `rows` int32 [R] only those rows
    are normalised, the residual keeps its old values, and the result has R rows. With
    batch_invariant by as many threads whatever the number of rows: a row's sums have one order.
    The sum over the splits is normalised with `joins`, weight and eps, and multiplied by `scale` before
    it is added; that sum is multiplied by `sum_scale`. centred: x less its mean is normalised (LayerNorm).
    overlaps: whether the next kernel has work before it needs the result, and starts while the last one ends.

    → values float16 [T or R, H] = x / sqrt(mean(x²) + eps) * weight, and their sums of 16; without a
    weight x itself, held to float16's range.
    """
    hidden = residual.shape[1]
    count = residual.shape[0] if rows is None else rows.shape[0]
    values = torch.empty((count, hidden), dtype=torch.float16, device=residual.device)
    groups = triton.cdiv(hidden, SUM_WIDTH)
    sums = torch.empty((count, groups), dtype=torch.float32, device=residual.device)
    block = max(SUM_WIDTH, triton.next_power_of_2(hidden))
    if count:
        _add_norm[(count,)](
            residual,
            *(residual if part is None else part for part in (delta, weight, rows)),
            *(residual if part is None else part for part in (joins and joins[0], bias)),
            values,
            sums,
            residual.shape[0],
            eps,
            eps if joins is None else joins[1],
            scale,
            sum_scale,
            H=hidden,
            GROUPS=groups,
            WIDTH=SUM_WIDTH,
            BLOCK=block,
            SPLITS=0 if delta is None else delta.shape[0],
            PICKED=rows is not None,
            JOINS=joins is not None,
            NORMED=weight is not None,
            BIAS=bias is not None,
            CENTRED=centred,
            OVERLAPS=overlaps,
            **early(residual, starts_early=count <= EARLY_ROWS),
            num_warps=_warps(block, 1 if batch_invariant else count),
        )
    return Activations(values, sums)


def _warps(block: int, count: int) -> int:
    """4 values a thread where rows wait for memory, 16 where many rows hide it."""
    per_thread = 4 if count <= FEW_ROWS else 16
    return min(32, max(1, block // (32 * per_thread)))


@triton.jit(do_not_specialize=["num_tokens"])
def _add_norm(
    residual: tl.tensor,
    delta: tl.tensor,
    weight: tl.tensor,
    rows: tl.tensor,
    join_weight: tl.tensor,
    bias: tl.tensor,
    values: tl.tensor,
    sums: tl.tensor,
    num_tokens: tl.tensor,
    eps: tl.tensor,
    join_eps: tl.tensor,
    join_scale: tl.tensor,
    sum_scale: tl.tensor,
    H: tl.constexpr,
    GROUPS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
    PICKED: tl.constexpr,
    JOINS: tl.constexpr,
    NORMED: tl.constexpr,
    BIAS: tl.constexpr,
    CENTRED: tl.constexpr,
    OVERLAPS: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    """Grid (rows,): one program holds one row in registers, BLOCK >= H.

    Bytes per row: H * (4 + 4 splits, or 2 splits of float16) read, 2 H + H / 4 written, and 4 H more
    for the residual unless rows are picked.
    """
    column = tl.arange(0, BLOCK)
    inside = column < H
    # No kernel writes them, and they are in the L2 no more: read while the one before this ends.
    scale = tl.load(weight + column, mask=inside, other=0.0) if NORMED else 1.0
    let_next_start(EARLY and OVERLAPS)
    wait_for_inputs(EARLY)
    let_next_start(EARLY and not OVERLAPS)
    out = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + out).to(tl.int64) if PICKED else out
    x = tl.load(residual + row * H + column, mask=inside, other=0.0)
    if SPLITS > 0:
        step = num_tokens.to(tl.int64) * H
        part = delta + row * H + column
        added = tl.load(part, mask=inside, other=0.0).to(tl.float32)
        for split in tl.static_range(1, SPLITS):
            added += tl.load(part + split * step, mask=inside, other=0.0).to(tl.float32)
        if JOINS:
            join_root = tl.sqrt_rn(tl.sum(added * added, axis=0) / H + join_eps)
            added = added / join_root * tl.load(join_weight + column, mask=inside, other=0.0)
        x = (x + added * join_scale) * sum_scale
        if not PICKED:
            tl.store(residual + row * H + column, x, mask=inside)
    if CENTRED:
        x = tl.where(inside, x - tl.sum(x, axis=0) / H, 0.0)
    if NORMED:
        root = tl.sqrt_rn(tl.sum(x * x, axis=0) / H + eps)
        normed = x / root * scale
    else:
        normed = held(x)
    if BIAS:
        normed += tl.load(bias + column, mask=inside, other=0.0)
    y = normed.to(tl.float16)
    tl.store(values + out * H + column, y, mask=inside)
    total = tl.sum(tl.reshape(y.to(tl.float32), (BLOCK // WIDTH, WIDTH)), axis=1)
    group = tl.arange(0, BLOCK // WIDTH)
    tl.store(sums + out * GROUPS + group, total, mask=group < GROUPS)
