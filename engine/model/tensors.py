"""Which tensors of a file one decoder is made of, and that they are there and of their shapes.

Names follow the GGUF naming scheme (`blk.N.attn_q.weight`). A tensor that a decoder would not use is
refused by name, because ignoring it would compute something else than the file's author did. Without
torch, so that listing model files stays cheap.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from engine.api.errors import ModelFileError, UnsupportedModelError
from engine.gguf.file import GGUFFile
from engine.gguf.header import TensorInfo
from engine.model.spec import ExpertsSpec, LayerSpec, ModelConfig, QKNorm
from kernels.quant.formats import DEQUANTIZABLE

_IGNORED = ("rope.freqs", "rot_embd")
"""Tables that old converters stored and that are computed here."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of a matrix of the file, or all."""

    name: str
    """Without `.weight`."""
    count: int
    first: int = 0
    of: int = 0
    """Rows of the whole matrix; 0 where these are all."""

    @property
    def total(self) -> int:
        """Rows of the whole matrix."""
        return self.of or self.count


def qkv_rows(prefix: str, layer: LayerSpec, tensors: Mapping[str, TensorInfo]) -> list[Rows]:
    """Where query, key and value rows are: in three matrices, or in one."""
    attention = layer.attention
    sizes = (attention.q_size, attention.kv_size, attention.kv_size)
    fused = f"{prefix}.attn_qkv"
    if f"{fused}.weight" in tensors or (layer.fused and f"{prefix}.attn_q.weight" not in tensors):
        return _stacked(fused, sizes)
    shared = attention.keys_as_values and f"{prefix}.attn_v.weight" not in tensors
    parts = "qkk" if shared else "qkv"
    return [Rows(f"{prefix}.attn_{part}", size) for part, size in zip(parts, sizes, strict=True)]


def gate_rows(prefix: str, layer: LayerSpec, tensors: Mapping[str, TensorInfo]) -> list[Rows]:
    """Where the rows of gate and up are: in two matrices, or all in that of up, the gate's first.

    Without a gate, those of up alone.
    """
    if not layer.gated:
        return [Rows(f"{prefix}.ffn_up", layer.ffn_size)]
    sizes = (layer.ffn_size, layer.ffn_size)
    up = tensors.get(f"{prefix}.ffn_up.weight")
    if f"{prefix}.ffn_gate.weight" not in tensors and (up is None or up.shape[0] == sum(sizes)):
        return _stacked(f"{prefix}.ffn_up", sizes)
    return [Rows(f"{prefix}.ffn_{part}", size) for part, size in zip(("gate", "up"), sizes, strict=True)]


def expert_rows(prefix: str, experts: ExpertsSpec, tensors: Mapping[str, TensorInfo]) -> list[Rows]:
    """Where the rows of one expert's gate and up are; every expert has as many in the same tensors."""
    fused = f"{prefix}.ffn_gate_up_exps"
    if f"{fused}.weight" in tensors or (experts.fused and f"{prefix}.ffn_gate_exps.weight" not in tensors):
        return _stacked(fused, (experts.size, experts.size))
    return [Rows(f"{prefix}.ffn_{part}_exps", experts.size) for part in ("gate", "up")]


def shared_rows(prefix: str, experts: ExpertsSpec) -> list[Rows]:
    """Where gate and up of the shared expert are."""
    return [Rows(f"{prefix}.ffn_{part}_shexp", experts.shared_size) for part in ("gate", "up")]


def _stacked(name: str, sizes: Iterable[int]) -> list[Rows]:
    made, first, total = [], 0, sum(sizes)
    for size in sizes:
        made.append(Rows(name, size, first, total))
        first += size
    return made


