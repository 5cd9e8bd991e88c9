"""Gates of feed-forward layers in plain torch."""

import torch.nn.functional as F
from torch import Tensor

from kernels.contract import Activation


def gate(gate_up: Tensor, activation: Activation) -> Tensor:
    """activation(gate) * up of [T, 2 F], whose first half is the gate."""
    half = gate_up.shape[-1] // 2
    opened = gate_up[:, :half]
    opened = F.silu(opened) if activation == "silu" else F.gelu(opened, approximate="tanh")
    return opened.mul_(gate_up[:, half:])
