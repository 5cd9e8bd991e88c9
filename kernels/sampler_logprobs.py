"""Log-probabilities of the chosen and of the best tokens, of what the model computed: no penalties,
no bias, temperature 1.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.sampling.logits import (
    LOWEST,
    edited_logits,
    group_statistics,
    logit_of,
    ordered,
    sharpness,
    token_of,
    weigh,
)
from kernels.sampling.sampler import DEFAULT_SHAPE, SamplerShape, group_tile


def log_probabilities(
    logits: Tensor, chosen: Tensor, top: int, shape: SamplerShape = DEFAULT_SHAPE
) -> tuple[Tensor, Tensor, Tensor]:
    """logits float32 [splits, R, vocab], added up over the splits; chosen int32 [R].

    → (float32 [R] of the chosen, ids int32 [R, top] of the best, best first and lower ids first among
    equals, float32 [R, top] of them). Ids are -1 beyond the vocabulary; all values of a row with a NaN
    or infinite logit are NaN.
    """
    splits, count, vocab = logits.shape
    groups = triton.cdiv(vocab, shape.group)
    statistics = torch.empty((2, count, groups), dtype=torch.float32, device=logits.device)
    of_chosen = torch.empty(count, dtype=torch.float32, device=logits.device)
    of_best = torch.empty((count, top), dtype=torch.float32, device=logits.device)
    best = torch.empty((count, top), dtype=torch.int32, device=logits.device)
    kind = (vocab, logits.stride(1), splits, True)
    tile = group_tile(shape.group)
    group_statistics[(triton.cdiv(groups, tile), count)](
        logits,
        logits.stride(0),
        chosen,
        chosen,
        chosen,
        logits,
        statistics,
        statistics.stride(0),
        SHAPE=kind,
        GROUPS=groups,
        GROUP=shape.group,
        TILE=tile,
        MOST=0,
        num_warps=4,
    )
    _log_probabilities[(count,)](
        logits,
        logits.stride(0),
        chosen,
        statistics,
        statistics.stride(0),
        of_chosen,
        best,
        of_best,
        top,
        SHAPE=kind,
        GROUPS=groups,
        GROUP=shape.group,
        PADDED=triton.next_power_of_2(groups),
        num_warps=4,
    )
    return of_chosen, best, of_best


def log_probabilities_torch(logits: Tensor, chosen: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor]:
    """Plain torch twin of `log_probabilities`, for a vocabulary of at least `top` tokens."""
    whole = logits[0]
    for part in logits[1:]:
        whole = whole + part
    finite = torch.isfinite(whole).all(dim=-1, keepdim=True)
    log_p = torch.where(finite, whole, 0.0).double().log_softmax(dim=-1)
    log_p = torch.where(finite, log_p, torch.nan).float()
    best = torch.sort(whole, dim=-1, descending=True, stable=True).indices[:, :top]
    of_chosen = log_p.gather(1, chosen.long()[:, None]).squeeze(1)
    return of_chosen, best.int(), log_p.gather(1, best)


@triton.jit(do_not_specialize=["plane", "top"])
def _log_probabilities(
    logits: tl.tensor,
    split_stride: tl.tensor,
    chosen: tl.tensor,
    statistics: tl.tensor,
    plane: tl.tensor,
    of_chosen: tl.tensor,
    best_tokens: tl.tensor,
    of_best: tl.tensor,
    top: tl.tensor,
    SHAPE: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED: tl.constexpr,
) -> None:
    """Grid (R,): the best token is in the group of the largest maximum; without it, so is the next.

    Reads 8 bytes per group, and one group for each of the best.
    """
    row = tl.program_id(0)
    source = (logits, split_stride, row)
    group = tl.arange(0, PADDED)
    place = statistics + row * GROUPS + group
    maxima = tl.load(place, mask=group < GROUPS, other=float("-inf"))
    sums = tl.load(place + plane, mask=group < GROUPS, other=0.0)
    best = tl.max(maxima, axis=0)
    bad = tl.sum((maxima != maxima).to(tl.int32), axis=0) > 0
    mass = tl.sum(weigh(maxima, best, sharpness(1.0)) * sums, axis=0)
    total = tl.where(bad, float("nan"), best + tl.log(mass))
    token = tl.load(chosen + row)
    place_of_token = token + tl.arange(0, 1)
    known = (place_of_token >= 0) & (place_of_token < SHAPE[0])
    tl.store(of_chosen + row, tl.sum(edited_logits(source, place_of_token, known, SHAPE), axis=0) - total)
    maxima = tl.where(maxima == maxima, maxima, LOWEST)
    last = tl.full((PADDED,), (1 << 63) - 1, tl.int64)
    for rank in range(top):
        home = tl.argmax(maxima, axis=0)
        left = tl.max(maxima, axis=0) > float("-inf")
        column = home * GROUP + tl.arange(0, GROUP)
        x = edited_logits(source, column, column < SHAPE[0], SHAPE)
        x = tl.where(x == x, x, LOWEST)
        packed = tl.where(column < SHAPE[0], ordered(x, column), -(1 << 63))
        ceiling = tl.max(tl.where(group == home, last, -(1 << 63)), axis=0)
        packed = tl.where(packed < ceiling, packed, -(1 << 63))
        first = tl.max(packed, axis=0)
        second = tl.max(tl.where(packed < first, packed, -(1 << 63)), axis=0)
        follower = tl.where(second == -(1 << 63), float("-inf"), logit_of(second))
        maxima = tl.where(group == home, follower, maxima)
        last = tl.where(group == home, first, last)
        tl.store(best_tokens + row * top + rank, tl.where(left, token_of(first), -1))
        tl.store(of_best + row * top + rank, tl.where(left, logit_of(first), float("-inf")) - total)