def check_tensors(file: GGUFFile, config: ModelConfig) -> "Layers":
    """Every tensor that the decoder needs is there, of its shape and a known type, and no other is.

    Returns its layers by kind, of which one each was looked at.
    Raises `ModelFileError` or `UnsupportedModelError` naming the tensor.
    """
    layers = _layers(config, file.tensors)
    looked_at = [name for kind in layers.kinds for name in kind.names] + layers.others
    expected = _expected(config, layers.kinds, file.tensors)
    for name in looked_at:
        info = file.tensors[name]
        if name not in expected and not is_ignored(name, config):
            raise UnsupportedModelError(
                f"{file.path}: tensor {name}: not known for architecture '{config.architecture}'; this "
                "variant of it is not supported."
            )
        if info.type not in DEQUANTIZABLE:
            raise UnsupportedModelError(
                f"{file.path}: tensor {name}: type {info.type.name} is not supported."
            )
    for name, (shape, required) in expected.items():
        found = file.tensors.get(name)
        if found is not None and found.shape not in (shape, (1, *shape)):
            raise ModelFileError(f"{file.path}: tensor {name}: shape {found.shape} is not {shape}.")
        if found is None and required:
            raise ModelFileError(
                f"{file.path}: tensor {name} is missing; the file is incomplete or not a "
                f"'{config.architecture}' model."
            )
    return layers


@dataclass(frozen=True, slots=True)
class LayerKind:
    """Layers of one spec whose tensors have the same names, shapes and types."""

    index: int
    """The first of them."""
    layer: LayerSpec
    count: int
    names: list[str]
    """Tensors of the first."""


@dataclass(frozen=True, slots=True)
class Layers:
    """The layers of a file by kind: what holds for the first of a kind holds for all of it."""

    kinds: list[LayerKind]
    others: list[str]
    """Tensors of no layer."""
    order: tuple[int, ...]
    """Of each layer, where its kind is among them."""


def _layers(config: ModelConfig, tensors: Mapping[str, TensorInfo]) -> Layers:
    """Most files have two or three kinds."""
    numbers = {str(index): index for index in range(config.num_layers)}
    names: list[list[str]] = [[] for _ in numbers]
    described: list[list[object]] = [[] for _ in numbers]
    others = []
    for name, info in tensors.items():
        parts = name.split(".", 2)
        index = numbers.get(parts[1]) if len(parts) == 3 and parts[0] == "blk" else None
        if index is None:
            others.append(name)
        else:
            names[index].append(name)
            described[index] += (parts[2], info.shape, info.type)
    specs = _first_equal(config.layers)
    first: dict[object, int] = {}
    alike = [first.setdefault((spec, *described[index]), index) for index, spec in enumerate(specs)]
    counts = Counter(alike)
    kinds = [LayerKind(index, config.layers[index], counts[index], names[index]) for index in counts]
    places = {kind.index: place for place, kind in enumerate(kinds)}
    return Layers(kinds, others, tuple(places[index] for index in alike))


def _first_equal(layers: Sequence[LayerSpec]) -> list[int]:
    """Of each layer the first that equals it; most are one object, whose fields need no look."""
    first: dict[LayerSpec, int] = {}
    known: dict[int, int] = {}
    for index, layer in enumerate(layers):
        if id(layer) not in known:
            known[id(layer)] = first.setdefault(layer, index)
    return [known[id(layer)] for layer in layers]


def is_ignored(name: str, config: ModelConfig) -> bool:
    """Whether a tensor of the file is no part of the decoder."""
    if config.ignored_layers and name.startswith("blk."):
        number = name.split(".", 2)[1]
        first, last = config.num_layers, config.num_layers + config.ignored_layers
        if number.isdecimal() and first <= int(number) < last:
            return True
    return any(map(name.__contains__, _IGNORED))


Expected = dict[str, tuple[tuple[int, ...], bool]]
"""By name: shape, and whether a file must have it."""


