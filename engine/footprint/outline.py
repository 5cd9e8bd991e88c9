"""A model's published numbers, for what it will take where there is no file of it yet."""

from collections import Counter
from dataclasses import dataclass, fields, replace
from typing import Any

from engine.footprint.shape import (
    Experts,
    Footprint,
    KVLayers,
    LayerParts,
    Linear,
    Matrix,
    Part,
    add_parts,
)
from kernels.quant.formats import FORMATS, GGMLType

_MIXTURES = {
    "F16": (GGMLType.F16, GGMLType.F16, GGMLType.F16),
    "BF16": (GGMLType.BF16, GGMLType.BF16, GGMLType.BF16),
    "Q8_0": (GGMLType.Q8_0, GGMLType.Q8_0, GGMLType.Q8_0),
    "Q6_K": (GGMLType.Q6_K, GGMLType.Q6_K, GGMLType.Q6_K),
    "Q5_K_M": (GGMLType.Q5_K, GGMLType.Q6_K, GGMLType.Q6_K),
    "Q4_K_M": (GGMLType.Q4_K, GGMLType.Q6_K, GGMLType.Q6_K),
    "Q3_K_M": (GGMLType.Q3_K, GGMLType.Q5_K, GGMLType.Q6_K),
    "Q2_K": (GGMLType.Q2_K, GGMLType.Q4_K, GGMLType.Q6_K),
    "Q4_0": (GGMLType.Q4_0, GGMLType.Q4_0, GGMLType.Q6_K),
    "Q4_1": (GGMLType.Q4_1, GGMLType.Q4_1, GGMLType.Q6_K),
    "MXFP4": (GGMLType.MXFP4, GGMLType.Q8_0, GGMLType.Q8_0),
}
"""By its name: the type of most matrices, of those that deserve more bits, and of the output matrix."""
_SUPER_BLOCK = 256
_OF_NARROW_ROWS = {
    GGMLType.Q2_K: GGMLType.Q4_0,
    GGMLType.Q3_K: GGMLType.Q4_0,
    GGMLType.Q4_K: GGMLType.Q5_0,
    GGMLType.Q5_K: GGMLType.Q5_1,
    GGMLType.Q6_K: GGMLType.Q8_0,
}
"""What quantisers take for rows that are no whole super-blocks."""
_OF_EXPERTS_ALONE = "MXFP4"
"""Its files hold whatever is no expert in the better type."""


