"""Experts in plain torch, over what the kernels hold; waits for the device."""

import torch
from torch import Tensor

from kernels.cuda.activations import Activations
from kernels.experts.experts import TritonExperts
from kernels.linear.linear import Weight
from kernels.pieces.plain import activations, linear, open_pairs
from kernels.pieces.planes import rows_of
from kernels.planes.layout import ROWS
from kernels.reference.experts import route


def experts(x: Activations, held: TritonExperts, routed: Activations | None = None) -> Tensor:
    """As `kernels.experts.experts.apply_experts`: float32 [used, T, hidden]."""
    logits = linear(x if routed is None else routed, held.router)[0]
    ids, weights = route(logits, held.selection_bias, held.routing)
    if held.factors is not None:
        weights = weights * held.factors[ids]
    pairs = [(expert, *(ids == expert).nonzero(as_tuple=True)) for expert in ids.unique().tolist()]
    opened = []
    for expert, tokens, _ in pairs:
        product = x.values[tokens].float() @ _rows(held.gate_up, expert, 2 * held.size).T
        if held.gate_up_bias is not None:
            product = product + held.gate_up_bias.view(held.count, -1)[expert]
        gated = open_pairs(product, held.activation) * held.activation_scale
        opened.append(activations(gated).values.float())
    if held.between is not None:
        held.between()
    out = torch.empty((held.routing.used, len(ids), held.hidden), device=x.values.device)
    for (expert, tokens, slots), gated in zip(pairs, opened, strict=True):
        product = gated @ _rows(held.down, expert, held.hidden).T
        if held.down_bias is not None:
            product = product + held.down_bias.view(held.count, -1)[expert]
        out[slots, tokens] = product * weights[tokens, slots, None]
    return out


def _rows(weight: Weight, expert: int, rows: int) -> Tensor:
    """Of one expert; planes begin at a tile."""
    padded = rows if isinstance(weight, Tensor) else -(-rows // ROWS) * ROWS
    return rows_of(weight, expert * padded, rows)
