"""Passes of a divided decoder in which the GPU computes everything: the processor's weights cross over to it.

For many tokens that is quicker than the processor, whose time grows with each of them; the bus's does not.
Of whole layers of the processor's their KV visits the GPU too, one layer's at a time.
"""

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from torch import Tensor

from engine.model.decoder import Decoder, finish
from engine.model.layer_weights import HostExperts, ModelWeights
from engine.model.spec import ModelConfig
from kernels.contract import Branch, Operations, PassLayout
from kernels.cuda.crossing import Crossing
from kernels.streaming.visiting_kv import VisitingKV

if TYPE_CHECKING:
    from kernels.streaming.handles import HandleStream


class StreamedPart(Decoder):
    """Layers whose matrices, or whose experts, cross over while they are computed."""

    def __init__(
        self, config: ModelConfig, weights: ModelWeights, ops: Operations, first: int, stream: "HandleStream"
    ) -> None:
        super().__init__(config, weights, ops, first)
        self._stream = stream

    def linear(self, x: Any, handle: Any) -> Any:
        """Once its matrix is there."""
        with self._at_hand(handle) as own:
            return super().linear(x, own)

    def gated_linear(self, x: Any, handle: Any) -> Any:
        """Once its matrix is there."""
        with self._at_hand(handle) as own:
            return super().gated_linear(x, own)

    def experts(self, x: Any, handle: Any, routed: Any | None = None) -> Any:
        """Once their matrices are there."""
        with self._at_hand(handle.streamed if isinstance(handle, HostExperts) else handle) as own:
            return super().experts(x, own, routed)

    def _at_hand(self, handle: Any) -> AbstractContextManager[Any]:
        return self._stream.using(handle)


class VisitingLayers(StreamedPart):
    """The processor's layers on the GPU, with their KV."""

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        ops: Operations,
        stream: "HandleStream",
        crossing: Crossing,
    ) -> None:
        super().__init__(config, weights, ops, 0, stream)
        self._crossing = crossing
        self._of_host = dict(self._numbers)
        # A group's pages on the GPU are those of one layer.
        self._numbers = dict.fromkeys(self._numbers, 0)
        self._groups = {
            layer: number
            for number, group in enumerate(config.kv_groups)
            for layer in group.among(self.layers)
        }
        self._visiting: list[VisitingKV | None] = []

    def open_kv(self, host: Sequence[Any]) -> None:
        """Reserve pages for the processor's KV, by group; None for one without layers there."""
        self.close_kv()
        shapes = [group.shape for group in self.config.kv_groups]
        for shape, kv in zip(shapes, host, strict=True):
            if kv is None:
                self._visiting.append(None)
                continue
            blocks = kv.layers[0].values.shape[1] // kv.block_size
            pages = self.ops.make_kv(1, blocks, shape.kv_heads, shape.head_dim)
            self._visiting.append(VisitingKV(kv, pages, self._crossing))

    def close_kv(self) -> None:
        """Give the pages back."""
        for one in self._visiting:
            if one is not None:
                one.kv.close()
        self._visiting.clear()

    def compute(
        self, residual: Tensor, layouts: Sequence[PassLayout]
    ) -> Generator[None, None, tuple[Any, Branch]]:
        """As `steps`; raises `MemoryError` where the GPU has no room for the contexts of one layer."""
        visiting = [one for one in self._visiting if one is not None]
        own = [
            one.enter(layout) for one, layout in zip(self._visiting, layouts, strict=True) if one is not None
        ]
        made = iter(self.ops.prepare(own, [one.kv for one in visiting], self.rotations))
        prepared = [None if one is None else next(made) for one in self._visiting]
        steps = self.steps(residual, prepared)
        for layer in self.layers:
            visit = self._visiting[self._groups[layer]]
            assert visit is not None
            visit.bring(self._of_host[layer])
            next(steps)
            visit.take_back(self._of_host[layer])
            yield
        return finish(steps)
