"""An independent oracle: a decoder in NumPy float64 that reads GGUF files with gguf-py.

Written for clearness only: whole sequence at once, no cache, no batching, one Python loop over heads.
It shares no code with the engine, and its logits agree with llama.cpp's float32 ones to about 1e-12
(`tests/engine/test_reference_model.py`). `trace` keeps every layer's input to find where a mismatch starts.
"""

from pathlib import Path

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

Array = np.ndarray


class ReferenceModel:
    """`logits(token_ids)` for llama, qwen2 and qwen3 files, all weights as float64."""

    def __init__(self, path: str | Path) -> None:
        reader = GGUFReader(str(path))
        self.fields = {
            name: field.contents() for name, field in reader.fields.items() if len(field.data) == 1
        }
        self.weights = {
            tensor.name: dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
            for tensor in reader.tensors
        }
        self.arch = str(self.fields["general.architecture"])
        self.layers = int(self.setting("block_count"))
        self.heads = int(self.setting("attention.head_count"))
        self.kv_heads = int(self.setting("attention.head_count_kv", self.heads))
        default = int(self.setting("embedding_length")) // self.heads
        self.head_dim = int(self.setting("attention.key_length", default))
        self.eps = float(self.setting("attention.layer_norm_rms_epsilon"))
        self.trace: list[Array] = []

    def setting(self, key: str, default: object = None) -> object:
        """The metadata value `<arch>.<key>`."""
        return self.fields.get(f"{self.arch}.{key}", default)

    def logits(self, token_ids: list[int]) -> Array:
        """Float64 [T, vocab] for one sequence that starts at position 0."""
        x = self.weights["token_embd.weight"][np.asarray(token_ids)]
        rotation = self.rotation(len(token_ids))
        self.trace = []
        for layer in range(self.layers):
            self.trace.append(x)
            x = x + self.attention(self.norm(x, f"blk.{layer}.attn_norm"), layer, rotation)
            x = x + self.feed_forward(self.norm(x, f"blk.{layer}.ffn_norm"), layer)
        self.trace.append(x)
        output = self.weights.get("output.weight", self.weights["token_embd.weight"])
        return self.norm(x, "output_norm") @ output.T

    def norm(self, x: Array, name: str) -> Array:
        """Root-mean-square norm over the last axis."""
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.weights[name + ".weight"]

    def linear(self, x: Array, name: str) -> Array:
        """x @ weight.T, plus the bias where the file has one."""
        return x @ self.weights[name + ".weight"].T + self.weights.get(name + ".bias", 0.0)

    def attention(self, x: Array, layer: int, rotation: tuple[Array, Array]) -> Array:
        """Causal attention of the whole sequence; x is [T, width]."""
        prefix, count = f"blk.{layer}.", len(x)
        q = self.linear(x, prefix + "attn_q").reshape(count, self.heads, self.head_dim)
        k = self.linear(x, prefix + "attn_k").reshape(count, self.kv_heads, self.head_dim)
        v = self.linear(x, prefix + "attn_v").reshape(count, self.kv_heads, self.head_dim)
        if prefix + "attn_q_norm.weight" in self.weights:
            q, k = self.norm(q, prefix + "attn_q_norm"), self.norm(k, prefix + "attn_k_norm")
        q, k = self.rotate(q, rotation), self.rotate(k, rotation)
        mask = np.triu(np.full((count, count), -np.inf), 1)
        out = np.empty_like(q)
        for head in range(self.heads):
            group = head * self.kv_heads // self.heads
            scores = q[:, head] @ k[:, group].T / np.sqrt(self.head_dim) + mask
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            out[:, head] = weights / weights.sum(-1, keepdims=True) @ v[:, group]
        return self.linear(out.reshape(count, -1), prefix + "attn_output")

    def feed_forward(self, x: Array, layer: int) -> Array:
        """down(silu(gate(x)) · up(x))."""
        gate = self.linear(x, f"blk.{layer}.ffn_gate")
        hidden = gate / (1.0 + np.exp(-gate)) * self.linear(x, f"blk.{layer}.ffn_up")
        return self.linear(hidden, f"blk.{layer}.ffn_down")

    def rotate(self, x: Array, rotation: tuple[Array, Array]) -> Array:
        """Rotary position embedding of x [T, heads, head_dim]: adjacent pairs for llama, else halves."""
        cos, sin = rotation[0][:, None], rotation[1][:, None]
        half = self.head_dim // 2
        adjacent = self.arch == "llama"
        first, second = (x[..., ::2], x[..., 1::2]) if adjacent else (x[..., :half], x[..., half:])
        turned = first * cos - second * sin, first * sin + second * cos
        return np.stack(turned, -1).reshape(x.shape) if adjacent else np.concatenate(turned, -1)

    def rotation(self, count: int) -> tuple[Array, Array]:
        """Cosines and sines [T, head_dim / 2] with the file's scaling."""
        base = float(self.setting("rope.freq_base", 10000.0))
        frequency = base ** (-np.arange(0, self.head_dim, 2) / self.head_dim)
        kind = self.setting("rope.scaling.type", "none")
        factor = float(self.setting("rope.scaling.factor", 1.0)) if kind in ("linear", "yarn") else 1.0
        magnitude = float(self.setting("rope.scaling.attn_factor", 1.0))
        frequency = frequency / self.weights.get("rope_freqs.weight", 1.0)
        if kind == "yarn":
            keep = self._yarn_keep(base)
            frequency = frequency / factor * (1 - keep) + frequency * keep
            magnitude *= 1.0 + 0.1 * np.log(factor)
        else:
            frequency = frequency / factor
        angle = np.arange(count)[:, None] * frequency
        return np.cos(angle) * magnitude, np.sin(angle) * magnitude

    def _yarn_keep(self, base: float) -> Array:
        """How much of each unscaled frequency YaRN keeps: 1 for the fast ones, 0 for the slow ones."""
        original = float(self.setting("rope.scaling.original_context_length"))
        fast = float(self.setting("rope.scaling.yarn_beta_fast", 32.0))
        slow = float(self.setting("rope.scaling.yarn_beta_slow", 1.0))

        def dimension(turns: float) -> float:
            return self.head_dim * np.log(original / (turns * 2 * np.pi)) / (2 * np.log(base))

        low = max(0.0, np.floor(dimension(fast)))
        high = min(self.head_dim - 1.0, np.ceil(dimension(slow)))
        ramp = (np.arange(self.head_dim // 2) - low) / max(0.001, high - low)
        return 1.0 - np.clip(ramp, 0.0, 1.0)
