"""The sampler on the device: the distribution and the draw of `kernels.sampling`, no host in between.

Three launches, whatever the rows ask for: maxima of groups of tokens, the draw among the best tokens
that they lead to, and for rows that this leaves open a search over all tokens.
"""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from kernels.sampler_draw import choose_tokens
from kernels.sampler_logits import group_statistics
from kernels.sampler_search import search_tokens
from kernels.sampler_state import SamplerState


@dataclass(frozen=True, slots=True)
class SamplerShape:
    """Sizes of the candidate search; powers of two. They change its speed, never its result."""

    group: int = 128
    """Neighbouring tokens with one maximum."""
    small: int = 128
    """Candidates sorted in the usual case."""
    capacity: int = 1024
    """Candidates sorted at most."""


DEFAULT_SHAPE = SamplerShape()


def sample(
    logits: Tensor,
    state: SamplerState,
    slots: Tensor,
    lengths: Tensor,
    shape: SamplerShape = DEFAULT_SHAPE,
) -> tuple[Tensor, Tensor]:
    """Draw one token for each row.

    logits float32 [splits, R, vocab], added up over the splits (the last two dimensions may be
    strided by rows); slots int32 [R], row of the state, -1 for padding; lengths int32, by slot, the
    number of known tokens, which with the row's seed gives its random number. May be a strided view.

    → (ids int32 [R], finite int32 [R]). Rows with a NaN or infinite logit, or whose every token is
    forbidden, are reported as not finite; their id and that of padding is 0.
    """
    splits, count, vocab = logits.shape
    groups = triton.cdiv(vocab, shape.group)
    padded = triton.next_power_of_2(groups)
    device = logits.device
    maxima = torch.empty((2, count, groups), dtype=torch.float32, device=device)
    group_list = torch.empty((count, padded), dtype=torch.int32, device=device)
    found = torch.empty((count, shape.capacity), dtype=torch.int64, device=device)
    results = torch.empty((3, count), dtype=torch.int32, device=device)
    ids, finite, pending = results
    row = (logits, logits.stride(0), slots, state.rows, state.counts, state.bias)
    kind = (vocab, logits.stride(1), splits, False)
    tile = group_tile(count, shape.group)
    group_statistics[(triton.cdiv(groups, tile), count)](
        *row, maxima[0], maxima[1], SHAPE=kind, GROUPS=groups, GROUP=shape.group, TILE=tile, num_warps=4
    )
    choose_tokens[(count,)](
        *row,
        lengths,
        maxima[0],
        maxima[1],
        group_list,
        found,
        ids,
        finite,
        pending,
        POSITION_STRIDE=lengths.stride(0),
        SHAPE=kind,
        GROUPS=groups,
        GROUP=shape.group,
        TILE=min(32, padded),
        PADDED=padded,
        SMALL=shape.small,
        CAPACITY=shape.capacity,
        num_warps=8,
    )
    width = min(2048, triton.next_power_of_2(vocab))
    search_tokens[(count,)](
        *row,
        lengths,
        maxima[0],
        ids,
        pending,
        POSITION_STRIDE=lengths.stride(0),
        SHAPE=kind,
        GROUPS=groups,
        PADDED=padded,
        UNROLL=4,
        WIDTH=width,
        num_warps=16,
    )
    return ids, finite


def group_tile(count: int, group: int) -> int:
    """Groups per program: enough programs for few rows, enough loads in flight for many."""
    return max(1, (1024 if count <= 4 else 4096) // group)
