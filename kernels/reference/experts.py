"""Layers of many experts in plain torch: the router that all implementations follow, expert by expert."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.contract import Activation, ExpertMatrices, QuantizedMatrix, Routing
from kernels.quant.dequant import dequantize
from kernels.reference.gate import gate, scaled

LEAST_SUM = 6.1e-5
"""What weights are divided by at least: the smallest normal float16."""


@dataclass(frozen=True, slots=True)
class Experts:
    """One layer's experts; their matrices are on the CPU as the file has them."""

    count: int
    router: Tensor
    """float32 [count, hidden]."""
    router_bias: Tensor | None
    selection_bias: Tensor | None
    gate_up: Sequence[QuantizedMatrix]
    gate_up_bias: Tensor | None
    """float32 [count, 2 size]."""
    down: QuantizedMatrix
    down_bias: Tensor | None
    """float32 [count, hidden], scaled as the results are."""
    factors: Tensor | None
    """float32 [count]."""
    routing: Routing
    activation: Activation
    activation_scale: float

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return self.router.nbytes + sum(part.raw.nbytes for part in (*self.gate_up, self.down))


def make_experts(
    matrices: ExpertMatrices,
    routing: Routing,
    activation: Activation,
    device: torch.device,
    activation_scale: float = 1.0,
) -> Experts:
    """The router is widened; the experts are read from their file once and stay as it has them."""
    router = matrices.router

    def placed(part: Tensor | None) -> Tensor | None:
        return None if part is None else part.flatten(1).to(device, torch.float32)

    def vector(part: Tensor | None) -> Tensor | None:
        return None if part is None else part.to(device, torch.float32)

    return Experts(
        matrices.count,
        dequantize(router.raw, router.type, router.shape).to(device),
        vector(matrices.router_bias),
        vector(matrices.selection_bias),
        [replace(part, stored=part.raw) for part in matrices.gate_up],
        placed(matrices.gate_up_bias),
        replace(matrices.down, stored=matrices.down.raw),
        None if matrices.down_bias is None else placed(matrices.down_bias * activation_scale),
        vector(matrices.factors),
        routing,
        activation,
        activation_scale,
    )


def route(logits: Tensor, bias: Tensor | None, routing: Routing) -> tuple[Tensor, Tensor]:
    """logits float32 [T, experts] → ids int64 [T, used] and weights float32 [T, used].

    The order is llama.cpp's: probabilities, selection by them and the bias, the weights of the selected
    without it, their division by their sum, the scale. Of equal probabilities the first expert is taken.
    """
    probabilities = logits
    if routing.gating == "softmax":
        probabilities = logits.softmax(-1)
    elif routing.gating == "sigmoid":
        probabilities = logits.sigmoid()
    ranked = probabilities if bias is None else probabilities + bias
    if routing.groups > routing.groups_used:
        ranked = ranked.masked_fill(~_open_experts(ranked, routing), float("-inf"))
    ids = ranked.argsort(dim=-1, descending=True, stable=True)[:, : routing.used]
    weights = probabilities.gather(1, ids)
    if routing.gating == "softmax_selected":
        weights = weights.softmax(-1)
    elif routing.normalised:
        weights = weights / weights.sum(-1, keepdim=True).clamp_min(LEAST_SUM)
    return ids, weights * routing.scale


def _open_experts(ranked: Tensor, routing: Routing) -> Tensor:
    """bool [T, experts], the experts of the best groups."""
    grouped = ranked.unflatten(1, (routing.groups, -1))
    scores = grouped.topk(min(2, grouped.shape[2]), dim=-1).values.sum(-1)
    best = scores.argsort(dim=-1, descending=True, stable=True)[:, : routing.groups_used]
    chosen = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, best, True)
    return chosen[:, :, None].expand_as(grouped).flatten(1)


def chosen(routed: Tensor, experts: Experts) -> tuple[Tensor, Tensor]:
    """What a router that reads `routed` float32 [T, hidden] chooses: ids int64 and weights [T, used]."""
    logits = F.linear(routed, experts.router, experts.router_bias)
    ids, weights = route(logits, experts.selection_bias, experts.routing)
    return ids, weights if experts.factors is None else weights * experts.factors[ids]


def apply_experts(x: Tensor, experts: Experts, routed: Tensor | None = None) -> Tensor:
    """x float32 [T, hidden] → float32 [T, hidden]; a token's experts are added up in order of their ids."""
    ids, weights = chosen(x if routed is None else routed, experts)
    out = torch.zeros_like(x)
    for expert in ids.unique().tolist():
        tokens, slots = (ids == expert).nonzero(as_tuple=True)
        gate_up = torch.cat([_weights(part, expert, experts.count) for part in experts.gate_up]).to(x.device)
        down = _weights(experts.down, expert, experts.count).to(x.device)
        first, second = (
            None if bias is None else bias[expert] for bias in (experts.gate_up_bias, experts.down_bias)
        )
        opened = gate(F.linear(x[tokens], gate_up, first), experts.activation)
        result = F.linear(scaled(opened, experts.activation_scale), down, second)
        out.index_add_(0, tokens, result * weights[tokens, slots, None])
    return out


def _weights(matrix: QuantizedMatrix, expert: int, count: int) -> Tensor:
    """float32 [rows, columns] of one of `count` experts, on the CPU."""
    rows, raw = matrix.shape[0] // count, matrix.raw
    size = raw.numel() // count
    return dequantize(raw[expert * size : (expert + 1) * size], matrix.type, (rows, matrix.shape[1]))
