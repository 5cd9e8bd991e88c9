"""One layer's experts on a GPU: made from a file's matrices, and applied to any number of tokens."""

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from kernels.contract import Activation, ExpertMatrices, Routing
from kernels.cuda.activations import SUM_WIDTH, Activations, has_ptx
from kernels.experts.float_kernels import float_experts_kernel
from kernels.experts.routing import Groups, Routes, group_pairs, route_tokens
from kernels.experts.rows_kernels import experts_rows_kernel
from kernels.experts.tile_kernels import experts_tiled_kernel
from kernels.linear.linear import LinearMaker, TritonLinear, Weight, apply_linear
from kernels.linear.rows_plan import rows_plan
from kernels.linear.tile_plan import Tile, gpu_of
from kernels.planes.dequant import parity
from kernels.planes.layout import COLUMNS, ROWS, PlanesMatrix
from kernels.planes.unpack import HALF

ROWS_PAIRS, ROWS_TOKENS = 8, 64
"""Pairs of one program of the kernel for few rows, and tokens up to which it is the fastest."""
TILES = (Tile(128, 16, 4, 3, 4), Tile(128, 32, 4, 3, 4), Tile(128, 64, 4, 3, 3))
"""For more tokens: the more pairs an expert has, the larger. Measured on an H200 with 128 experts of 768."""
SPARE = Tile(64, 32, 4, 2, 4)
"""Where a GPU's shared memory holds no other, and where tiles may not depend on the number of tokens."""
FLOAT_ROWS, FLOAT_PAIRS = 64, 32
"""The same for weights that are no planes."""


@dataclass(frozen=True, slots=True)
class TritonExperts:
    """Experts one after another, planes padded so that each begins at a tile of rows."""

    count: int
    router: TritonLinear
    selection_bias: Tensor | None
    gate_up: Weight
    """Rows of gate and up in pairs."""
    gate_up_bias: Tensor | None
    """float32 [count, 2 size], in pairs."""
    down: Weight
    down_bias: Tensor | None
    """float32 [count, hidden], scaled as the results are."""
    size: int
    hidden: int
    routing: Routing
    activation: Activation
    activation_scale: float = 1.0

    @property
    def nbytes(self) -> int:
        """Memory on the device."""
        biases = (self.selection_bias, self.gate_up_bias, self.down_bias)
        matrices = self.router.nbytes + self.gate_up.nbytes + self.down.nbytes
        return matrices + sum(bias.nbytes for bias in biases if bias is not None)


