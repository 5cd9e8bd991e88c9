"""Linear layers for 1 to 32 rows of activations, straight from the file's own weights.

Results are partial sums [splits, M, N]: who reads them adds them up in index order, so that no float
is ever added atomically and a row does not depend on its batch mates.
"""

from collections.abc import Sequence

import torch
import triton
from torch import Tensor

from kernels.contract import Activation
from kernels.cuda.activations import SUM_WIDTH, Activations, has_ptx
from kernels.cuda.early import early
from kernels.linear.rows_float import float_kernel
from kernels.linear.rows_kernels import gated_kernel, planes_kernel
from kernels.linear.rows_pair import planes_pair_kernel
from kernels.linear.rows_plan import MAX_ROWS, RowsPlan, held_plan, multiprocessors, rows_plan
from kernels.planes.layout import COLUMNS, PlanesMatrix

__all__ = [
    "MAX_ROWS",
    "gated_rows",
    "linear_batch_invariant",
    "linear_rows",
    "linear_rows_parts",
    "loads_early",
]


def linear_rows(
    x: Activations,
    w: PlanesMatrix | Tensor,
    bias: Tensor | None = None,
    plan: RowsPlan | None = None,
) -> Tensor:
    """x [M, K] times the rows of w [N, K] → float32 [splits, M, N].

    w: planes, or float16, bfloat16 or float32 rows. bias float32 [N] goes into the first split.
    M is at most MAX_ROWS. A plan overrides the static choice.
    """
    rows = x.values.shape[0]
    if not 1 <= rows <= MAX_ROWS:
        raise ValueError(f"linear_rows takes 1 to {MAX_ROWS} rows, not {rows}")
    if isinstance(w, Tensor):
        return _linear_float(x.values, w, bias)
    return linear_rows_parts(x, [(w, bias)], plan)


def linear_rows_parts(
    x: Activations, parts: Sequence[tuple[PlanesMatrix, Tensor | None]], plan: RowsPlan | None = None
) -> Tensor:
    """The same for matrices of one width but perhaps several types, their outputs side by side.

    The first one's plan says how many splits all have.
    """
    rows, first = x.values.shape[0], parts[0][0]
    width, device = sum(w.shape[0] for w, _ in parts), first.quants.device
    splits = (plan or rows_plan(first.type, rows, first.shape, multiprocessors(device))).splits
    out = torch.empty((splits, rows, width), dtype=torch.float32, device=device)
    if len(parts) == 2:
        _launch_pair(x, parts, out, plan)
        return out
    column = 0
    for w, bias in parts:
        (own,) = _plans([w], rows, splits) if plan is None else [plan]
        planes_kernel[(triton.cdiv(w.shape[0], own.weights), splits)](
            w.quants, w.high, w.meta, x.values, x.sums, x.sums if bias is None else bias, out[:, :, column:],
            width, w.shape[0], w.quants.shape[1], w.shape[1], rows, splits, w.quants.shape[0],
            BIAS=bias is not None, AHEAD=own.ahead, **_constants(w, own),
        )  # fmt: skip
        column += w.shape[0]
    return out


def _launch_pair(
    x: Activations,
    parts: Sequence[tuple[PlanesMatrix, Tensor | None]],
    out: Tensor,
    plan: RowsPlan | None,
) -> None:
    (first, first_bias), (second, second_bias) = parts
    splits, rows, width = out.shape
    one, other = _plans([w for w, _ in parts], rows, splits) if plan is None else (plan, plan)
    assert (one.weights, one.warps, one.ahead) == (other.weights, other.warps, other.ahead)
    planes_pair_kernel[(sum(triton.cdiv(w.shape[0], one.weights) for w, _ in parts), splits)](
        first.quants, first.high, first.meta, x.sums if first_bias is None else first_bias,
        second.quants, second.high, second.meta, x.sums if second_bias is None else second_bias,
        x.values, x.sums, out, width, first.shape[0], first.quants.shape[0],
        second.shape[0], second.quants.shape[0], first.quants.shape[1], first.shape[1], rows, splits,
        FORM1=first.format, FORM2=second.format, STAGES1=one.stages, STAGES2=other.stages,
        BEFORE1=one.before, BEFORE2=other.before, BIAS1=first_bias is not None,
        BIAS2=second_bias is not None, BN=one.weights, BM=one.tokens,
        RAGGED=first.shape[1] % COLUMNS != 0, FAST=has_ptx(out), WARPS=one.warps,
        AHEAD=one.ahead, num_warps=one.warps, **early(out),
    )  # fmt: skip


