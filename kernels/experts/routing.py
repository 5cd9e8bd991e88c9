"""The router on the device: which experts a token uses, their weights, and the pairs of every expert."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.contract import Routing
from kernels.reference.experts import LEAST_SUM

_LEAST_SUM = tl.constexpr(LEAST_SUM)
_NO_NUMBER = tl.constexpr(-1.0e30)
_LEAST = tl.constexpr(-(1 << 31))
_SCANNED = 1024
"""Pairs that a program looks at in one step."""


@dataclass(frozen=True, slots=True)
class Routes:
    """P = T · used pairs; pair p is slot p % used of token p // used."""

    ids: Tensor
    """int32 [P], the expert of each pair."""
    weights: Tensor
    """float32 [P]."""


@dataclass(frozen=True, slots=True)
class Groups:
    """The pairs of each expert side by side."""

    order: Tensor
    """int32 [P], the pairs of expert 0, of expert 1, …; an expert's in order of their tokens."""
    starts: Tensor
    """int32 [experts + 1], the first place of each expert in `order`."""


def route_tokens(
    logits: Tensor, bias: Tensor | None, routing: Routing, factors: Tensor | None = None
) -> Routes:
    """logits float32 [S, T, experts], added up over S in index order; bias and factors float32 [experts].

    Computes what `kernels.reference.experts.route` defines; weights are multiplied by their experts' factors.
    """
    splits, tokens, experts = logits.shape
    device, pairs = logits.device, tokens * routing.used
    ids = torch.empty(pairs, dtype=torch.int32, device=device)
    weights = torch.empty(pairs, device=device)
    _route[(tokens,)](
        logits, logits if bias is None else bias, logits if factors is None else factors, ids, weights,
        tokens, routing.scale,
        EXPERTS=experts, PADDED=triton.next_power_of_2(experts), USED=routing.used, SPLITS=splits,
        BIAS=bias is not None, FACTORS=factors is not None, GATING=routing.gating,
        NORMALISED=routing.normalised, GROUPS=routing.groups, GROUPS_USED=routing.groups_used, num_warps=1,
    )  # fmt: skip
    return Routes(ids, weights)


def group_pairs(routes: Routes, experts: int) -> Groups:
    """List the pairs by their expert, in one launch."""
    pairs, device = routes.ids.shape[0], routes.ids.device
    order = torch.empty(pairs, dtype=torch.int32, device=device)
    starts = torch.empty(experts + 1, dtype=torch.int32, device=device)
    step = min(_SCANNED, triton.next_power_of_2(pairs))
    _group_pairs[(experts,)](routes.ids, order, starts, pairs, experts, STEP=step, num_warps=4)
    return Groups(order, starts)


@triton.jit(do_not_specialize=["num_tokens"])
def _route(
    logits: tl.tensor,
    bias: tl.tensor,
    factors: tl.tensor,
    ids: tl.tensor,
    weights: tl.tensor,
    num_tokens: tl.tensor,
    scale: tl.tensor,
    EXPERTS: tl.constexpr,
    PADDED: tl.constexpr,
    USED: tl.constexpr,
    SPLITS: tl.constexpr,
    BIAS: tl.constexpr,
    FACTORS: tl.constexpr,
    GATING: tl.constexpr,
    NORMALISED: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUPS_USED: tl.constexpr,
) -> None:
    """Grid (tokens,)."""
    token = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    expert = tl.arange(0, PADDED)
    inside = (expert < EXPERTS)[None, :]
    row = logits + token[:, None] * EXPERTS + expert[None, :]
    score = tl.load(row, mask=inside, other=float("-inf"))
    for split in tl.static_range(1, SPLITS):
        step = num_tokens.to(tl.int64) * (split * EXPERTS)
        score += tl.load(row + step, mask=inside, other=0.0)
    choose(
        score, bias, factors, ids, weights, token, num_tokens, scale,
        EXPERTS, PADDED, USED, BIAS, FACTORS, GATING, NORMALISED, GROUPS, GROUPS_USED,
    )  # fmt: skip