def make_experts(
    maker: LinearMaker,
    matrices: ExpertMatrices,
    routing: Routing,
    activation: Activation,
    activation_scale: float = 1.0,
) -> TritonExperts:
    """Upload and repack."""
    count, bias = matrices.count, matrices.selection_bias
    hidden, size = matrices.down.shape[0] // count, matrices.down.shape[1]
    gate_up = _paired(count, size, len(matrices.gate_up))
    paired = matrices.gate_up_bias
    if paired is not None:
        paired = paired.transpose(1, 2).to(maker.device, torch.float32).contiguous()
    down_bias = None if matrices.down_bias is None else matrices.down_bias * activation_scale
    return TritonExperts(
        count,
        maker.linear([matrices.router], matrices.router_bias),
        None if bias is None else bias.to(maker.device, torch.float32),
        maker.stacked(matrices.gate_up, gate_up, _padded(count, 2 * size)),
        paired,
        maker.stacked([matrices.down], torch.arange(count * hidden), _padded(count, hidden)),
        None if down_bias is None else down_bias.to(maker.device, torch.float32).contiguous(),
        size,
        hidden,
        routing,
        activation,
        activation_scale,
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
    opened = Activations(
        torch.empty((tokens * used, experts.size), dtype=torch.float16, device=device),
        torch.empty((tokens * used, triton.cdiv(experts.size, SUM_WIDTH)), device=device),
    )
    out = torch.empty((used, tokens, experts.hidden), device=device)
    planes = isinstance(experts.gate_up, PlanesMatrix) and isinstance(experts.down, PlanesMatrix)
    alone = tokens <= ROWS_PAIRS and planes and not batch_invariant
    groups = None if alone else group_pairs(routes, experts.count)
    one = _Products(experts, routes, groups, tokens, fixed=batch_invariant)
    one.launch(x, experts.gate_up, experts.gate_up_bias, opened.values, opened.sums, experts.activation)
    one.launch(opened, experts.down, experts.down_bias, out, routes.weights, "")
    return out


@dataclass(frozen=True, slots=True)
class _Products:
    """The two products of one layer and pass."""

    experts: TritonExperts
    routes: Routes
    groups: Groups | None
    """None for few tokens."""
    tokens: int
    fixed: bool
    """Whether tiles may not depend on the number of tokens."""

    def launch(
        self, x: Activations, weight: Weight, bias: Tensor | None, out: Tensor, sums: Tensor, gate: str
    ) -> None:
        """With a gate its activation's name; else the weighed product."""
        rows = self.experts.hidden if gate == "" else 2 * self.experts.size
        added = self.routes.weights if bias is None else bias
        options = {"BIAS": bias is not None, "GATE": gate, "USED": self.experts.routing.used}
        options["SCALE"] = self.experts.activation_scale
        if isinstance(weight, Tensor):
            self._float(x, weight, added, out, sums, rows, options)
        elif self.groups is None or (self.tokens <= ROWS_TOKENS and not self.fixed):
            self._rows(x, weight, added, out, sums, rows, options)
        else:
            self._tiles(x, weight, added, self.groups, out, sums, rows, options)

    def _rows(
        self,
        x: Activations,
        weight: PlanesMatrix,
        bias: Tensor,
        out: Tensor,
        sums: Tensor,
        rows: int,
        options: dict[str, Any],
    ) -> None:
        pairs, groups, count = self.routes.ids.shape[0], self.groups, self.experts.count
        plan = rows_plan(weight.type, ROWS_PAIRS, (rows, weight.shape[1]), 1, gated=True)
        order, starts = (self.routes.ids,) * 2 if groups is None else (groups.order, groups.starts)
        tiles = pairs if groups is None else self._num_tiles(plan.tokens)
        experts_rows_kernel[(triton.cdiv(rows, plan.weights), tiles)](
            weight.quants, weight.high, weight.meta, x.values, x.sums, self.routes.ids, order, starts,
            self.routes.weights, bias, out, sums, pairs, count, -(-rows // ROWS), weight.quants.shape[1],
            weight.shape[1], weight.quants.shape[0], rows, self.tokens,
            PAIRS=triton.next_power_of_2(pairs) if groups is None else 1,
            EXPERTS=0 if groups is None else triton.next_power_of_2(count),
            FORM=weight.format, BN=plan.weights, BM=plan.tokens,
            STAGES=plan.stages, RAGGED=weight.shape[1] % COLUMNS != 0, BEFORE=plan.before, **options,
            FAST=has_ptx(weight.quants), WARPS=plan.warps, num_warps=plan.warps,
        )  # fmt: skip

    def _tiles(
        self, x: Activations, weight: PlanesMatrix, bias: Tensor, groups: Groups, out: Tensor, sums: Tensor,
        rows: int, options: dict[str, Any],
    ) -> None:  # fmt: skip
        tile, columns = self._tile(weight), weight.shape[1]
        experts_tiled_kernel[(triton.cdiv(rows, tile.weights), self._num_tiles(tile.tokens))](
            weight.quants, weight.high, weight.meta, parity(weight.quants.device), x.values, groups.order,
            groups.starts, self.routes.weights, bias, out, sums, self.experts.count, -(-rows // ROWS),
            weight.quants.shape[0], weight.quants.shape[1], rows, columns, self.tokens,
            PADDED=triton.next_power_of_2(self.experts.count),
            FORM=weight.format, BN=tile.weights, BM=tile.tokens, EVEN=columns % HALF == 0, **options,
            FAST=has_ptx(weight.quants), STAGES=tile.stages, num_warps=tile.warps,
        )  # fmt: skip

    def _tile(self, weight: PlanesMatrix) -> Tile:
        """The largest that experts fill once or twice on average."""
        mean = self.tokens * self.experts.routing.used / self.experts.count
        wanted = next((tile for tile in TILES if mean < 1.5 * tile.tokens), TILES[-1])
        fits = wanted.shared(weight.type) <= gpu_of(weight.quants).shared
        return wanted if fits and not self.fixed else SPARE

    def _num_tiles(self, tokens: int) -> int:
        """Every expert in use may have one tile that is not full."""
        pairs = self.routes.ids.shape[0]
        return min(pairs, pairs // tokens + self.experts.count)

    def _float(
        self,
        x: Activations,
        weight: Tensor,
        bias: Tensor,
        out: Tensor,
        sums: Tensor,
        rows: int,
        options: dict[str, Any],
    ) -> None:
        assert self.groups is not None
        fast = {torch.float16: "none", torch.bfloat16: "tf32"}.get(weight.dtype, "tf32x3")
        tile = FLOAT_PAIRS
        float_experts_kernel[(triton.cdiv(rows, FLOAT_ROWS), self._num_tiles(tile))](
            weight, x.values, self.groups.order, self.groups.starts, self.routes.weights, bias, out, sums,
            self.experts.count, rows, weight.shape[1], self.tokens,
            PADDED=triton.next_power_of_2(self.experts.count), BN=FLOAT_ROWS, BM=tile, BK=64, STAGES=2,
            PRECISION=fast if fast == "none" or has_ptx(weight) else "ieee", **options, num_warps=4,
        )  # fmt: skip
