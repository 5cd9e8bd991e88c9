"""What a file is made of as far as memory goes: small plain data, to which any device's rules apply."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import prod
from typing import Any, NamedTuple

from engine.gguf.file import GGUFFile, TensorInfo
from engine.model.spec import ExpertsSpec, LayerSpec, ModelConfig, QKNorm
from engine.model.tensors import (
    LayerKind,
    Layers,
    Rows,
    expert_rows,
    gate_rows,
    is_ignored,
    qkv_rows,
    shared_rows,
)
from kernels.quant.formats import GGMLType

_OF_EXPERTS = ("_exps.", ".ffn_gate_inp.", ".exp_probs_b.")
"""What names of experts' and their routers' tensors have in them."""


class Matrix(NamedTuple):
    """Rows of one type."""

    type: GGMLType
    rows: int


class Linear(NamedTuple):
    """Matrices that are stacked and multiplied as one."""

    parts: tuple[Matrix, ...]
    columns: int
    biased: bool = False
    paired: bool = False
    """Whether they are a gate and what it opens, whose rows lie in pairs."""


class Experts(NamedTuple):
    """The experts of one layer, one behind another; rows are those of one expert."""

    experts: int
    gate_up: tuple[Matrix, ...]
    down: Matrix
    hidden: int
    size: int
    used: int
    """Experts that a token uses."""


class KVLayers(NamedTuple):
    """Layers whose keys and values are of one shape and are needed for equally long."""

    layers: int
    window: int
    """Tokens that are needed, the newest included; 0: all."""
    kv_heads: int
    head_dim: int


class Part(NamedTuple):
    """Some weights, counted by kind."""

    linears: tuple[tuple[Linear, int], ...] = ()
    experts: tuple[tuple[Experts, int], ...] = ()
    vector_values: int = 0


class LayerParts(NamedTuple):
    """One layer."""

    rest: Part
    """All but its experts."""
    experts: Part
    """With their router."""
    kv: KVLayers


@dataclass(frozen=True, slots=True)
class Footprint:
    """A decoder's weights and KV, counted by kind."""

    linears: tuple[tuple[Linear, int], ...]
    experts: tuple[tuple[Experts, int], ...]
    embedding: Linear
    tied: bool
    """Whether the output matrix is the embedding, and among `linears` too."""
    vector_values: int
    """Values of norms and other vectors."""
    kv: tuple[KVLayers, ...]
    context_length: int
    norms_values: bool = False
    """Whether attention norms values too."""
    kinds: tuple[LayerParts, ...] = ()
    """The kinds of layers, for who divides them; they are counted above too."""
    order: tuple[int, ...] = ()
    """Of each layer, its kind."""

    def as_data(self) -> list[Any]:
        """Itself as lists and numbers, for `from_data`."""
        return [getattr(self, field.name) for field in fields(self)]

    @classmethod
    def from_data(cls, data: list[Any]) -> "Footprint":
        """Read what `as_data` gave, after JSON; raises what bad data raises."""
        linears, experts, embedding, tied, vector_values, kv, context_length, norms_values, *layers = data
        kinds, order = layers
        return cls(
            *_part((linears, experts, 0))[:2],
            _linear(embedding),
            bool(tied),
            int(vector_values),
            tuple(KVLayers(*map(int, group)) for group in kv),
            int(context_length),
            bool(norms_values),
            tuple(LayerParts(_part(rest), _part(own), KVLayers(*map(int, kv))) for rest, own, kv in kinds),
            tuple(map(int, order)),
        )


def read_footprint(file: GGUFFile, config: ModelConfig, layers: Layers) -> Footprint:
    """Count what a decoder holds of a file; layers: what `check_tensors` said of it."""
    ends = _Counted(file.tensors)
    hidden = config.hidden_size
    tied = "output.weight" not in file.tensors
    ends.linear([Rows("token_embd" if tied else "output", config.vocab_size)], hidden)
    embedding = Linear((ends.matrix(Rows("token_embd", config.vocab_size)),), hidden)
    ends.others(layers.others, config)
    kinds = tuple(_layer_parts(kind, file.tensors, config) for kind in layers.kinds)
    counts = [kind.count for kind in layers.kinds]
    parts = [(part, count) for kind, count in zip(kinds, counts, strict=True) for part in kind[:2]]
    whole = add_parts([(ends.part, 1), *parts])
    return Footprint(
        linears=whole.linears,
        experts=whole.experts,
        embedding=embedding,
        tied=tied,
        vector_values=whole.vector_values,
        kv=tuple(KVLayers(len(group.layers), *group.shape) for group in config.kv_groups),
        context_length=config.context_length,
        norms_values=any(layer.attention.value_norm for layer in config.layers),
        kinds=kinds,
        order=layers.order,
    )


def add_parts(parts: Iterable[tuple[Part, int]]) -> Part:
    """Their sum, each counted so often."""
    linears: Counter[Linear] = Counter()
    experts: Counter[Experts] = Counter()
    vector_values = 0
    for part, times in parts:
        for linear, count in part.linears:
            linears[linear] += times * count
        for one, count in part.experts:
            experts[one] += times * count
        vector_values += times * part.vector_values
    return Part(_counts(linears), _counts(experts), vector_values)


