"""One layer's experts on a GPU: made from a file's matrices, and applied to any number of tokens."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from kernels.contract import Activation, ExpertMatrices, Routing
from kernels.cuda.activations import SUM_WIDTH, Activations, has_ptx
from kernels.cuda.early import early
from kernels.cuda.gpu import gpu_of
from kernels.experts.both_kernel import experts_both_kernel
from kernels.experts.float_kernels import float_experts_kernel
from kernels.experts.norm_router import (
    ROUTED_EXPERTS,
    ROUTED_TOKENS,
    RoutedActivations,
    norm_and_route,
)
from kernels.experts.router import FEW_PAIRS, FEW_TOKENS, TICKET_STRIDE, route_few
from kernels.experts.routing import Groups, Routes, group_pairs, route_tokens
from kernels.experts.rows_kernels import experts_rows_kernel
from kernels.experts.tile_kernels import experts_tiled_kernel
from kernels.linear.linear import LinearMaker, TritonLinear, Weight, apply_linear
from kernels.linear.rows_plan import RowsPlan, multiprocessors, rows_plan
from kernels.linear.tile_plan import Tile
from kernels.planes.dequant import parity
from kernels.planes.layout import COLUMNS, ROWS, PlanesMatrix
from kernels.planes.unpack import HALF

ROWS_PAIRS, ROWS_TOKENS = 8, 64
"""Pairs of one program of the kernel for few rows, and tokens up to which it is the fastest."""
ROWS_REGISTERS = 128
"""Of a thread of that kernel: with a few more, which its compiler would take, fewer programs run at once."""
RESIDENT = 8
"""Its programs on one multiprocessor."""
LARGER_STAGES = 2
"""Stages of a second product that shares a launch and whose weights have more bits than those of the first:
with 3 its tiles fill so much shared memory that 6 programs run on a multiprocessor."""
TILES = (Tile(128, 16, 4, 3, 4), Tile(128, 32, 4, 3, 4), Tile(128, 64, 4, 3, 3))
"""For more tokens: the more pairs an expert has, the larger. Measured on an H200 with 128 experts of 768."""
SPARE = Tile(64, 32, 4, 2, 4)
"""Where a GPU's shared memory holds no other, and where tiles may not depend on the number of tokens."""
DENSE_PLACES = 32
"""Tokens times the experts of one, rounded up, up to which each program of a shared launch may compare all
ids, so that those without an expert come last. With 64 places that costs more than it gains."""
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
    tickets: Tensor
    """int32 [FEW_TOKENS · TICKET_STRIDE], zeros, for `route_few`."""
    done: Tensor
    """int32 [1 + FEW_PAIRS], for `experts_both_kernel`."""
    activation_scale: float = 1.0
    factors: Tensor | None = None
    """float32 [count]."""
    between: Callable[[], None] | None = None
    """Called when all that reads gate and up is queued, and nothing that reads down is."""

    @property
    def nbytes(self) -> int:
        """Memory on the device."""
        vectors = (self.selection_bias, self.gate_up_bias, self.down_bias, self.factors)
        matrices = self.router.nbytes + self.gate_up.nbytes + self.down.nbytes
        return matrices + sum(vector.nbytes for vector in vectors if vector is not None)


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
        torch.zeros(FEW_TOKENS * TICKET_STRIDE, dtype=torch.int32, device=maker.device),
        torch.zeros(1 + FEW_PAIRS, dtype=torch.int32, device=maker.device),
        activation_scale,
        None if matrices.factors is None else matrices.factors.to(maker.device, torch.float32),
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


