"""Which token uses which expert, expert after expert."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Pairs:
    """The P pairs of a token and an expert that it uses, expert after expert."""

    experts: Tensor
    """int64 [G], those touched."""
    starts: Tensor
    """int64 [G + 1], the first pair of each."""
    tokens: Tensor
    """int64 [P]."""
    weights: Tensor
    """float32 [P]."""


def sorted_pairs(ids: Tensor, weights: Tensor) -> Pairs:
    """Of ids and weights [T, used]."""
    flat = ids.flatten()
    order = flat.argsort(stable=True)
    experts, counts = flat[order].unique_consecutive(return_counts=True)
    starts = F.pad(counts.cumsum(0), (1, 0))
    return Pairs(experts, starts, order // ids.shape[1], weights.flatten()[order])
