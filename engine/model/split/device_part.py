"""The GPU's layers of a divided decoder, and how they have what the processor's experts give."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from engine.model.decoder import Decoder
from engine.model.layer_weights import HostExperts, ModelWeights
from engine.model.spec import ModelConfig
from kernels.contract import Operations
from kernels.cuda.crossing import Crossing, Cut, FixedCrossing

if TYPE_CHECKING:
    from kernels.streaming.handles import HandleStream

Ask = Callable[[Any, HostExperts, Any | None], Any]
"""(x, experts, what their router reads where that is not x) → what `Operations.experts` gives."""


class DevicePart(Decoder):
    """The device's layers; experts of some are computed beside it."""

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        ops: Operations,
        first: int,
        host_ops: Operations,
        crossing: Crossing,
    ) -> None:
        super().__init__(config, weights, ops, first)
        self._host_ops = host_ops
        self._crossing = crossing
        self._ask: Ask = self._at_once

    @contextmanager
    def asking(self, ask: Ask) -> Iterator[None]:
        """Within, the processor's experts are asked so."""
        before, self._ask = self._ask, ask
        try:
            yield
        finally:
            self._ask = before

    def experts(self, x: Any, handle: Any, routed: Any | None = None) -> Any:
        """Queued before, a shared expert is computed meanwhile."""
        if isinstance(handle, HostExperts):
            return self._ask(x, handle, routed)
        return super().experts(x, handle, routed)

    def nothing(self, x: Any, *_: Any) -> Any:
        """Zeros, which nobody waits for."""
        return self.ops.as_output(torch.zeros_like(self.ops.values(x), dtype=torch.float32))

    def _at_once(self, x: Any, experts: HostExperts, routed: Any | None) -> Any:
        ops = self.ops
        given = [ops.values(part) for part in (x, routed) if part is not None]
        here, *other = [part.to(torch.float32) for part in self._crossing.to_host(*given)]
        made = self._host_ops.experts(here, experts.handle, *other)
        return ops.as_output(self._crossing.to_device(made.to(torch.float32)))


class HostExchange:
    """How a captured pass has what the processor's experts give: between two of its parts.

    Where experts can cross over the GPU has their router too: it chooses, and the processor multiplies.
    """

    def __init__(
        self,
        ops: Operations,
        host_ops: Operations,
        stream: "HandleStream | None",
        crossing: FixedCrossing,
        cut: Cut,
        tokens: Callable[[], int],
    ) -> None:
        """tokens: how many of the pass are no padding, asked when the processor computes."""
        self._ops, self._host_ops, self._stream, self._crossing = ops, host_ops, stream, crossing
        self._cut, self._tokens = cut, tokens

    def ask(self, x: Any, experts: HostExperts, routed: Any | None) -> Any:
        """As `Ask`."""
        crossing, values = self._crossing, self._ops.values(x).to(torch.float32)
        made = crossing.buffer("made", values.shape, torch.float32)
        here = crossing.down("x", values)
        if self._stream is None or experts.streamed is None:
            others = [] if routed is None else [crossing.down("routed", self._ops.values(routed).float())]
            work = partial(self._compute, experts.handle, here, others, made)
        else:
            ids, weights = self._stream.route(x if routed is None else routed, experts.streamed)
            routes = crossing.down("ids", ids), crossing.down("weights", weights)
            work = partial(self._apply, self._stream, experts.handle, here, routes, made)
        self._cut(work)
        return self._ops.as_output(crossing.up(made))

    def _compute(self, handle: Any, x: Tensor, others: list[Tensor], made: Tensor) -> None:
        self._crossing.arrived()
        count = self._tokens()
        made[:count] = self._host_ops.experts(x[:count], handle, *(part[:count] for part in others))

    def _apply(
        self, stream: "HandleStream", handle: Any, x: Tensor, routes: tuple[Tensor, Tensor], made: Tensor
    ) -> None:
        self._crossing.arrived()
        count = self._tokens()
        ids, weights = routes
        stream.apply(x[:count], handle, ids[:count], weights[:count], made[:count])