def _plans(weights: list[PlanesMatrix], rows: int, splits: int) -> list[RowsPlan]:
    """Of matrices in one launch, which hold their weights or not together."""
    processors = multiprocessors(weights[0].quants.device)
    held = [held_plan(w.type, rows, w.shape, processors, splits) for w in weights]
    plans = [plan for plan in held if plan is not None]
    if len(plans) == len(weights):
        return plans
    return [rows_plan(w.type, rows, w.shape, processors) for w in weights]


def loads_early(weights: Sequence[PlanesMatrix | Tensor], rows: int) -> bool:
    """Whether `linear_rows_parts` of these has weights in registers before its inputs are there."""
    planes = [w for w in weights if isinstance(w, PlanesMatrix)]
    if len(planes) < len(weights) or rows > MAX_ROWS:
        return False
    first = planes[0]
    splits = rows_plan(first.type, rows, first.shape, multiprocessors(first.quants.device)).splits
    launches = [planes] if len(planes) == 2 else [[w] for w in planes]
    return all(_plans(own, rows, splits)[0].ahead > 0 for own in launches)


def gated_rows(
    x: Activations,
    w: PlanesMatrix,
    activation: Activation = "silu",
    plan: RowsPlan | None = None,
    scale: float = 1.0,
) -> Activations:
    """activation(gate) * up * scale → values float16 [M, N / 2] and their sums.

    w [N, K] holds gate and up rows in pairs (`kernels.planes.layout.gate_up_order`). gelu is its tanh form.
    """
    rows, half = x.values.shape[0], w.shape[0] // 2
    device = w.quants.device
    plan = plan or rows_plan(w.type, rows, w.shape, multiprocessors(device), gated=True)
    values = torch.empty((rows, half), dtype=torch.float16, device=device)
    sums = torch.empty((rows, triton.cdiv(half, SUM_WIDTH)), dtype=torch.float32, device=device)
    gated_kernel[(triton.cdiv(w.shape[0], plan.weights), 1)](
        w.quants, w.high, w.meta, x.values, x.sums, values, sums,
        w.shape[0], w.quants.shape[1], w.shape[1], rows, 1, w.quants.shape[0],
        ACTIVATION=activation, SCALE=scale, **_constants(w, plan),
    )  # fmt: skip
    return Activations(values, sums)


def _constants(w: PlanesMatrix, plan: RowsPlan) -> dict[str, object]:
    return {
        "FORM": w.format,
        "BN": plan.weights,
        "BM": plan.tokens,
        "STAGES": plan.stages,
        "RAGGED": w.shape[1] % COLUMNS != 0,
        "BEFORE": plan.before,
        "FAST": has_ptx(w.quants),
        "WARPS": plan.warps,
        "num_warps": plan.warps,
        **early(w.quants),
    }


def linear_batch_invariant(x: Activations, w: Tensor, bias: Tensor | None) -> Tensor:
    """x of any number of rows times float rows of w, → [splits, M, N]: a row's result is its own alone."""
    slices = [_linear_float(part, w, bias, batch_invariant=True) for part in x.values.split(MAX_ROWS)]
    return slices[0] if len(slices) == 1 else torch.cat(slices, dim=1)


def _linear_float(x: Tensor, w: Tensor, bias: Tensor | None, batch_invariant: bool = False) -> Tensor:
    rows, (outputs, columns) = x.shape[0], w.shape
    tokens = 8 if rows <= 8 else 16 if rows <= 16 else 32
    weights, depth = 64, 128 if w.dtype != torch.float32 else 64
    tiles, steps = triton.cdiv(outputs, weights), triton.cdiv(columns, depth)
    splits = max(1, min(round(4 * multiprocessors(w.device) / tiles), steps // 4, 16))
    out = torch.empty((splits, rows, outputs), dtype=torch.float32, device=w.device)
    fast = {torch.float16: "none", torch.bfloat16: "tf32"}.get(w.dtype, "tf32x3")
    precision = fast if fast == "none" or has_ptx(w) else "ieee"
    float_kernel[(tiles, splits)](
        w, x, x if bias is None else bias, out, outputs, columns, rows, splits,
        BN=weights, BM=32 if batch_invariant else tokens, BK=depth, STAGES=3,
        PRECISION=precision, EVEN=columns % depth == 0, BIAS=bias is not None, num_warps=4,
    )  # fmt: skip
    return out
