"""The router of a few tokens in one launch: logits, and the experts of each token.

Every program computes one logit; the last of a token's to finish chooses its experts. Who shares an expert
is no work of the router's: every program of the products that follow sees it in a few dozen ids (`sharers`).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.contract import Routing
from kernels.cuda.early import early, let_next_start, wait_for_inputs
from kernels.experts.routing import Routes, choose

FEW_TOKENS, FEW_PAIRS = 8, 64
"""Tokens and pairs up to which this is the fastest."""
TICKET_STRIDE = 32
"""Tickets are lines of the L2 apart: those of one line are counted one after another."""
_STRIDE = tl.constexpr(TICKET_STRIDE)
_WARP_COLUMNS = 4096
"""Columns of which one warp holds a row of the router and of x in registers."""


def route_few(
    x: Tensor,
    router: Tensor,
    router_bias: Tensor | None,
    selection_bias: Tensor | None,
    factors: Tensor | None,
    routing: Routing,
    tickets: Tensor,
    done: Tensor,
) -> Routes:
    """x float16 [T, hidden], for at most FEW_TOKENS and FEW_PAIRS; router rows [experts, hidden] of floats.

    tickets: int32 [FEW_TOKENS · TICKET_STRIDE], zero before and after; done: int32 [1 + T · used] or more,
    which become zero.
    """
    (tokens, hidden), experts, device = x.shape, router.shape[0], x.device
    pairs = tokens * routing.used
    ids = torch.empty(pairs, dtype=torch.int32, device=device)
    weights = torch.empty(pairs, device=device)
    logits = torch.empty((tokens, experts), device=device)
    block = triton.next_power_of_2(hidden)
    _route_few[(experts, tokens)](
        x, router, x if router_bias is None else router_bias,
        x if selection_bias is None else selection_bias, x if factors is None else factors,
        logits, ids, weights, tickets, done, tokens, routing.scale,
        H=hidden, BLOCK=block, EXPERTS=experts,
        PADDED=triton.next_power_of_2(experts), USED=routing.used,
        ROUTER_BIAS=router_bias is not None, BIAS=selection_bias is not None, FACTORS=factors is not None,
        GATING=routing.gating, NORMALISED=routing.normalised, GROUPS=routing.groups,
        GROUPS_USED=routing.groups_used, PAIRS=triton.next_power_of_2(pairs),
        num_warps=max(1, block // _WARP_COLUMNS), **early(router),
    )  # fmt: skip
    return Routes(ids, weights)


@triton.jit(do_not_specialize=["tokens"])
def _route_few(
    x: tl.tensor,
    router: tl.tensor,
    router_bias: tl.tensor,
    bias: tl.tensor,
    factors: tl.tensor,
    logits: tl.tensor,
    ids: tl.tensor,
    weights: tl.tensor,
    tickets: tl.tensor,
    done: tl.tensor,
    tokens: int,
    scale: tl.tensor,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
    EXPERTS: tl.constexpr,
    PADDED: tl.constexpr,
    USED: tl.constexpr,
    ROUTER_BIAS: tl.constexpr,
    BIAS: tl.constexpr,
    FACTORS: tl.constexpr,
    GATING: tl.constexpr,
    NORMALISED: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUPS_USED: tl.constexpr,
    PAIRS: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    """Grid (experts, tokens), a program for each logit. Bytes: the router once, and from L2 for each token.

    tickets: how many logits of each token are there, TICKET_STRIDE apart.
    """
    expert, token = tl.program_id(0), tl.program_id(1)
    column = tl.arange(0, BLOCK)
    inside = column < H
    w = tl.load(router + expert * H + column, mask=inside, other=0.0).to(tl.float32)
    wait_for_inputs(EARLY)
    if (expert == 0) & (token == 0):
        pair = tl.arange(0, PAIRS)
        tl.store(done, 0)
        tl.store(done + 1 + pair, 0, mask=pair < tokens * USED)
    v = tl.load(x + token * H + column, mask=inside, other=0.0).to(tl.float32)
    logit = tl.sum(w * v, axis=0)
    let_next_start(EARLY)
    if ROUTER_BIAS:
        logit += tl.load(router_bias + expert)
    tl.store(logits + token * EXPERTS + expert, logit)
    # All threads' values must be written before one of them counts this program as done.
    tl.debug_barrier()
    if tl.atomic_add(tickets + token * _STRIDE, 1, sem="acq_rel") == EXPERTS - 1:
        tl.store(tickets + token * _STRIDE, 0)
        every = token + tl.arange(0, 1)
        number = tl.arange(0, PADDED)[None, :]
        score = tl.load(
            logits + token * EXPERTS + number, mask=number < EXPERTS, other=float("-inf"),
            cache_modifier=".cg",
        )  # fmt: skip
        choose(
            score, bias, factors, ids, weights, every, tokens, scale,
            EXPERTS, PADDED, USED, BIAS, FACTORS, GATING, NORMALISED, GROUPS, GROUPS_USED,
        )  # fmt: skip


@triton.jit
def ids_of(ids: tl.tensor, pairs: tl.tensor, USED: tl.constexpr, BM: tl.constexpr) -> tl.tensor:
    """The experts of at most BM tokens, one token's a row; -1 beyond."""
    token, slot = tl.arange(0, BM)[:, None], tl.arange(0, triton.next_power_of_2(USED))[None, :]
    place = token * USED + slot
    return tl.load(ids + place, mask=(slot < USED) & (place < pairs), other=-1)


