"""Norm, gate and products of `kernels.linear` in plain torch."""

import torch
from torch import Tensor

from kernels.cuda.activations import SUM_WIDTH, Activations
from kernels.linear.gate import Activation
from kernels.planes.layout import PlanesMatrix
from tests.kernels.planes.twins import weights_by_definition


def add_norm_torch(
    residual: Tensor, delta: Tensor | None, weight: Tensor, eps: float, rows: Tensor | None = None
) -> Activations:
    """Plain torch twin of `add_norm`."""
    x = residual
    if delta is not None:
        added = delta[0].float()
        for part in delta[1:]:
            added = added + part.float()
        x = residual + added
        if rows is None:
            residual.copy_(x)
    if rows is not None:
        x = x[rows.long()]
    variance = x.square().mean(dim=-1, keepdim=True)
    values = (x / torch.sqrt(variance + eps) * weight).to(torch.float16)
    padded = torch.nn.functional.pad(values.float(), (0, -values.shape[1] % SUM_WIDTH))
    return Activations(values, padded.unflatten(1, (-1, SUM_WIDTH)).sum(-1))


def gate_activations_torch(gate_up: Tensor, activation: Activation = "silu") -> Activations:
    """Plain torch twin of `gate_activations`."""
    total = gate_up[0].float()
    for part in gate_up[1:]:
        total = total + part.float()
    gate, up = total.clamp(-65504, 65504).unflatten(1, (-1, 2)).unbind(-1)
    if activation == "gelu":
        gate = torch.nn.functional.gelu(gate, approximate="tanh")
    else:
        gate = torch.nn.functional.silu(gate)
    values = (gate * up).clamp(-65504, 65504).to(torch.float16)
    padded = torch.nn.functional.pad(values.float(), (0, -values.shape[1] % SUM_WIDTH))
    return Activations(values, padded.unflatten(1, (-1, SUM_WIDTH)).sum(-1))


def linear_rows_torch(x: Activations, w: PlanesMatrix | Tensor, bias: Tensor | None = None) -> Tensor:
    """Plain torch twin of `linear_rows`, with one split."""
    out = x.values.float() @ _rows(w).T
    return (out if bias is None else out + bias)[None]


def gated_rows_torch(x: Activations, w: PlanesMatrix, activation: Activation = "silu") -> Activations:
    """Plain torch twin of `gated_rows`."""
    gate, up = (x.values.float() @ _rows(w).T).unflatten(1, (-1, 2)).unbind(2)
    if activation == "gelu":
        gate = torch.nn.functional.gelu(gate, approximate="tanh")
    else:
        gate = torch.nn.functional.silu(gate)
    values = (gate * up).half()
    padded = torch.nn.functional.pad(values.float(), (0, -values.shape[1] % SUM_WIDTH))
    return Activations(values, padded.unflatten(1, (-1, SUM_WIDTH)).sum(-1))


def _rows(w: PlanesMatrix | Tensor) -> Tensor:
    return w.float() if isinstance(w, Tensor) else weights_by_definition(w).float()


def linear_wide_torch(x: Activations, w: Tensor, bias: Tensor | None) -> Tensor:
    """Plain torch twin over dense weights [N, K]."""
    product = x.values.float() @ w.float().T
    return (product if bias is None else product + bias)[None]
