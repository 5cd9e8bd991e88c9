"""From a file's tensors to the weight handles of one decoder.

Names follow the GGUF naming scheme (`blk.N.attn_q.weight`). Every tensor that a decoder needs is
checked for presence and shape before any is converted; a tensor that it would not use is refused by
name, because ignoring it would compute something else than the file's author did.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.api.errors import ModelFileError, UnsupportedModelError
from engine.gguf.file import GGUFFile
from engine.model.config import ModelConfig
from engine.model.rope import inverse_frequencies
from kernels.contract import Operations, QuantizedMatrix
from kernels.quant.dequant import SUPPORTED, as_tensor, dequantize

Progress = Callable[[float, str], None]

_IGNORED = ("rope.freqs", "rot_embd", "attn_rot_embd")
"""Tables that old converters stored and that are computed here."""


@dataclass(slots=True)
class LayerWeights:
    """One decoder layer."""

    attn_norm: Any
    qkv: Any
    qk_norm: Any | None
    attn_output: Any
    ffn_norm: Any
    gate_up: Any
    ffn_down: Any


@dataclass(slots=True)
class ModelWeights:
    """One decoder's weights as handles of an `Operations`."""

    embedding: Any
    layers: list[LayerWeights]
    output_norm: Any
    head: Any
    inv_freq: Tensor
    """float64 [head_dim / 2]."""
    rope_magnitude: float
    nbytes: int


def load_weights(file: GGUFFile, config: ModelConfig, ops: Operations, progress: Progress) -> ModelWeights:
    """Convert a file's tensors; raises `ModelFileError` or `UnsupportedModelError` naming a tensor.

    progress: called with the fraction done and what is being read.
    """
    _check_tensors(file, config)
    with ops.loading():
        return _load(file, config, ops, progress)


