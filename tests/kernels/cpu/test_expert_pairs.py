"""Pairs of tokens and experts, expert after expert, an expert's in the order of their tokens."""

import pytest

pytest.importorskip("llvmlite")

import torch

from kernels.cpu.expert_pairs import sorted_pairs

EXPERTS = 13


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("tokens, used", [(1, 1), (1, 4), (3, 4), (40, 2)])
def test_pairs_are_sorted_and_keep_their_weights(tokens: int, used: int, dtype: torch.dtype):
    # One column more than is used: what is given need not lie together.
    wide = torch.stack([torch.randperm(EXPERTS)[: used + 1] for _ in range(tokens)]).to(dtype)
    ids, weights = wide[:, :used], torch.rand(tokens, used + 1)[:, :used]
    pairs = sorted_pairs(ids, weights, EXPERTS)
    flat = ids.flatten().long()
    order = flat.argsort(stable=True)
    experts, counts = flat[order].unique_consecutive(return_counts=True)
    assert (pairs.count, pairs.groups) == (tokens * used, len(experts))
    assert torch.equal(pairs.experts, experts)
    assert pairs.starts.tolist() == [0, *counts.cumsum(0).tolist()]
    assert torch.equal(pairs.tokens, order // used)
    assert torch.equal(pairs.weights, weights.flatten()[order])
    parts = (pairs.experts, pairs.starts, pairs.tokens, pairs.weights)
    assert pairs.addresses == tuple(part.data_ptr() for part in parts)