def _expected(config: ModelConfig, kinds: Iterable[LayerKind], tensors: Mapping[str, TensorInfo]) -> Expected:
    """Every tensor that a file may have for this decoder, of layers that of the first of each kind."""
    hidden, vocab = config.hidden_size, config.vocab_size
    expected: Expected = _norm("output_norm", hidden, config.centred) | {
        "token_embd.weight": ((vocab, hidden), True),
        "output.weight": ((vocab, hidden), False),
        "output.bias": ((vocab,), False),
    }
    for rope in config.ropes:
        if rope is not None:
            names = tuple(filter(None, (rope.divisors, rope.other_divisors)))
            needed = rope.needs_divisors or (len(names) == 2 and any(name in tensors for name in names))
            expected |= dict.fromkeys(names, ((rope.dims // 2,), needed))
    for kind in kinds:
        expected |= _expected_of_layer(f"blk.{kind.index}", kind.layer, config, tensors)
    return expected


def _expected_of_layer(
    prefix: str, layer: LayerSpec, config: ModelConfig, tensors: Mapping[str, TensorInfo]
) -> Expected:
    attention, hidden = layer.attention, config.hidden_size
    expected: Expected = {}
    norms = [layer.attn_norm, layer.attn_post_norm, layer.ffn_norm, layer.ffn_post_norm]
    if layer.expert_norms is not None:
        own = layer.expert_norms
        norms += [own.before, own.behind, own.ffn_behind]
        expected[f"{prefix}.{own.router}"] = ((hidden,), True)
    for name in filter(None, norms):
        expected |= _norm(f"{prefix}.{name}", hidden, config.centred)
    if layer.output_scaled:
        expected[f"{prefix}.layer_output_scale.weight"] = ((1,), False)
    if attention.qk_norm:
        together = attention.qk_norm is QKNorm.ALL_HEADS
        for part, heads in (("q", attention.heads), ("k", attention.kv_heads)):
            size = attention.head_dim * (heads if together else 1)
            expected[f"{prefix}.attn_{part}_norm.weight"] = ((size,), True)
    if attention.sinks:
        expected[f"{prefix}.attn_sinks.weight"] = ((attention.heads,), True)
    for rows in qkv_rows(prefix, layer, tensors):
        expected |= _matrix(rows, hidden, attention.biased)
    expected |= _matrix(Rows(f"{prefix}.attn_output", hidden), attention.q_size)
    if attention.gated:
        expected |= _matrix(Rows(f"{prefix}.attn_gate", attention.q_size), hidden)
    if layer.experts is not None:
        expected |= _expected_of_experts(prefix, layer.experts, hidden, tensors)
    if not layer.ffn_size:
        return expected
    for rows in gate_rows(prefix, layer, tensors):
        expected |= _matrix(rows, hidden)
    return expected | _matrix(Rows(f"{prefix}.ffn_down", hidden), layer.ffn_size)


def _expected_of_experts(
    prefix: str, experts: ExpertsSpec, hidden: int, tensors: Mapping[str, TensorInfo]
) -> Expected:
    expected = _matrix(Rows(f"{prefix}.ffn_gate_inp", experts.count), hidden)
    expected[f"{prefix}.exp_probs_b.bias"] = ((experts.count,), False)
    down = Rows(f"{prefix}.ffn_down_exps", hidden)
    parts = [(rows, hidden) for rows in expert_rows(prefix, experts, tensors)] + [(down, experts.size)]
    for rows, columns in parts:
        expected[f"{rows.name}.weight"] = ((experts.count, rows.total, columns), True)
        expected[f"{rows.name}.bias"] = ((experts.count, rows.total), False)
    if experts.weighed:
        expected[f"{down.name}.scale"] = ((experts.count,), False)
    if experts.shared_size:
        for rows in shared_rows(prefix, experts):
            expected |= _matrix(rows, hidden)
        expected |= _matrix(Rows(f"{prefix}.ffn_down_shexp", hidden), experts.shared_size)
    if experts.shared_gated:
        expected[f"{prefix}.ffn_gate_inp_shexp.weight"] = ((hidden,), True)
    return expected


def _norm(name: str, size: int, centred: bool) -> Expected:
    expected: Expected = {f"{name}.weight": ((size,), True)}
    return expected | {f"{name}.bias": ((size,), False)} if centred else expected


def _matrix(rows: Rows, columns: int, biased: bool = False) -> Expected:
    return {
        f"{rows.name}.weight": ((rows.total, columns), True),
        f"{rows.name}.bias": ((rows.total,), biased),
    }
