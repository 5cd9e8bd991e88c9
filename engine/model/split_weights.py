"""From a file's tensors to the weight handles of a decoder of which the processor computes a part."""

from dataclasses import dataclass

from engine.gguf.file import GGUFFile
from engine.model.layer_weights import HostExperts, LayerWeights, ModelWeights, handles
from engine.model.placement import Placement
from engine.model.spec import ModelConfig
from engine.model.tensors import check_tensors
from engine.model.weights import Progress, WeightLoader
from kernels.contract import Operations


@dataclass(frozen=True, slots=True)
class SplitWeights:
    """Two parts of one decoder."""

    device: ModelWeights
    """The last layers, some with experts of the host, and the output matrix."""
    host: ModelWeights
    """The first layers and the embedding, or nothing but bytes: of experts."""


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
    device, host = WeightLoader(file, config, ops), WeightLoader(file, config, host_ops)
    with ops.loading(), host_ops.loading():
        return _load(device, host, placement, progress)


def _load(device: WeightLoader, host: WeightLoader, placement: Placement, progress: Progress) -> SplitWeights:
    config = device.config
    outside = placement.expert_layers(config.layers)
    # First: while the largest matrix is repacked its file's bytes are on the device too.
    head, layers = device.head(), list[LayerWeights]()
    for index, layer in enumerate(config.layers):
        progress(index / (config.num_layers + 1), f"layer {index + 1} of {config.num_layers}")
        prefix = f"blk.{index}"
        if index < placement.layers:
            layers.append(host.layer(prefix, layer))
        else:
            experts = HostExperts(host.experts(prefix, layer)) if index in outside else None
            layers.append(device.layer(prefix, layer, experts))
    progress(config.num_layers / (config.num_layers + 1), "output")
    first = placement.layers
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
    on_host.nbytes = sum(map(host.ops.weight_bytes, [*handles(on_host), *_host_experts(on_device)]))
    return SplitWeights(on_device, on_host)


def _host_experts(weights: ModelWeights) -> list[object]:
    return [layer.experts.handle for layer in weights.layers if isinstance(layer.experts, HostExperts)]
