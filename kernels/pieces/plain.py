"""Norms, gates, products and embeddings in plain torch, over what the kernels hold."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.contract import Activation
from kernels.cuda.activations import SUM_WIDTH, Activations
from kernels.linear.linear import TritonLinear
from kernels.pieces.planes import rows_of
from kernels.planes.layout import ROWS
from kernels.reference.gate import activate, gate

LARGEST = 65504.0
"""float16's end."""
_TILE_WEIGHTS = 1 << 23
"""Weights that are decoded at once; the temporary memory is some 16 bytes for each."""


def activations(values: Tensor) -> Activations:
    """Values of a float type [M, K] rounded, held to float16's range, with their sums."""
    rounded = values.clamp(-LARGEST, LARGEST).to(torch.float16)
    padded = F.pad(rounded.float(), (0, -rounded.shape[1] % SUM_WIDTH))
    return Activations(rounded, padded.unflatten(1, (-1, SUM_WIDTH)).sum(-1))


def summed(parts: Tensor) -> Tensor:
    """Partial sums [S, T, N] added up in their order: float32 [T, N]."""
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    return total


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm of the last dimension, of x's type."""
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight.to(x.dtype)


def add_norm(
    residual: Tensor,
    delta: Tensor | None,
    weight: Tensor | None,
    eps: float,
    rows: Tensor | None = None,
    joins: tuple[Tensor, float] | None = None,
    scale: float = 1.0,
    bias: Tensor | None = None,
    centred: bool = False,
    sum_scale: float = 1.0,
) -> Activations:
    """As `kernels.linear.norm.add_norm`."""
    x = residual
    if delta is not None:
        added = summed(delta)
        if joins is not None:
            added = norm(added, *joins)
        x = (residual + added * scale) * sum_scale
        if rows is None:
            residual.copy_(x)
    if rows is not None:
        x = x[rows.long()]
    if centred:
        x = x - x.mean(-1, keepdim=True)
    if weight is not None:
        x = norm(x, weight, eps)
    return activations(x if bias is None else x + bias)


def norm_columns(output: Tensor, norms: Sequence[tuple[Tensor, float]]) -> Tensor:
    """As `kernels.linear.norm_columns`."""
    out, first = summed(output), 0
    for weight, eps in norms:
        columns = slice(first, first + weight.shape[0])
        out[:, columns] = norm(out[:, columns].clone(), weight, eps)
        first = columns.stop
    return out[None]


def sigmoid_gate(x: Activations, opened: Tensor) -> Activations:
    """As `kernels.linear.gate.sigmoid_gate`."""
    return activations(x.values.float() * torch.sigmoid(summed(opened)))


def linear(x: Activations, weights: TritonLinear) -> Tensor:
    """As `kernels.linear.linear.apply_linear`, in one part: weights are decoded tile by tile."""
    values, columns = x.values.float(), x.values.shape[1]
    out = torch.empty((1, len(values), sum(s.rows for s in weights.segments)), device=values.device)
    step, first = max(ROWS, _TILE_WEIGHTS // columns // ROWS * ROWS), 0
    for segment in weights.segments:
        for start in range(0, segment.rows, step):
            count = min(step, segment.rows - start)
            product = values @ rows_of(segment.weight, start, count).T
            if segment.bias is not None:
                product = product + segment.bias[start : start + count]
            out[0, :, first + start : first + start + count] = product
        first += segment.rows
    return out


def gated_linear(x: Activations, weights: TritonLinear) -> Activations:
    """As `kernels.linear.linear.apply_gated`."""
    assert weights.activation is not None
    product = linear(x, weights)[0]
    if weights.gated:
        opened = open_pairs(product, weights.activation)
    else:
        opened = activate(product, weights.activation)
    return activations(opened * weights.activation_scale)


def open_pairs(product: Tensor, activation: Activation) -> Tensor:
    """activation(gate) * up of [T, 2 F], whose columns 2 i and 2 i + 1 are gate and up."""
    return gate(torch.cat([product[:, ::2], product[:, 1::2]], dim=1), activation)