def _load(file: GGUFFile, config: ModelConfig, ops: Operations, progress: Progress) -> ModelWeights:
    loader = _Loader(file, config, ops)
    layers = []
    for index in range(config.num_layers):
        progress(index / (config.num_layers + 1), f"layer {index + 1} of {config.num_layers}")
        layers.append(loader.layer(index))
    progress(config.num_layers / (config.num_layers + 1), "output")
    divisors = loader.optional_vector("rope_freqs.weight", config.head_dim // 2)
    inv_freq, magnitude = inverse_frequencies(config.rope, config.head_dim, divisors)
    tied = "output.weight" not in file.tensors
    head_name = "token_embd.weight" if tied else "output.weight"
    head = loader.linear([(head_name, config.vocab_size)], config.hidden_size)
    embedding = loader.matrix("token_embd.weight", config.vocab_size, config.hidden_size)
    weights = ModelWeights(
        embedding=ops.make_embedding(embedding, head if tied else None),
        layers=layers,
        output_norm=loader.norm("output_norm.weight", config.hidden_size),
        head=head,
        inv_freq=inv_freq.to(ops.device),
        rope_magnitude=magnitude,
        nbytes=0,
    )
    weights.nbytes = _total_bytes(weights, ops)
    return weights


def head_row_order(config: ModelConfig, heads: int, target: str) -> Tensor | None:
    """Source rows that bring q or k heads from the file's rope pairing to the target's.

    Returns int64 [heads * head_dim], or None when the orders are the same.
    """
    if config.arch.rope_pairing == target:
        return None
    half = config.head_dim // 2
    if target == "adjacent":
        within = torch.stack([torch.arange(half), torch.arange(half) + half], dim=1).flatten()
    else:
        within = torch.cat([torch.arange(half) * 2, torch.arange(half) * 2 + 1])
    return (torch.arange(heads)[:, None] * config.head_dim + within).flatten()


class _Loader:
    """Reads one file's tensors for one decoder."""

    def __init__(self, file: GGUFFile, config: ModelConfig, ops: Operations) -> None:
        self.file = file
        self.config = config
        self.ops = ops
        self.q_order = head_row_order(config, config.num_heads, ops.rope_pairing)
        self.k_order = head_row_order(config, config.num_kv_heads, ops.rope_pairing)

    def layer(self, index: int) -> LayerWeights:
        config, prefix = self.config, f"blk.{index}"
        hidden = config.hidden_size
        return LayerWeights(
            attn_norm=self.norm(f"{prefix}.attn_norm.weight", hidden),
            qkv=self.qkv(prefix),
            qk_norm=self.qk_norm(prefix),
            attn_output=self.linear([(f"{prefix}.attn_output.weight", hidden)], config.q_size),
            ffn_norm=self.norm(f"{prefix}.ffn_norm.weight", hidden),
            gate_up=self.linear(
                [
                    (f"{prefix}.ffn_gate.weight", config.ffn_size),
                    (f"{prefix}.ffn_up.weight", config.ffn_size),
                ],
                hidden,
                make=self.ops.make_gate,
            ),
            ffn_down=self.linear([(f"{prefix}.ffn_down.weight", hidden)], config.ffn_size),
        )

    def qkv(self, prefix: str) -> Any:
        config = self.config
        names = [
            (f"{prefix}.attn_q.weight", config.q_size),
            (f"{prefix}.attn_k.weight", config.kv_size),
            (f"{prefix}.attn_v.weight", config.kv_size),
        ]
        return self.linear(names, config.hidden_size, [self.q_order, self.k_order, None])

    def qk_norm(self, prefix: str) -> Any | None:
        if not self.config.arch.qk_norm:
            return None
        config = self.config
        rows = []
        for which, heads, order in (
            ("q", config.num_heads, self.q_order),
            ("k", config.num_kv_heads, self.k_order),
        ):
            one = self.vector(f"{prefix}.attn_{which}_norm.weight", config.head_dim)
            repeated = one.repeat(heads)
            rows.append((repeated if order is None else repeated[order]).view(heads, config.head_dim))
        return self.ops.make_norm(torch.cat(rows), config.rms_eps)

    def linear(
        self,
        names: list[tuple[str, int]],
        columns: int,
        orders: list[Tensor | None] | None = None,
        make: Callable[[list[QuantizedMatrix], Tensor | None], Any] | None = None,
    ) -> Any:
        """Stack matrices (name, rows) and their biases, rows reordered by `orders`."""
        orders = orders or [None] * len(names)
        parts = [
            self.matrix(name, rows, columns, order) for (name, rows), order in zip(names, orders, strict=True)
        ]
        biases = []
        for (name, rows), order in zip(names, orders, strict=True):
            bias = self.optional_vector(name.replace(".weight", ".bias"), rows)
            if bias is not None and order is not None:
                bias = bias[order]
            biases.append(bias)
        joined = None
        if any(bias is not None for bias in biases):
            filled = [
                torch.zeros(rows) if bias is None else bias
                for bias, (_, rows) in zip(biases, names, strict=True)
            ]
            joined = torch.cat(filled)
        return (make or self.ops.make_linear)(parts, joined)

    def matrix(self, name: str, rows: int, columns: int, order: Tensor | None = None) -> QuantizedMatrix:
        info = self.file.tensors[name]
        return QuantizedMatrix(self.file.stored(name), info.type, (rows, columns), order)

    def vector(self, name: str, size: int) -> Tensor:
        return dequantize(self._raw(name), self.file.tensors[name].type, (size,))

    def norm(self, name: str, size: int) -> Any:
        return self.ops.make_norm(self.vector(name, size), self.config.rms_eps)

    def optional_vector(self, name: str, size: int) -> Tensor | None:
        return self.vector(name, size) if name in self.file.tensors else None

    def _raw(self, name: str) -> Tensor:
        return as_tensor(self.file.tensor_bytes(name))


def _check_tensors(file: GGUFFile, config: ModelConfig) -> None:
    """Every tensor that the decoder needs is there, of its shape and a known type, and no other is."""
    shapes = _shapes(config)
    for name, info in file.tensors.items():
        if name not in shapes and not any(part in name for part in _IGNORED):
            raise UnsupportedModelError(
                f"{file.path}: tensor {name}: not known for architecture '{config.arch.name}'; this "
                "variant of it is not supported."
            )
        if info.type not in SUPPORTED:
            raise UnsupportedModelError(
                f"{file.path}: tensor {name}: type {info.type.name} is not supported."
            )
    for name, shape in shapes.items():
        found = file.tensors.get(name)
        if found is not None and found.shape != shape:
            raise ModelFileError(f"{file.path}: tensor {name}: shape {found.shape} is not {shape}.")
        if found is None and not _optional(name, config):
            raise ModelFileError(
                f"{file.path}: tensor {name} is missing; the file is incomplete or not a "
                f"'{config.arch.name}' model."
            )


def _optional(name: str, config: ModelConfig) -> bool:
    if name in ("output.weight", "rope_freqs.weight"):
        return True
    required = config.arch.qkv_bias and name.endswith(("attn_q.bias", "attn_k.bias", "attn_v.bias"))
    return name.endswith(".bias") and not required


def _shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that a file may have for this decoder."""
    hidden, ffn = config.hidden_size, config.ffn_size
    matrices = {
        "attn_q": (config.q_size, hidden),
        "attn_k": (config.kv_size, hidden),
        "attn_v": (config.kv_size, hidden),
        "attn_output": (hidden, config.q_size),
        "ffn_gate": (ffn, hidden),
        "ffn_up": (ffn, hidden),
        "ffn_down": (hidden, ffn),
    }
    layer: dict[str, tuple[int, ...]] = {"attn_norm.weight": (hidden,), "ffn_norm.weight": (hidden,)}
    for name, shape in matrices.items():
        layer |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    if config.arch.qk_norm:
        layer |= {"attn_q_norm.weight": (config.head_dim,), "attn_k_norm.weight": (config.head_dim,)}
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (config.vocab_size, hidden),
        "output_norm.weight": (hidden,),
        "output.weight": (config.vocab_size, hidden),
        "rope_freqs.weight": (config.head_dim // 2,),
    }
    for index in range(config.num_layers):
        shapes |= {f"blk.{index}.{name}": shape for name, shape in layer.items()}
    return shapes


def _total_bytes(weights: ModelWeights, ops: Operations) -> int:
    handles: list[Any] = [weights.embedding, weights.output_norm, weights.head]
    for layer in weights.layers:
        handles += [
            layer.attn_norm,
            layer.qkv,
            layer.attn_output,
            layer.ffn_norm,
            layer.gate_up,
            layer.ffn_down,
        ]
        if layer.qk_norm is not None:
            handles.append(layer.qk_norm)
    return sum(ops.weight_bytes(handle) for handle in handles)