def apply_experts(
    x: Activations, experts: TritonExperts, batch_invariant: bool = False, routed: Activations | None = None
) -> Tensor:
    """x [T, hidden] → float32 [used, T, hidden], to be added up in index order.

    routed: what the router reads where that is not x.
    batch_invariant: a row's result is the same, bit by bit, whatever other rows there are.
    """
    tokens, device, used = x.values.shape[0], x.values.device, experts.routing.used
    opened = Activations(
        torch.empty((tokens * used, experts.size), dtype=torch.float16, device=device),
        torch.empty((tokens * used, triton.cdiv(experts.size, SUM_WIDTH)), device=device),
    )
    out = torch.empty((used, tokens, experts.hidden), device=device)
    if isinstance(x, RoutedActivations) and routed is None:
        routes, groups = x.routes, None
    else:
        routes, groups = _route(x if routed is None else routed, experts, batch_invariant)
    one = _Products(experts, routes, groups, tokens, fixed=batch_invariant)
    if groups is None and experts.between is None and _fills_twice(tokens * used, experts):
        one.launch_both(x, opened, out)
        return out
    one.launch(x, experts.gate_up, experts.gate_up_bias, opened.values, opened.sums, experts.activation)
    if experts.between is not None:
        experts.between()
    one.launch(opened, experts.down, experts.down_bias, out, routes.weights, "")
    return out


def _route(x: Activations, experts: TritonExperts, batch_invariant: bool) -> tuple[Routes, Groups | None]:
    """No groups for a few tokens and experts that have planes: programs see in ids who shares one."""
    (segment,) = experts.router.segments
    if _routes_few(experts, x.values.shape[0]) and not batch_invariant:
        assert isinstance(segment.weight, Tensor)
        return route_few(
            x.values, segment.weight, segment.bias, experts.selection_bias, experts.factors, experts.routing,
            experts.tickets, experts.done,
        ), None  # fmt: skip
    logits = apply_linear(x, experts.router, batch_invariant)
    routes = route_tokens(logits, experts.selection_bias, experts.routing, experts.factors)
    return routes, group_pairs(routes, experts.count)


def _routes_few(experts: TritonExperts, tokens: int) -> bool:
    """Whether so many are routed in one launch."""
    planes = isinstance(experts.gate_up, PlanesMatrix) and isinstance(experts.down, PlanesMatrix)
    few = tokens <= FEW_TOKENS and tokens * experts.routing.used <= FEW_PAIRS
    return few and planes and isinstance(experts.router.segments[0].weight, Tensor)


def norm_for_experts(
    residual: Tensor,
    delta: Tensor | None,
    weight: Tensor | None,
    eps: float,
    reader: object,
    scale: float = 1.0,
    sum_scale: float = 1.0,
) -> RoutedActivations | None:
    """`add_norm` of rows which `apply_experts` reads next, and their routes, where one launch is the faster.

    reader: None or a handle that is none of these too. None: nothing was computed.
    """
    if delta is None or weight is None or not isinstance(reader, TritonExperts):
        return None
    experts, tokens = reader, residual.shape[0]
    (segment,) = experts.router.segments
    counted = triton.next_power_of_2(experts.count) == ROUTED_EXPERTS
    if tokens > ROUTED_TOKENS or not counted or not _routes_few(experts, tokens):
        return None
    assert isinstance(segment.weight, Tensor)
    return norm_and_route(
        residual, delta, weight, eps, segment.weight, segment.bias, experts.selection_bias,
        experts.factors, experts.routing, experts.tickets, experts.done, scale, sum_scale,
    )  # fmt: skip


def _fills_twice(pairs: int, experts: TritonExperts) -> bool:
    """Whether both products together have more than twice the programs that run at once."""
    tiles = triton.cdiv(2 * experts.size, ROWS) + triton.cdiv(experts.hidden, ROWS)
    return pairs * tiles >= 2 * RESIDENT * multiprocessors(experts.done.device)