@triton.jit
def choose(
    score: tl.tensor,
    bias: tl.tensor,
    factors: tl.tensor,
    ids: tl.tensor,
    weights: tl.tensor,
    token: tl.tensor,
    num_tokens: tl.tensor,
    scale: tl.tensor,
    EXPERTS: tl.constexpr,
    PADDED: tl.constexpr,
    USED: tl.constexpr,
    BIAS: tl.constexpr,
    FACTORS: tl.constexpr,
    GATING: tl.constexpr,
    NORMALISED: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUPS_USED: tl.constexpr,
) -> None:
    """Logits [R, PADDED] of tokens [R]: a token's experts one after another, each the best of those left."""
    expert = tl.arange(0, PADDED)[None, :]
    inside = expert < EXPERTS
    if GATING == "softmax":
        score = tl.exp(score - tl.max(score, axis=1)[:, None])
        score = score / tl.sum(score, axis=1)[:, None]
    elif GATING == "sigmoid":
        score = 1.0 / (1.0 + tl.exp(-score))
    ranked = score
    if BIAS:
        ranked += tl.load(bias + expert, mask=inside, other=0.0)
    # Numbers that are none must still name an expert, and no place beyond them may ever win.
    ranked = tl.where(inside, tl.where(ranked == ranked, ranked, _NO_NUMBER), float("-inf"))
    if GROUPS > GROUPS_USED:
        ranked = _in_open_groups(ranked, expert, inside, EXPERTS // GROUPS, GROUPS, GROUPS_USED)
    # A warp finds the largest of integers in one instruction; adding 0 makes the two zeros equal.
    key = _ordered((ranked + 0.0).to(tl.int32, bitcast=True))
    slot = tl.arange(0, triton.next_power_of_2(USED))[None, :]
    chosen = tl.zeros((score.shape[0], slot.shape[1]), tl.int32)
    weight = tl.full(chosen.shape, float("-inf"), tl.float32)
    for number in tl.static_range(USED):
        top = tl.max(key, axis=1)[:, None]
        best = tl.min(tl.where(key == top, expert, PADDED), axis=1)[:, None]
        if BIAS:
            own = tl.sum(tl.where(expert == best, score, 0.0), axis=1)[:, None]
        else:
            own = _ordered(top).to(tl.float32, bitcast=True)
            own = tl.where(own == _NO_NUMBER, float("nan"), own)
        chosen = tl.where(slot == number, best, chosen)
        weight = tl.where(slot == number, own, weight)
        key = tl.where(expert == best, _LEAST, key)
    used = slot < USED
    if GATING == "softmax_selected":
        weight = tl.exp(weight - tl.max(weight, axis=1)[:, None])
        weight = weight / tl.sum(weight, axis=1)[:, None]
    elif NORMALISED:
        total = tl.sum(tl.where(used, weight, 0.0), axis=1)[:, None]
        weight = weight / tl.maximum(total, _LEAST_SUM)
    weight *= scale
    if FACTORS:
        weight *= tl.load(factors + chosen, mask=used, other=0.0)
    kept = used & (token < num_tokens)[:, None]
    tl.store(ids + token[:, None] * USED + slot, chosen, mask=kept)
    tl.store(weights + token[:, None] * USED + slot, weight, mask=kept)


@triton.jit
def _ordered(bits: tl.tensor) -> tl.tensor:
    """float32 bits as integers of the same order, and back."""
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _in_open_groups(
    ranked: tl.tensor,
    expert: tl.tensor,
    inside: tl.tensor,
    SIZE: tl.constexpr,
    GROUPS: tl.constexpr,
    USED: tl.constexpr,
) -> tl.tensor:
    """-inf outside the USED groups of SIZE experts with the largest sums of their two best."""
    closed = tl.full(ranked.shape, float("-inf"), tl.float32)
    number = tl.arange(0, triton.next_power_of_2(GROUPS))[None, :]
    scores = tl.full((ranked.shape[0], number.shape[1]), float("-inf"), tl.float32)
    for group in tl.static_range(GROUPS):
        own = tl.where(inside & (expert // SIZE == group), ranked, closed)
        score = tl.max(own, axis=1)[:, None]
        if SIZE > 1:
            best = tl.argmax(own, axis=1, tie_break_left=True)[:, None]
            score += tl.max(tl.where(expert == best, closed, own), axis=1)[:, None]
        scores = tl.where(number == group, score, scores)
    open_ = closed
    for _ in tl.static_range(USED):
        best = tl.argmax(scores, axis=1, tie_break_left=True)[:, None]
        open_ = tl.where(expert // SIZE == best, ranked, open_)
        scores = tl.where(number == best, float("-inf"), scores)
    return open_


@triton.jit(do_not_specialize=["pairs", "experts"])
def _group_pairs(
    ids: tl.tensor, order: tl.tensor, starts: tl.tensor, pairs: int, experts: int, STEP: tl.constexpr
) -> None:
    """Grid (experts,): a program looks at all pairs twice and lists those of its expert, in their order.

    Bytes: 8 · pairs for each expert, from the L2.
    """
    own = tl.program_id(0)
    place = tl.arange(0, STEP)
    before = tl.zeros((STEP,), tl.int32)
    for start in range(0, pairs, STEP):
        expert = tl.load(ids + start + place, mask=start + place < pairs, other=experts)
        before += (expert < own).to(tl.int32)
    first = tl.sum(before, axis=0)
    tl.store(starts + own, first)
    for start in range(0, pairs, STEP):
        expert = tl.load(ids + start + place, mask=start + place < pairs, other=experts)
        mine = (expert == own).to(tl.int32)
        target = first + tl.cumsum(mine, axis=0) - 1
        tl.store(order + target, start + place, mask=mine > 0)
        first += tl.sum(mine, axis=0)
    if own == experts - 1:
        tl.store(starts + experts, first)


@triton.jit
def find_expert(
    starts: tl.tensor, tile: tl.tensor, experts: int, PADDED: tl.constexpr, BM: tl.constexpr
) -> tl.tuple:
    """The expert of tile number `tile` of BM pairs, and its places [first, end) in the order of pairs.

    Tiles of one expert follow each other; behind the last one first equals end.
    """
    expert = tl.arange(0, PADDED)
    inside = expert < experts
    start = tl.load(starts + expert, mask=inside, other=0)
    end = tl.load(starts + expert + 1, mask=inside, other=0)
    tiles = tl.where(inside, (end - start + BM - 1) // BM, 0)
    behind = tl.cumsum(tiles, axis=0)
    here = (tile < behind) & (tile >= behind - tiles)
    found = tl.sum(tl.where(here, expert, 0), axis=0)
    first = tl.sum(tl.where(here, start + (tile - behind + tiles) * BM, 0), axis=0)
    return found, first, tl.minimum(first + BM, tl.sum(tl.where(here, end, 0), axis=0))
