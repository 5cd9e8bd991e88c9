"""A norm and the router behind it in one launch, for one token.

What a norm divides by is one number, so logits of what is not yet divided are divided after. Columns are
shared out: a program adds up its own and gives their part of every expert's logit; the last of a token's to
finish divides, chooses, and writes the normed row.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.contract import Routing
from kernels.cuda.activations import SUM_WIDTH, Activations
from kernels.cuda.early import early, let_next_start, wait_for_inputs
from kernels.experts.router import TICKET_STRIDE
from kernels.experts.routing import Routes, choose

SHARE, WARPS = 64, 4
"""Columns of one program. With 128 and 8 one row of 128 experts is slower than in two launches."""
ROUTED_TOKENS = 1
"""Tokens up to which one launch is the faster: programs of every token read the router's rows again."""
ROUTED_EXPERTS = 128
"""Experts, rounded up to a power of two, of whose rows a program's registers hold its columns."""
_STRIDE = tl.constexpr(TICKET_STRIDE)


@dataclass(frozen=True, slots=True)
class RoutedActivations(Activations):
    """Whose experts are chosen."""

    routes: Routes


def norm_and_route(
    residual: Tensor,
    delta: Tensor,
    weight: Tensor,
    eps: float,
    router: Tensor,
    router_bias: Tensor | None,
    selection_bias: Tensor | None,
    factors: Tensor | None,
    routing: Routing,
    tickets: Tensor,
    done: Tensor,
    scale: float = 1.0,
    sum_scale: float = 1.0,
) -> RoutedActivations:
    """`add_norm` of all rows, and `route_few` of the result before it is rounded.

    residual float32 [T, H], updated in place; delta float32 or float16 [S, T, H], added up over S in index
    order, multiplied by `scale` and added, the sum multiplied by `sum_scale`; weight float32 [H]; the others
    as of `route_few`.
    """
    (tokens, hidden), experts, device = residual.shape, router.shape[0], residual.device
    groups, pairs = triton.cdiv(hidden, SUM_WIDTH), tokens * routing.used
    block = triton.next_power_of_2(hidden)
    shares = triton.cdiv(hidden, SHARE)
    routes = Routes(torch.empty(pairs, dtype=torch.int32, device=device), torch.empty(pairs, device=device))
    x = RoutedActivations(
        torch.empty((tokens, hidden), dtype=torch.float16, device=device),
        torch.empty((tokens, groups), device=device),
        routes,
    )
    logits = torch.empty((tokens, shares, experts), device=device)
    squares = torch.empty((tokens, shares), device=device)
    _norm_and_route[(shares, tokens)](
        residual, delta, weight, router, weight if router_bias is None else router_bias,
        weight if selection_bias is None else selection_bias, weight if factors is None else factors,
        x.values, x.sums, logits, squares, routes.ids, routes.weights, tickets, done, tokens, eps,
        scale, sum_scale, routing.scale,
        H=hidden, BLOCK=block, SHARE=SHARE, SHARES=shares, WIDTH=SUM_WIDTH, GROUPS=groups,
        SPLITS=delta.shape[0], EXPERTS=experts, PADDED=triton.next_power_of_2(experts),
        USED=routing.used, ROUTER_BIAS=router_bias is not None, BIAS=selection_bias is not None,
        FACTORS=factors is not None, GATING=routing.gating, NORMALISED=routing.normalised,
        EXPERT_GROUPS=routing.groups, GROUPS_USED=routing.groups_used,
        PAIRS=triton.next_power_of_2(pairs), num_warps=WARPS, **early(router),
    )  # fmt: skip
    return x