@dataclass(frozen=True, slots=True)
class _Products:
    """The two products of one layer and pass."""

    experts: TritonExperts
    routes: Routes
    groups: Groups | None
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
            assert isinstance(self.groups, Groups)
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
        groups, count, first = self.groups, self.experts.count, options["GATE"] != ""
        plan = self._plan(weight, rows)
        if groups is None:
            order = starts = self.routes.ids
            padded, tiles = 0, order.shape[0]
        else:
            order, starts, padded = groups.order, groups.starts, triton.next_power_of_2(count)
            tiles = self._num_tiles(plan.tokens)
        experts_rows_kernel[(triton.cdiv(rows, plan.weights), tiles)](
            weight.quants, weight.high, weight.meta, x.values, x.sums, order, starts,
            self.routes.weights, bias, out, sums, count, -(-rows // ROWS), weight.quants.shape[1],
            weight.shape[1], weight.quants.shape[0], rows, self.tokens, EXPERTS=padded,
            FORM=weight.format, BN=plan.weights, BM=plan.tokens, STAGES=plan.stages,
            RAGGED=weight.shape[1] % COLUMNS != 0, BEFORE=plan.before, **options,
            FAST=has_ptx(weight.quants), WARPS=plan.warps, num_warps=plan.warps,
            **_registers(weight.quants), **early(weight.quants, starts_early=not first),
        )  # fmt: skip

    def launch_both(self, x: Activations, opened: Activations, out: Tensor) -> None:
        """The two products at once."""
        experts, weights = self.experts, self.routes.weights
        first, second = experts.gate_up, experts.down
        assert isinstance(first, PlanesMatrix) and isinstance(second, PlanesMatrix)
        pairs, rows = self.routes.ids.shape[0], (2 * experts.size, experts.hidden)
        biases = (experts.gate_up_bias, experts.down_bias)
        plan = self._plan(first, rows[0])
        experts_both_kernel[(pairs * sum(triton.cdiv(count, plan.weights) for count in rows),)](
            first.quants, first.high, first.meta, second.quants, second.high, second.meta, x.values, x.sums,
            self.routes.ids, weights, *(weights if bias is None else bias for bias in biases),
            opened.values, opened.sums, out, experts.done, pairs, self.tokens,
            rows[0], first.shape[1], first.quants.shape[1], first.quants.shape[0],
            rows[1], second.shape[1], second.quants.shape[1], second.quants.shape[0],
            USED=experts.routing.used, FORM1=first.format, FORM2=second.format, BN=plan.weights,
            BM=plan.tokens, ROWS=ROWS, STAGES1=plan.stages,
            STAGES2=LARGER_STAGES if _bits(second) > _bits(first) else plan.stages,
            RAGGED1=first.shape[1] % COLUMNS != 0, RAGGED2=second.shape[1] % COLUMNS != 0,
            GATE=experts.activation, SCALE=experts.activation_scale, BIAS1=biases[0] is not None,
            BIAS2=biases[1] is not None, FAST=has_ptx(out), WARPS=plan.warps, num_warps=plan.warps,
            DENSE=self._dense(plan),
            **_registers(out), **early(out),
        )  # fmt: skip

    def _dense(self, plan: RowsPlan) -> bool:
        """Whether turns are those of experts in use alone: where not all first products run at once."""
        experts = self.experts
        count, used = experts.count, experts.routing.used
        in_use = count * (1 - (1 - used / count) ** self.tokens)
        programs = in_use * triton.cdiv(2 * experts.size, plan.weights)
        few = plan.tokens * triton.next_power_of_2(used) <= DENSE_PLACES
        return few and programs > RESIDENT * multiprocessors(experts.done.device)

    def _plan(self, weight: PlanesMatrix, rows: int) -> RowsPlan:
        return rows_plan(weight.type, ROWS_PAIRS, (rows, weight.shape[1]), 1, gated=True)

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
        assert isinstance(self.groups, Groups)
        fast = {torch.float16: "none", torch.bfloat16: "tf32"}.get(weight.dtype, "tf32x3")
        tile = FLOAT_PAIRS
        float_experts_kernel[(triton.cdiv(rows, FLOAT_ROWS), self._num_tiles(tile))](
            weight, x.values, self.groups.order, self.groups.starts, self.routes.weights, bias, out, sums,
            self.experts.count, rows, weight.shape[1], self.tokens,
            PADDED=triton.next_power_of_2(self.experts.count), BN=FLOAT_ROWS, BM=tile, BK=64, STAGES=2,
            PRECISION=fast if fast == "none" or has_ptx(weight) else "ieee", **options, num_warps=4,
        )  # fmt: skip


def _bits(weight: PlanesMatrix) -> float:
    """Of one weight."""
    rows, columns = weight.padded
    return 8 * weight.nbytes / (rows * columns)


def _registers(tensor: Tensor) -> dict[str, int]:
    return {"maxnreg": ROWS_REGISTERS} if has_ptx(tensor) else {}
