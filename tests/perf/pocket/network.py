"""The built-in model as torch trains it: a Qwen3 decoder whose weights come from its file."""

from dataclasses import dataclass
from pathlib import Path

import gguf
import torch
import torch.nn.functional as F
from torch import Tensor, nn

_NAMES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down",
          "attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm")  # fmt: skip


@dataclass(slots=True)
class Cache:
    """Keys and values of all layers, [rows, kv_heads, length, dim]."""

    layers: list[tuple[Tensor, Tensor]]


class Network(nn.Module):
    """Weights by their names in the file, dots as underscores."""

    def __init__(self, path: Path) -> None:
        """Every tensor of the file as float32."""
        super().__init__()
        reader = gguf.GGUFReader(path)
        for tensor in reader.tensors:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            made = torch.from_numpy(values.astype("float32").reshape(tuple(map(int, tensor.shape))[::-1]))
            self.register_parameter(tensor.name.replace(".", "_"), nn.Parameter(made))

        def field(name: str) -> float:
            return float(reader.fields[f"qwen3.{name}"].contents())

        self.layers, self.heads = int(field("block_count")), int(field("attention.head_count"))
        self.kv_heads, self.dim = int(field("attention.head_count_kv")), int(field("attention.key_length"))
        frequencies = field("rope.freq_base") ** -(torch.arange(0, self.dim, 2) / self.dim)
        angles = torch.outer(torch.arange(2048).float(), frequencies)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def tensors(self) -> dict[str, Tensor]:
        """By their names in the file."""
        made = {}
        for name, value in self.named_parameters():
            stem = name.removesuffix("_weight")
            if stem.startswith("blk_"):
                _, layer, rest = stem.split("_", 2)
                stem = f"blk.{layer}.{rest}"
            made[f"{stem}.weight"] = value
        return made

    def forward(self, ids: Tensor, cache: Cache | None = None, before: int = 0, seen: Tensor | None = None
                ) -> Tensor:  # fmt: skip
        """ids [rows, T] → logits [rows, T, vocab]; `seen` [rows, 1, T, length] says which keys are seen,
        where that is not what comes before: with one token those of the cache."""
        weights = dict(self.named_parameters())
        x = F.embedding(ids, weights["token_embd_weight"]).to(torch.bfloat16)
        span = slice(before, before + ids.shape[1])
        turns = self.cos[span].to(x.dtype), self.sin[span].to(x.dtype)
        for layer in range(self.layers):
            own = {name: weights[f"blk_{layer}_{name}_weight"].to(x.dtype) for name in _NAMES}
            x = x + self._attend(_norm(x, own["attn_norm"]), own, turns, cache, layer, before, seen)
            y = _norm(x, own["ffn_norm"])
            gated = F.silu(F.linear(y, own["ffn_gate"])) * F.linear(y, own["ffn_up"])
            x = x + F.linear(gated, own["ffn_down"])
        x = _norm(x, weights["output_norm_weight"].to(x.dtype))
        return F.linear(x, weights["token_embd_weight"].to(x.dtype))

    def _attend(self, x: Tensor, own: dict[str, Tensor], turns: tuple[Tensor, Tensor], cache: Cache | None,
                layer: int, before: int, seen: Tensor | None) -> Tensor:  # fmt: skip
        def heads(name: str) -> Tensor:
            return F.linear(x, own[name]).unflatten(-1, (-1, self.dim)).transpose(1, 2)

        q = _turned(_norm(heads("attn_q"), own["attn_q_norm"]), *turns)
        k, v = _turned(_norm(heads("attn_k"), own["attn_k_norm"]), *turns), heads("attn_v")
        if cache is not None:
            keys, values = cache.layers[layer]
            keys[:, :, before : before + k.shape[2]], values[:, :, before : before + k.shape[2]] = k, v
            if x.shape[1] == 1:
                k, v = keys, values
        made = F.scaled_dot_product_attention(
            q, k, v, attn_mask=seen, is_causal=seen is None, enable_gqa=True
        )
        return F.linear(made.transpose(1, 2).flatten(2), own["attn_output"])

    def new_cache(self, rows: int, length: int) -> Cache:
        """Of bfloat16 zeros."""
        device = self.cos.device
        shape = rows, self.kv_heads, length, self.dim
        return Cache(
            [
                (
                    torch.zeros(shape, dtype=torch.bfloat16, device=device),
                    torch.zeros(shape, dtype=torch.bfloat16, device=device),
                )
                for _ in range(self.layers)
            ]
        )


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, 1e-6)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