@triton.jit(do_not_specialize=["tokens"])
def _norm_and_route(
    residual: tl.tensor,
    delta: tl.tensor,
    weight: tl.tensor,
    router: tl.tensor,
    router_bias: tl.tensor,
    bias: tl.tensor,
    factors: tl.tensor,
    values: tl.tensor,
    sums: tl.tensor,
    logits: tl.tensor,
    squares: tl.tensor,
    ids: tl.tensor,
    weights: tl.tensor,
    tickets: tl.tensor,
    done: tl.tensor,
    tokens: int,
    eps: tl.tensor,
    branch_scale: tl.tensor,
    sum_scale: tl.tensor,
    scale: tl.tensor,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
    SHARE: tl.constexpr,
    SHARES: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUPS: tl.constexpr,
    SPLITS: tl.constexpr,
    EXPERTS: tl.constexpr,
    PADDED: tl.constexpr,
    USED: tl.constexpr,
    ROUTER_BIAS: tl.constexpr,
    BIAS: tl.constexpr,
    FACTORS: tl.constexpr,
    GATING: tl.constexpr,
    NORMALISED: tl.constexpr,
    EXPERT_GROUPS: tl.constexpr,
    GROUPS_USED: tl.constexpr,
    PAIRS: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    """Grid (SHARES, tokens). Bytes: the router once, and from the L2 for each token; a row as `_add_norm`."""
    share, token = tl.program_id(0), tl.program_id(1)
    column = share * SHARE + tl.arange(0, SHARE)
    expert = tl.arange(0, PADDED)
    inside = column < H
    w = tl.load(
        router + expert[:, None] * H + column[None, :],
        mask=(expert < EXPERTS)[:, None] & inside[None, :], other=0.0,
    ).to(tl.float32)  # fmt: skip
    own_scale = tl.load(weight + column, mask=inside, other=0.0)
    wait_for_inputs(EARLY)
    let_next_start(EARLY)
    if (share == 0) & (token == 0):
        pair = tl.arange(0, PAIRS)
        tl.store(done, 0)
        tl.store(done + 1 + pair, 0, mask=pair < tokens * USED)
    row = token.to(tl.int64) * H
    x = tl.load(residual + row + column, mask=inside, other=0.0)
    added = tl.load(delta + row + column, mask=inside, other=0.0).to(tl.float32)
    for split in tl.static_range(1, SPLITS):
        added += tl.load(
            delta + (split * tokens).to(tl.int64) * H + row + column, mask=inside, other=0.0
        ).to(tl.float32)  # fmt: skip
    x = (x + added * branch_scale) * sum_scale
    # Several threads hold the same column: all must have read it before one of them writes it.
    tl.debug_barrier()
    tl.store(residual + row + column, x, mask=inside)
    part = tl.sum(w * (x * own_scale)[None, :], axis=1)
    place = token * SHARES + share
    tl.store(logits + place * EXPERTS + expert, part, mask=expert < EXPERTS)
    tl.store(squares + place, tl.sum(x * x, axis=0))
    # All threads' values must be written before one of them counts this program as done.
    tl.debug_barrier()
    if tl.atomic_add(tickets + token * _STRIDE, 1, sem="acq_rel") == SHARES - 1:
        tl.store(tickets + token * _STRIDE, 0)
        number = tl.arange(0, triton.next_power_of_2(SHARES))
        there = number < SHARES
        parts = tl.load(
            logits + (token * SHARES + number)[:, None] * EXPERTS + expert[None, :],
            mask=there[:, None] & (expert < EXPERTS)[None, :], other=0.0, cache_modifier=".cg",
        )  # fmt: skip
        square = tl.load(squares + token * SHARES + number, mask=there, other=0.0, cache_modifier=".cg")
        every = tl.arange(0, BLOCK)
        whole = tl.load(residual + row + every, mask=every < H, other=0.0, cache_modifier=".cg")
        all_scale = tl.load(weight + every, mask=every < H, other=0.0)
        root = tl.sqrt_rn(tl.sum(square, axis=0) / H + eps)
        y = (whole / root * all_scale).to(tl.float16)
        tl.store(values + row + every, y, mask=every < H)
        total = tl.sum(tl.reshape(y.to(tl.float32), (BLOCK // WIDTH, WIDTH)), axis=1)
        group = tl.arange(0, BLOCK // WIDTH)
        tl.store(sums + token * GROUPS + group, total, mask=group < GROUPS)
        score = tl.sum(parts, axis=0) / root
        if ROUTER_BIAS:
            score += tl.load(router_bias + expert, mask=expert < EXPERTS, other=0.0)
        score = tl.where(expert < EXPERTS, score, float("-inf"))
        choose(
            score[None, :], bias, factors, ids, weights, token + tl.arange(0, 1), tokens, scale,
            EXPERTS, PADDED, USED, BIAS, FACTORS, GATING, NORMALISED, EXPERT_GROUPS, GROUPS_USED,
        )  # fmt: skip