@triton.jit
def sharers(ids: tl.tensor, pair: tl.tensor, USED: tl.constexpr, BM: tl.constexpr) -> tl.tuple:
    """Who else has a pair's expert, by the ids that `ids_of` gave.

    → the expert, whether no earlier token has it, each token's own pair with it [BM] (this pair where a
    token has none), and which tokens have one.
    """
    token, slot = tl.arange(0, BM)[:, None], tl.arange(0, triton.next_power_of_2(USED))[None, :]
    place = tl.where(slot < USED, token * USED + slot, -1)
    expert = tl.max(tl.max(tl.where(place == pair, ids, -1), axis=1), axis=0)
    own = tl.max(tl.where(ids == expert, place, -1), axis=1)
    live = own >= 0
    first = tl.min(tl.where(live, own, BM * USED), axis=0) == pair
    return expert, first, tl.where(live, own, pair), live


@triton.jit
def firsts(ids: tl.tensor, USED: tl.constexpr, BM: tl.constexpr) -> tl.tuple:
    """The pairs that are the first to have their expert, by the ids that `ids_of` gave.

    → the number of each among them [BM · USED rounded up to a power of two], -1 for other pairs and places
    that are none; how many they are. Every two ids are compared: for few of them.
    """
    PLACES: tl.constexpr = BM * triton.next_power_of_2(USED)
    place = tl.arange(0, PLACES)
    flat = tl.reshape(ids, (PLACES,))
    before = (flat[:, None] == flat[None, :]) & (place[None, :] < place[:, None])
    first = (tl.max(before.to(tl.int32), axis=1) == 0) & (flat >= 0)
    behind = tl.cumsum(first.to(tl.int32), axis=0)
    return tl.where(first, behind - 1, -1), tl.max(behind, axis=0)


@triton.jit
def pair_of(numbers: tl.tensor, number: tl.tensor, USED: tl.constexpr, BM: tl.constexpr) -> tl.tensor:
    """The pair numbered so by `firsts`; -1, which `sharers` lets begin nowhere, if none has it."""
    SLOTS: tl.constexpr = triton.next_power_of_2(USED)
    place = tl.arange(0, BM * SLOTS)
    return tl.max(tl.where(numbers == number, place // SLOTS * USED + place % SLOTS, -1), axis=0)
