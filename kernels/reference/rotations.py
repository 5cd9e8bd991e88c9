"""What positions turn and scale: rotary position embedding (Su et al. 2021), and factors of queries."""

import torch
from torch import Tensor

from kernels.contract import Rotation


def rotation_table(rotation: Rotation, positions: Tensor, pairs: int) -> Tensor:
    """positions float64 [T, 1] → complex64 [T, 1, pairs]."""
    table = turns(rotation, positions).to(torch.complex64)
    still = table.new_ones(table.shape[0], pairs - table.shape[1])
    return torch.cat([table, still], dim=1)[:, None]


def turns(rotation: Rotation, positions: Tensor) -> Tensor:
    """positions float64 [T, 1] → complex128 [T, R] of the pairs that turn."""
    angles = positions * rotation.inv_freq
    return torch.polar(torch.full_like(angles, rotation.magnitude), angles)


def temperatures(temperature: float, length: int, positions: Tensor) -> Tensor:
    """What queries are multiplied by, float32 [T, 1, 1]."""
    passed = torch.log1p((positions // length).to(torch.float64))
    return (1.0 + temperature * passed).to(torch.float32)[:, None, None]
