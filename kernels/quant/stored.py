"""Bytes of a tensor that lie in a file and are read when they are needed."""

from typing import Protocol

import numpy as np
import torch
from torch import Tensor


class StoredBytes(Protocol):
    """Where bytes are read from."""

    @property
    def nbytes(self) -> int:
        """How many."""
        ...

    def read_into(self, target: np.ndarray, start: int = 0) -> None:
        """Fill `target`, uint8 [n], with those from `start` on; by any number of threads at once."""
        ...


def bytes_of(stored: Tensor | StoredBytes) -> Tensor:
    """uint8 [n] on the CPU, read now if need be."""
    if isinstance(stored, Tensor):
        return stored
    raw = torch.empty(stored.nbytes, dtype=torch.uint8)
    stored.read_into(raw.numpy())
    return raw