@dataclass(frozen=True, slots=True)
class Outline:
    """The shape of a decoder as its makers publish it, and the mixture of types of its file."""

    type: str
    """One of the usual mixtures, such as "Q4_K_M"."""
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    ffn: int = 0
    """Width of the feed-forward part of layers without experts."""
    tied: bool = False
    """Whether the output matrix is the embedding."""
    window: int = 0
    full_every: int = 1
    """Where there is a window, every so manyth layer sees all."""
    experts: int = 0
    experts_used: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0
    dense_layers: int = 0
    """Leading layers without experts."""

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> "Outline":
        """Check a table of these fields; raises ValueError that names the one that is wrong."""
        known: dict[str, Any] = {field.name: field.type for field in fields(cls)}
        for key, value in data.items():
            if key not in known:
                raise ValueError(f"unknown {key}; there are {', '.join(known)}")
            kind = known[key]
            if type(value) is not kind or (kind is int and value < 0):
                raise ValueError(f"{key} must be {_KINDS[kind]}")
        missing = [name for name in _REQUIRED if not data.get(name)]
        if missing:
            raise ValueError(f"{missing[0]} is missing")
        made = cls(**data)
        if made.type not in _MIXTURES:
            raise ValueError(f"type must be one of {', '.join(_MIXTURES)}")
        if not made.ffn and not made.expert_ffn:
            raise ValueError("ffn or expert_ffn is missing")
        if made.experts and not 0 < made.experts_used <= made.experts:
            raise ValueError("experts_used must be 1 to experts")
        return made

    def quantised(self, name: str) -> "Outline | None":
        """The same model in another mixture; None for one that is not known."""
        return replace(self, type=name) if name in _MIXTURES else None

    @property
    def footprint(self) -> Footprint:
        """What a decoder of such a file holds."""
        main, better, output = _MIXTURES[self.type]
        layers = []
        for index in range(self.layers):
            # The first and last eighth of the layers, and every third between, deserve more bits.
            eighth = self.layers // 8
            more = index < eighth or index >= 7 * self.layers // 8 or (index - eighth) % 3 == 2
            layers.append(self._layer(index, better if more else main))
        ends = Part(((_linear([(output, self.vocab)], self.width), 1),), (), self.width)
        whole = add_parts([(ends, 1), *((part, 1) for layer in layers for part in layer[:2])])
        kinds = tuple(dict.fromkeys(layers))
        table = output if self.tied else self._plain_type
        heads = self.kv_heads, self.head_dim
        full = self.layers // self.full_every if self.window else self.layers
        groups = (KVLayers(full, 0, *heads), KVLayers(self.layers - full, self.window, *heads))
        return Footprint(
            linears=whole.linears,
            experts=whole.experts,
            embedding=_linear([(table, self.vocab)], self.width),
            tied=self.tied,
            vector_values=whole.vector_values,
            kv=tuple(group for group in groups if group.layers),
            context_length=self.context,
            kinds=kinds,
            order=tuple(map(kinds.index, layers)),
        )

    @property
    def file_bytes(self) -> int:
        """About how large its file is."""
        made = self.footprint
        total = 4 * made.vector_values + sum(count * _bytes(one) for one, count in made.linears)
        if not self.tied:
            total += _bytes(made.embedding)
        for one, count in made.experts:
            matrices = [Linear((part,), one.hidden) for part in one.gate_up] + [Linear((one.down,), one.size)]
            total += count * one.experts * sum(map(_bytes, matrices))
        return total

    @property
    def parameters(self) -> int:
        """Its weights; small vectors are left out."""
        made = self.footprint
        total = sum(count * sum(part.rows for part in one.parts) * one.columns for one, count in made.linears)
        total += 0 if self.tied else self.vocab * self.width
        for one, count in made.experts:
            up = sum(part.rows for part in one.gate_up) * one.hidden
            total += count * one.experts * (up + one.down.rows * one.size)
        return total

    @property
    def _plain_type(self) -> GGMLType:
        main, better, _ = _MIXTURES[self.type]
        return better if self.type == _OF_EXPERTS_ALONE else main

    def _layer(self, index: int, better: GGMLType) -> LayerParts:
        rest: Counter[Linear] = Counter()
        own = Part()
        plain, main, width = self._plain_type, _MIXTURES[self.type][0], self.width
        other = plain if self.type == _OF_EXPERTS_ALONE else better
        q_size, kv_size = self.heads * self.head_dim, self.kv_heads * self.head_dim
        rest[_linear([(plain, q_size), (plain, kv_size), (other, kv_size)], width)] += 1
        rest[_linear([(plain, width)], q_size)] += 1
        size = self.ffn
        if self.experts and index >= self.dense_layers:
            down = main if self.type == _OF_EXPERTS_ALONE else better
            gate_up = _linear([(main, self.expert_ffn)] * 2, width).parts
            (behind,) = _linear([(down, width)], self.expert_ffn).parts
            one = Experts(self.experts, gate_up, behind, width, self.expert_ffn, self.experts_used)
            own = Part(((_linear([(GGMLType.F32, self.experts)], width), 1),), ((one, 1),))
            size = self.shared_ffn
        if size:
            rest[_linear([(plain, size)] * 2, width)._replace(paired=True)] += 1
            rest[_linear([(other, width)], size)] += 1
        window = self.window if self.window and (index + 1) % self.full_every else 0
        kv = KVLayers(1, window, self.kv_heads, self.head_dim)
        return LayerParts(Part(tuple(rest.items()), (), 2 * width), own, kv)


def _linear(parts: list[tuple[GGMLType, int]], columns: int) -> Linear:
    narrow = _OF_NARROW_ROWS if columns % _SUPER_BLOCK else {}
    return Linear(tuple(Matrix(narrow.get(kind, kind), rows) for kind, rows in parts), columns)


_KINDS = {str: "text in quotes", bool: "true or false", int: "a whole number"}
_REQUIRED = ("type", "layers", "width", "heads", "kv_heads", "head_dim", "vocab", "context")


def _bytes(linear: Linear) -> int:
    columns = linear.columns
    forms = ((FORMATS[part.type], part.rows) for part in linear.parts)
    return sum(rows * columns // form.elements * form.nbytes for form, rows in forms)
