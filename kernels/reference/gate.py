"""Gates of feed-forward layers in plain torch."""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.contract import Activation


def activate(x: Tensor, activation: Activation) -> Tensor:
    """The activation of every element."""
    if activation == "silu":
        return F.silu(x)
    if activation == "gelu":
        return F.gelu(x, approximate="tanh")
    return F.relu(x).square()


def gate(gate_up: Tensor, activation: Activation) -> Tensor:
    """activation(gate) * up of [T, 2 F], whose first half is the gate."""
    half = gate_up.shape[-1] // 2
    opened, up = gate_up[:, :half], gate_up[:, half:]
    if activation == "swiglu_oai":
        opened = opened.clamp(max=7.0)
        return (opened * torch.sigmoid(1.702 * opened)).mul_(up.clamp(-7.0, 7.0).add_(1.0))
    return activate(opened, activation).mul_(up)


def scaled(product: Tensor, scale: float) -> Tensor:
    """In place."""
    return product if scale == 1.0 else product.mul_(scale)
