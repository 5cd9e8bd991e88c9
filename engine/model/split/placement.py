"""Which parts of a decoder the processor computes, where a GPU's memory does not hold all of it.

Two kinds of split. Whole layers, from the first on, with the embedding before them and their KV in host
memory: a pass crosses over once, behind the last of them. And the experts of layers, with their routers,
whose attention and shared expert stay on the GPU: a pass crosses there and back in each such layer, and
carries one vector a token. Of experts a token reads few, so they are what host memory can hold best: whole
layers go there when no experts are left to go.

What crosses over goes through pinned memory (`kernels.cuda.crossing`). For chunks of many tokens it is the
weights that cross over, to a GPU that computes everything (`streamed_pass` beside this). The processor's
part waits for numbers of the GPU's: a pass of few tokens is a CUDA graph for each part between two
crossings, larger ones are launched kernel by kernel, and no tick is queued ahead. All else holds: prefixes
are shared, prompts read in chunks, drafts verified; contexts are put aside, restored and kept in files with
what both sides have of a block. To pause such a model is to unload it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.model.spec import LayerSpec


@dataclass(frozen=True, slots=True)
class Placement:
    """What the processor computes."""

    layers: int = 0
    """So many layers from the first on, and the embedding."""
    experts: int = 0
    """So many layers of those behind them that have experts, from the first on: their experts alone."""

    @property
    def splits(self) -> bool:
        """Whether there is anything."""
        return bool(self.layers or self.experts)

    def expert_layers(self, layers: Sequence[LayerSpec]) -> frozenset[int]:
        """Numbers of the layers whose experts alone are the processor's."""
        routed = [index for index, layer in enumerate(layers) if layer.experts is not None]
        return frozenset([index for index in routed if index >= self.layers][: self.experts])
