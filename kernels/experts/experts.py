"""One layer's experts on a GPU: made from a file's matrices, and applied to any number of tokens."""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from kernels.contract import Activation, ExpertMatrices, Routing
from kernels.cuda.activations import SUM_WIDTH, Activations, has_ptx
from kernels.experts.float_kernels import float_experts_kernel
from kernels.experts.routing import Routes, route_tokens
from kernels.experts.rows_kernels import down_planes_kernel, gate_planes_kernel
from kernels.linear.linear import LinearMaker, TritonLinear, Weight, apply_linear
from kernels.linear.rows_plan import RowsPlan, rows_plan
from kernels.planes.layout import COLUMNS, ROWS, PlanesMatrix

FEW_PAIRS, MANY_PAIRS = 8, 32
"""Pairs of one expert that a program takes at once; the second where experts have many."""


@dataclass(frozen=True, slots=True)
class TritonExperts:
    """Experts one after another, planes padded so that each begins at a tile of rows."""

    count: int
    router: TritonLinear
    selection_bias: Tensor | None
    gate_up: Weight
    """Rows of gate and up in pairs."""
    down: Weight
    size: int
    hidden: int
    routing: Routing
    activation: Activation

    @property
    def nbytes(self) -> int:
        """Memory on the device."""
        return self.router.nbytes + self.gate_up.nbytes + self.down.nbytes


def make_experts(
    maker: LinearMaker, matrices: ExpertMatrices, routing: Routing, activation: Activation
) -> TritonExperts:
    """Upload and repack."""
    count, bias = matrices.count, matrices.selection_bias
    hidden, size = matrices.down.shape[0] // count, matrices.down.shape[1]
    gate_up = _paired(count, size, len(matrices.gate_up))
    return TritonExperts(
        count,
        maker.linear([matrices.router], None),
        None if bias is None else bias.to(maker.device, torch.float32),
        maker.stacked(matrices.gate_up, gate_up, _padded(count, 2 * size)),
        maker.stacked([matrices.down], torch.arange(count * hidden), _padded(count, hidden)),
        size,
        hidden,
        routing,
        activation,
    )


def _paired(count: int, size: int, parts: int) -> Tensor:
    """Source rows int64 [count * 2 size] that put gate and up rows of each expert in pairs."""
    expert = torch.arange(count)[:, None, None]
    feature = torch.arange(size)[None, :, None]
    half = torch.arange(2)[None, None, :]
    if parts == 1:
        return (expert * (2 * size) + half * size + feature).flatten()
    return (half * (count * size) + expert * size + feature).flatten()


def _padded(count: int, rows: int) -> Tensor:
    """Rows int64 of all experts, each one's last repeated up to a whole tile."""
    padded = -(-rows // ROWS) * ROWS
    row = torch.arange(padded).clamp_max(rows - 1)
    return (torch.arange(count)[:, None] * rows + row).flatten()


def apply_experts(x: Activations, experts: TritonExperts, batch_invariant: bool = False) -> Tensor:
    """x [T, hidden] → float32 [used, T, hidden], to be added up in index order.

    batch_invariant: a row's result is the same, bit by bit, whatever other rows there are.
    """
    logits = apply_linear(x, experts.router, batch_invariant)
    routes = route_tokens(logits, experts.selection_bias, experts.routing)
    tokens, device, used = x.values.shape[0], x.values.device, experts.routing.used
    pairs = tokens * used
    values = torch.empty((pairs, experts.size), dtype=torch.float16, device=device)
    sums = torch.empty((pairs, triton.cdiv(experts.size, SUM_WIDTH)), device=device)
    out = torch.empty((used, tokens, experts.hidden), device=device)
    many = batch_invariant or pairs > 2 * FEW_PAIRS * experts.count
    tile = MANY_PAIRS if many else FEW_PAIRS
    opened = Activations(values, sums)
    _launch(x, experts.gate_up, experts, routes, opened, None, tile)
    _launch(opened, experts.down, experts, routes, None, out, tile)
    return out


def _launch(
    x: Activations,
    weight: Weight,
    experts: TritonExperts,
    routes: Routes,
    opened: Activations | None,
    out: Tensor | None,
    tile: int,
) -> None:
    """The gated product into `opened`, or the weighed one into `out`."""
    pairs = routes.order.shape[0]
    rows = 2 * experts.size if opened is not None else experts.hidden
    # Every expert in use may have one tile that is not full.
    tiles = min(pairs, pairs // tile + experts.count)
    options = {"USED": experts.routing.used, "PADDED": triton.next_power_of_2(experts.count)}
    if isinstance(weight, Tensor):
        _launch_float(x, weight, experts, routes, opened, out, tile, (rows, tiles), options)
        return
    plan = _plan(weight, tile, rows)
    options |= {
        "FORM": weight.format, "BN": plan.weights, "BM": tile, "STAGES": plan.stages,
        "RAGGED": weight.shape[1] % COLUMNS != 0, "BEFORE": plan.before, "FAST": has_ptx(weight.quants),
        "WARPS": plan.warps, "num_warps": plan.warps,
    }  # fmt: skip
    planes = (weight.quants, weight.high, weight.meta, x.values, x.sums, routes.order, routes.starts)
    sizes = (
        experts.count, -(-rows // ROWS), weight.quants.shape[1], weight.shape[1], weight.quants.shape[0],
        rows,
    )  # fmt: skip
    grid = (triton.cdiv(rows, plan.weights), tiles)
    if opened is not None:
        gate_planes_kernel[grid](
            *planes, opened.values, opened.sums, *sizes, GELU=experts.activation == "gelu", **options
        )
    else:
        assert out is not None
        down_planes_kernel[grid](*planes, routes.weights, out, *sizes, out.shape[1], **options)


def _plan(weight: PlanesMatrix, tile: int, rows: int) -> RowsPlan:
    return rows_plan(weight.type, tile, (rows, weight.shape[1]), 1, gated=True)


def _launch_float(
    x: Activations,
    weight: Tensor,
    experts: TritonExperts,
    routes: Routes,
    opened: Activations | None,
    out: Tensor | None,
    tile: int,
    size: tuple[int, int],
    options: dict[str, int],
) -> None:
    rows, tiles = size
    fast = {torch.float16: "none", torch.bfloat16: "tf32"}.get(weight.dtype, "tf32x3")
    weights, depth = 64, 64
    target = out if opened is None else opened.values
    assert target is not None
    float_experts_kernel[(triton.cdiv(rows, weights), tiles)](
        weight, x.values, routes.order, routes.starts, routes.weights, target,
        routes.weights if opened is None else opened.sums, experts.count, rows, weight.shape[1],
        x.values.shape[0] if out is None else out.shape[1], **options,
        BN=weights, BM=tile, BK=depth, STAGES=2,
        PRECISION=fast if fast == "none" or has_ptx(weight) else "ieee",
        GATE="" if opened is None else experts.activation, num_warps=4,
    )  # fmt: skip
