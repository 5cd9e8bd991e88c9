"""Which token uses which expert, expert after expert."""

from dataclasses import dataclass

import numpy as np
import torch
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
    # NumPy: of a few dozen numbers each of torch's operations takes several times as long.
    flat = ids.flatten().numpy()
    order = flat.argsort(kind="stable")
    chosen = flat[order]
    first = np.flatnonzero(np.diff(chosen, prepend=-1))
    return Pairs(
        torch.from_numpy(chosen[first].astype(np.int64)),
        torch.from_numpy(np.append(first, len(flat))),
        torch.from_numpy(order // ids.shape[1]),
        torch.from_numpy(weights.flatten().numpy()[order]),
    )