def _counts(counted: Counter[Any]) -> tuple[tuple[Any, int], ...]:
    return tuple((one, count) for one, count in counted.items() if count)


def _layer_parts(kind: LayerKind, tensors: Mapping[str, TensorInfo], config: ModelConfig) -> LayerParts:
    """Of one layer of a kind."""
    rest, own = _Counted(tensors), _Counted(tensors)
    prefix, layer, hidden = f"blk.{kind.index}", kind.layer, config.hidden_size
    _count_layer(rest, prefix, layer, hidden)
    if layer.experts is not None:
        _count_experts(own, prefix, layer.experts, hidden)
    of_experts = {name for name in kind.names if any(map(name.__contains__, _OF_EXPERTS))}
    rest.others([name for name in kind.names if name not in of_experts], config)
    own.others([name for name in kind.names if name in of_experts], config)
    return LayerParts(rest.part, own.part, KVLayers(1, *layer.attention.kv_shape))


def _matrix(data: list[Any]) -> Matrix:
    kind, rows = data
    return Matrix(GGMLType(kind), int(rows))


def _part(data: Sequence[Any]) -> Part:
    linears, experts, vector_values = data
    return Part(
        tuple((_linear(one), int(count)) for one, count in linears),
        tuple((_experts(one), int(count)) for one, count in experts),
        int(vector_values),
    )


def _linear(data: list[Any]) -> Linear:
    parts, columns, biased, paired = data
    return Linear(tuple(map(_matrix, parts)), int(columns), bool(biased), bool(paired))


def _experts(data: list[Any]) -> Experts:
    experts, gate_up, down, *sizes = data
    hidden, size, used = map(int, sizes)
    return Experts(int(experts), tuple(map(_matrix, gate_up)), _matrix(down), hidden, size, used)


def _count_layer(counted: "_Counted", prefix: str, layer: LayerSpec, hidden: int) -> None:
    attention, tensors = layer.attention, counted.tensors
    counted.linear(qkv_rows(prefix, layer, tensors), hidden)
    counted.linear([Rows(f"{prefix}.attn_output", hidden)], attention.q_size)
    if attention.gated:
        counted.linear([Rows(f"{prefix}.attn_gate", attention.q_size)], hidden)
    if attention.qk_norm in (QKNorm.HEADS, QKNorm.ROTATED_HEADS):
        # Repeated for every head.
        counted.vectors(attention.q_size + attention.kv_size - 2 * attention.head_dim)
    gate, down, size = gate_rows(prefix, layer, tensors), "ffn_down", layer.ffn_size
    if layer.experts is not None:
        gate, down, size = shared_rows(prefix, layer.experts), "ffn_down_shexp", layer.experts.shared_size
    if size:
        counted.linear(gate, hidden, paired=len(gate) > 1)
        counted.linear([Rows(f"{prefix}.{down}", hidden)], size)


def _count_experts(counted: "_Counted", prefix: str, experts: ExpertsSpec, hidden: int) -> None:
    names = dict.fromkeys(rows.name for rows in expert_rows(prefix, experts, counted.tensors))
    counted.linear([Rows(f"{prefix}.ffn_gate_inp", experts.count)], hidden)
    gate_up = tuple(counted.stack(name) for name in names)
    down = counted.stack(f"{prefix}.ffn_down_exps")
    one = Experts(experts.count, gate_up, down, hidden, experts.size, experts.used)
    counted.experts[one] += 1


class _Counted:
    """What was counted of a file's tensors so far."""

    def __init__(self, tensors: Mapping[str, TensorInfo]) -> None:
        self.tensors = tensors
        self.linears: Counter[Linear] = Counter()
        self.experts: Counter[Experts] = Counter()
        self.vector_values = 0
        self._seen: set[str] = set()

    @property
    def part(self) -> Part:
        """All of it."""
        return Part(tuple(self.linears.items()), tuple(self.experts.items()), self.vector_values)

    def linear(self, parts: Sequence[Rows], columns: int, *, paired: bool = False) -> None:
        """Count matrices that are stacked, and their biases."""
        biases = [f"{rows.name}.bias" for rows in parts]
        biased = any(name in self.tensors for name in biases)
        self._seen.update(biases)
        self.linears[Linear(tuple(map(self.matrix, parts)), columns, biased, paired)] += 1

    def vectors(self, values: int) -> None:
        """Count values of vectors."""
        self.vector_values += values

    def matrix(self, rows: Rows) -> Matrix:
        """Some rows of a matrix of the file."""
        name = f"{rows.name}.weight"
        self._seen.add(name)
        return Matrix(self.tensors[name].type, rows.count)

    def stack(self, name: str) -> Matrix:
        """The matrices of all experts: type, and rows of one of them."""
        info = self.tensors[f"{name}.weight"]
        self._seen.add(f"{name}.weight")
        return Matrix(info.type, info.shape[1])

    def others(self, names: Sequence[str], config: ModelConfig) -> None:
        """Count what is left as it is: vectors by their values, matrices as linears of their own."""
        left = [name for name in names if name not in self._seen]
        for info in (self.tensors[name] for name in left if not is_ignored(name, config)):
            if len(info.shape) == 2 and info.shape[0] > 1:
                self.linears[Linear((Matrix(info.type, info.shape[0]),), info.shape[1])] += 1
            else:
                self.vectors(prod(info.shape))
