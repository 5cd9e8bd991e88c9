"""The processor's linears and experts as handles of a GPU's, whose matrices cross over for every pass."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from kernels.cpu.expert_pairs import sorted_pairs
from kernels.cpu.linear import CPULinear
from kernels.cpu.packed.experts import PackedExperts, few_rows
from kernels.cuda.activations import Activations
from kernels.experts.experts import TritonExperts
from kernels.experts.router import FEW_PAIRS, FEW_TOKENS, TICKET_STRIDE
from kernels.experts.routing import route_tokens
from kernels.linear.linear import Segment, TritonLinear, apply_linear
from kernels.planes.layout import PlanesMatrix, gate_up_order
from kernels.streaming.sources import Source, expert_sources, linear_sources
from kernels.streaming.weight_stream import Part, Streamed, WeightStream


class HandleStream(WeightStream):
    """Takes the processor's handles; first all are offered, then all are made in the order of their use."""

    def __init__(self, device: torch.device, batch_invariant: bool) -> None:
        """batch_invariant: as that of the GPU's operations."""
        super().__init__(device)
        self._batch_invariant = batch_invariant

    def offer(self, name: str, handle: Any) -> bool:
        """Whether it can cross over; then there is room where handles of that name take turns."""
        sources = _sources(handle)
        for place, source in _places(name, sources or []):
            self.reserve(place, source)
        return sources is not None

    def make(self, name: str, handle: Any) -> Streamed:
        """The next one that a pass uses."""
        parts = tuple(self.add(place, source) for place, source in _places(name, _sources(handle) or []))
        if isinstance(handle, CPULinear):
            return Streamed(_linear(handle, parts, self.device), parts, parts)
        gate_up, down = parts
        change = self.between(gate_up, down)
        experts = _experts(handle, gate_up.planes, down.planes, change, self.device)
        return Streamed(experts, (gate_up,), (down,))

    def route(self, x: Activations, streamed: Streamed) -> tuple[Tensor, Tensor]:
        """What the router of experts chooses for few tokens: ids int32 and weights float32 [T, used]."""
        experts: TritonExperts = streamed.handle
        logits = apply_linear(x, experts.router, self._batch_invariant)
        routes = route_tokens(logits, experts.selection_bias, experts.routing, experts.factors)
        used = experts.routing.used
        return routes.ids.view(-1, used), routes.weights.view(-1, used)

    @staticmethod
    def apply(x: Tensor, experts: PackedExperts, ids: Tensor, weights: Tensor, out: Tensor) -> None:
        """The processor's products of few tokens with what was chosen: out float32, of x's shape."""
        few_rows(x, experts, sorted_pairs(ids, weights, experts.own.count), out.zero_())


def _sources(handle: Any) -> list[Source] | None:
    if isinstance(handle, CPULinear):
        return linear_sources(handle)
    return expert_sources(handle) if isinstance(handle, PackedExperts) else None


def _linear(linear: CPULinear, parts: Sequence[Part], device: torch.device) -> TritonLinear:
    biases = _biases(linear, [part.planes.shape[0] for part in parts], device)
    segments = [Segment(part.planes, bias) for part, bias in zip(parts, biases, strict=True)]
    return TritonLinear(segments, linear.activation, linear.gated, linear.activation_scale)


def _places(name: str, sources: list[Source]) -> list[tuple[Hashable, Source]]:
    return [((name, number), source) for number, source in enumerate(sources)]


def _biases(linear: CPULinear, rows: list[int], device: torch.device) -> list[Tensor | None]:
    if linear.bias is None:
        return [None] * len(rows)
    bias = linear.bias.to(device)
    if linear.gated:
        bias = bias[gate_up_order(bias.shape[0] // 2, device)]
    return [part.contiguous() for part in bias.split(rows)]


def _experts(
    packed: PackedExperts, gate_up: PlanesMatrix, down: PlanesMatrix, between: Callable[[], None],
    device: torch.device,
) -> TritonExperts:  # fmt: skip
    own = packed.own

    def vector(values: Tensor | None) -> Tensor | None:
        return None if values is None else values.to(device)

    paired = own.gate_up_bias
    if paired is not None:
        paired = paired.unflatten(1, (2, -1)).transpose(1, 2).flatten(1).contiguous()
    return TritonExperts(
        own.count,
        TritonLinear([Segment(own.router.to(device), vector(own.router_bias))]),
        vector(own.selection_bias),
        gate_up,
        vector(paired),
        down,
        vector(own.down_bias),
        down.shape[1],
        own.router.shape[1],
        own.routing,
        own.activation,
        torch.zeros(FEW_TOKENS * TICKET_STRIDE, dtype=torch.int32, device=device),
        torch.zeros(1 + FEW_PAIRS, dtype=torch.int32, device=device),
        own.activation_scale,
        vector(own.factors),
        between,
    )
