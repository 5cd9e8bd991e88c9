"""From a file's tensors to the weight handles of a decoder of which the processor computes a part."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from engine.gguf.file import GGUFFile
from engine.model.layer_weights import (
    FeedForward,
    HostExperts,
    LayerMatrices,
    LayerWeights,
    ModelWeights,
    handles,
)
from engine.model.spec import ModelConfig
from engine.model.split.placement import Placement
from engine.model.tensors import check_tensors
from engine.model.weights import Progress, WeightLoader
from kernels.contract import Operations
from kernels.select import open_weight_stream

if TYPE_CHECKING:
    from kernels.streaming.handles import HandleStream

NOT_STREAMED = "the processor reads prompts in the layers that it has: the GPU has no form of their weights"


@dataclass(frozen=True, slots=True)
class StreamedWeights:
    """The processor's matrices for passes in which the GPU computes with them."""

    stream: "HandleStream"
    layers: ModelWeights
    """The first layers, whose heads lie as the processor has them."""


@dataclass(frozen=True, slots=True)
class SplitWeights:
    """Two parts of one decoder."""

    device: ModelWeights
    """The last layers, some with experts of the host, and the output matrix."""
    host: ModelWeights
    """The first layers and the embedding, or nothing but bytes: of experts."""
    streamed: StreamedWeights | None
    """None where the GPU cannot have what the processor has."""


def load_split_weights(
    file: GGUFFile,
    config: ModelConfig,
    placement: Placement,
    ops: Operations,
    host_ops: Operations,
    progress: Progress,
) -> SplitWeights:
    """As `engine.model.weights.load_weights`, each part by the operations that compute it."""
    check_tensors(file, config)
    stream = open_weight_stream(ops, host_ops)
    loader = _SplitLoader(file, config, placement, ops, host_ops)
    with ops.loading(), host_ops.loading():
        made = loader.load(progress)
        return made if stream is None else replace(made, streamed=loader.stream(made, stream))


class _SplitLoader:
    def __init__(
        self,
        file: GGUFFile,
        config: ModelConfig,
        placement: Placement,
        ops: Operations,
        host_ops: Operations,
    ) -> None:
        self.config, self.placement = config, placement
        self.device, self.host = WeightLoader(file, config, ops), WeightLoader(file, config, host_ops)
        self.moved = WeightLoader(file, config, ops, host_ops.rope_pairing)
        """Makes what the GPU has of the processor's layers."""

    def load(self, progress: Progress) -> SplitWeights:
        config, device, host, first = self.config, self.device, self.host, self.placement.layers
        outside = self.placement.expert_layers(config.layers)
        # First: while the largest matrix is repacked its file's bytes are on the device too.
        head, layers = device.head(), list[LayerWeights]()
        for index, layer in enumerate(config.layers):
            progress(index / (config.num_layers + 1), f"layer {index + 1} of {config.num_layers}")
            prefix = f"blk.{index}"
            if index < first:
                layers.append(host.layer(prefix, layer))
            else:
                experts = HostExperts(host.experts(prefix, layer)) if index in outside else None
                layers.append(device.layer(prefix, layer, device.matrices(prefix, layer, experts)))
        progress(config.num_layers / (config.num_layers + 1), "output")
        on_device = ModelWeights(
            embedding=None if first else device.embedding(head),
            embedding_norm=None if first else device.embedding_norm(),
            layers=layers[first:],
            output_norm=device.output_norm(),
            head=head,
            rotations=device.rotations(),
        )
        on_host = ModelWeights(
            embedding=host.embedding(None) if first else None,
            embedding_norm=host.embedding_norm() if first else None,
            layers=layers[:first],
            output_norm=None,
            head=None,
            rotations=host.rotations() if first else [],
        )
        on_device.nbytes = sum(map(device.ops.weight_bytes, handles(on_device)))
        others = [one.handle for one in _host_experts(on_device)]
        on_host.nbytes = sum(map(host.ops.weight_bytes, [*handles(on_host), *others]))
        return SplitWeights(on_device, on_host, None)

    def stream(self, made: SplitWeights, stream: "HandleStream") -> StreamedWeights | None:
        """Handles for the GPU of all that the processor has; None, with a note, where there are none."""
        whole = [name_and_handle for layer in made.host.layers for name_and_handle in _matrices(layer)]
        offered = [*whole, *(("experts", experts.handle) for experts in _host_experts(made.device))]
        taken = [stream.offer(name, handle) for name, handle in offered]
        if not all(taken):
            if NOT_STREAMED not in self.device.ops.fallbacks:
                self.device.ops.fallbacks.append(NOT_STREAMED)
            return None
        stream.open()
        layers = [self._moved(stream, index, layer) for index, layer in enumerate(made.host.layers)]
        for layer in made.device.layers:
            if isinstance(own := layer.experts, HostExperts):
                layer.experts = replace(own, streamed=stream.make("experts", own.handle))
        stream.memory.pin()
        rotations = self.moved.rotations() if layers else []
        return StreamedWeights(stream, ModelWeights(None, None, layers, None, None, rotations))

    def _moved(self, stream: "HandleStream", index: int, layer: LayerWeights) -> LayerWeights:
        made = {name: stream.make(name, handle) for name, handle in _matrices(layer)}
        ffn = None if layer.ffn is None else FeedForward(made["gate_up"], made["down"])
        matrices = LayerMatrices(
            made["qkv"], made.get("attn_gate"), made["attn_output"], ffn, made.get("experts")
        )
        return self.moved.layer(f"blk.{index}", self.config.layers[index], matrices)


def _matrices(layer: LayerWeights) -> Iterator[tuple[str, Any]]:
    """What crosses over of one of the processor's layers, in the order of its use."""
    yield "qkv", layer.qkv
    if layer.attn_gate is not None:
        yield "attn_gate", layer.attn_gate
    yield "attn_output", layer.attn_output
    if layer.ffn is not None:
        yield "gate_up", layer.ffn.gate_up
        yield "down", layer.ffn.down
    if layer.experts is not None:
        yield "experts", layer.experts


def _host_experts(weights: ModelWeights) -> list[HostExperts]:
    return [layer.experts for layer in weights.layers if isinstance(layer.experts, HostExperts)]
