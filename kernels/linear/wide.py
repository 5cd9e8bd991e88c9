"""Linear layers over planes for many rows: in tiles up to a few hundred, through a dense copy above.

`linear_dense` dequantises into scratch and multiplies with torch. For more rows than
`tile_plan.DENSE_ROWS` that is faster than `linear_tiled`: it dequantises once, tiles once per tile of
tokens.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.contract import Activation
from kernels.cuda.activations import Activations
from kernels.cuda.cublas import matmul
from kernels.linear.gate import gate_activations
from kernels.linear.rows import linear_batch_invariant
from kernels.linear.tile_plan import FEW, MAX_SPLITS, linear_plan
from kernels.linear.tiled import PlanesPart, gated_tiled, linear_tiled, plan_for, starts
from kernels.planes.dequant import dequantize_planes
from kernels.planes.layout import ROWS, PlanesMatrix

SCRATCH_WEIGHTS = 128 << 20
"""Weights dequantised at once for a dense product. In slices the product itself gets slower."""

Part = tuple[PlanesMatrix | Tensor, Tensor | None]
"""A matrix [N, K], planes or dense float16, bfloat16 or float32, and its bias float32 [N]."""


def linear_wide(x: Activations, w: PlanesMatrix | Tensor, bias: Tensor | None) -> Tensor:
    """x @ wᵀ + bias for more rows than fit a decode kernel.

    x [M, K]. → float32 [splits, M, N], partial sums to be added up in index order.
    """
    return linear_wide_parts(x, [(w, bias)])


def linear_wide_parts(x: Activations, parts: Sequence[Part]) -> Tensor:
    """The products of x [M, K] with matrices of one width, side by side.

    → float32 [splits, M, N of all], partial sums to be added up in index order.
    """
    planes = [(w, bias) for w, bias in parts if isinstance(w, PlanesMatrix)]
    if len(planes) < len(parts):
        products = [_any_product(x, w, bias) for w, bias in parts]
        return products[0] if len(products) == 1 else torch.cat(products, dim=2)
    if linear_plan(x.values.shape[0]) == "dense":
        return linear_dense(x, planes)
    largest = max((w for w, _ in planes), key=lambda w: w.shape[0])
    return linear_tiled(x, planes, plan_for(x, largest.type, sum(w.shape[0] for w, _ in planes)))


def linear_batch_invariant_parts(x: Activations, parts: Sequence[Part]) -> Tensor:
    """`linear_wide_parts` for any number of rows, and a row's result does not depend on how many.

    Every product is one kernel's with tiles and slices of K that only the matrix decides.
    """
    planes = [(w, bias) for w, bias in parts if isinstance(w, PlanesMatrix)]
    total = sum(w.shape[0] for w, _ in parts)
    largest = max((w for w, _ in parts), key=lambda w: w.shape[0])
    if len(planes) == len(parts) and isinstance(largest, PlanesMatrix):
        return linear_tiled(
            x, planes, plan_for(x, largest.type, total, batch_invariant=True), batch_invariant=True
        )
    products = [_batch_invariant_product(x, w, bias, len(parts) > 1) for w, bias in parts]
    return products[0] if len(products) == 1 else torch.cat(products, dim=2)


def _batch_invariant_product(
    x: Activations, w: PlanesMatrix | Tensor, bias: Tensor | None, whole: bool
) -> Tensor:
    """[splits, M, N]; whole: [1, M, N]."""
    if isinstance(w, PlanesMatrix):
        return linear_tiled(
            x, [(w, bias)], plan_for(x, w.type, w.shape[0], 1, batch_invariant=True), batch_invariant=True
        )
    product = linear_batch_invariant(x, w, bias)
    return product if not whole else _in_order(product)


def _in_order(product: Tensor) -> Tensor:
    """Partial sums added up one after another: [1, M, N]."""
    total = product[:1]
    for part in product[1:]:
        total = total + part
    return total


def gated_batch_invariant(
    x: Activations,
    w: PlanesMatrix | Tensor,
    bias: Tensor | None,
    activation: Activation = "silu",
    scale: float = 1.0,
) -> Activations:
    """`gated_wide` for any number of rows, as `linear_batch_invariant_parts`."""
    return gate_activations(linear_batch_invariant_parts(x, [(w, bias)]), activation, scale=scale)


def _any_product(x: Activations, w: PlanesMatrix | Tensor, bias: Tensor | None) -> Tensor:
    if isinstance(w, Tensor):
        return _with_bias(_matmul(x.values, w), bias)
    return linear_wide(x, w, bias).sum(0, keepdim=True)


def gated_wide(
    x: Activations,
    w: PlanesMatrix | Tensor,
    bias: Tensor | None,
    activation: Activation = "silu",
    scale: float = 1.0,
) -> Activations:
    """activation(gate) * up * scale of x @ wᵀ + bias, gate and up being rows 2 i and 2 i + 1 of w.

    Shapes as for `linear_wide`; → Activations [M, N / 2].
    """
    if isinstance(w, Tensor):
        return gate_activations(linear_wide(x, w, bias), activation, scale=scale)
    rows = x.values.shape[0]
    if linear_plan(rows) == "dense":
        product = linear_dense(x, [(w, bias)], torch.float16, scale)
        return gate_activations(product, activation, scale=scale)
    plan = plan_for(x, w.type, w.shape[0], MAX_SPLITS if rows <= FEW[0].tokens else 1)
    if plan.splits > 1:
        return gate_activations(linear_tiled(x, [(w, bias)], plan), activation, scale=scale)
    return gated_tiled(x, w, bias, activation, plan, scale)


def linear_dense(
    x: Activations, parts: Sequence[PlanesPart], dtype: torch.dtype = torch.float32, scale: float = 1.0
) -> Tensor:
    """(x @ wᵀ + bias) * scale of all parts side by side through dense copies: → `dtype` [1, M, N of all].

    Only float16 is scaled: a power of two that keeps it within its range.
    """
    columns = parts[0][0].shape[1]
    total = sum(w.shape[0] for w, _ in parts)
    step = max(ROWS, SCRATCH_WEIGHTS // columns // ROWS * ROWS)
    scratch = torch.empty((min(step, total), columns), dtype=torch.float16, device=x.values.device)
    if step >= total:
        for w, start in zip((w for w, _ in parts), starts(parts), strict=True):
            dequantize_planes(w, scratch[start : start + w.shape[0]])
        out = _matmul(x.values, scratch, dtype, scale)
    else:
        out = torch.empty((1, x.values.shape[0], total), dtype=dtype, device=x.values.device)
        for (w, _), first in zip(parts, starts(parts), strict=True):
            for start in range(0, w.shape[0], step):
                part = scratch[: min(step, w.shape[0] - start)]
                dequantize_planes(w, part, start)
                place = slice(first + start, first + start + len(part))
                out[0, :, place] = _matmul(x.values, part, dtype, scale)[0]
    for (w, bias), start in zip(parts, starts(parts), strict=True):
        _with_bias(out[..., start : start + w.shape[0]], None if bias is None else bias * scale)
    return out


def _matmul(values: Tensor, w: Tensor, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
    """values float16 [M, K] @ wᵀ * scale → [1, M, N]; only float16 is scaled."""
    if w.dtype == torch.float32 or not values.is_cuda:
        return matmul(values.float(), w.float().T, scale=scale).to(dtype)[None]
    if w.dtype == torch.float16:
        return matmul(values, w.T, dtype, scale)[None]
    # A float16 is the sum of two bfloat16: one product of both halves reads the weights once.
    upper = values.to(w.dtype)
    halves = torch.cat([upper, (values - upper).to(w.dtype)])
    product = matmul(halves, w.T, torch.float32)
    rows = values.shape[0]
    return product[:rows].add_(product[rows:]).to(dtype)[None]


def _with_bias(product: Tensor, bias: Tensor | None) -> Tensor:
    return product if bias is None else product.add_(bias)
