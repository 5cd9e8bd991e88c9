"""What attention kernels are compiled for."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.cuda.activations import SUM_WIDTH, Activations
from kernels.quant.formats import KV_GROUP

LOG2E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """The compile-time options of one kind of attention layer."""

    q_heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    """Tokens of a KV block; a tile of the attention loop is one block, or an equal part of it where heads
    are long. A power of two, at least 16."""
    scale: float
    """Multiplies q·k."""
    window: int = 0
    """A token sees the last `window` tokens, itself included; 0 sees all."""
    softcap: float = 0.0
    """Scores become softcap · tanh(score / softcap); 0 leaves them."""
    temperature: float = 0.0
    """Queries are multiplied by 1 + temperature · ln(1 + ⌊position / temperature_length⌋)."""
    temperature_length: int = 1
    norm_rotated: bool = False
    """Whether the norm of q and k follows the rotation, and not the rotation it."""
    norms_values: bool = False
    """Whether that norm has weights for values too."""

    def __post_init__(self) -> None:
        if self.q_heads % self.kv_heads:
            raise ValueError(f"{self.q_heads} query heads cannot share {self.kv_heads} KV heads")
        if self.block_size < 16 or self.block_size & (self.block_size - 1):
            raise ValueError(f"block size {self.block_size}: not a power of two of at least 16")

    @property
    def groups(self) -> int:
        """Query heads that share a KV head."""
        return self.q_heads // self.kv_heads

    @property
    def normed_heads(self) -> int:
        """Heads of q, k and v that the norm has weights for."""
        return self.q_heads + self.kv_heads * (2 if self.norms_values else 1)

    def norm(self, weight: Tensor | None) -> str:
        """When kernels apply the norm of q and k: "before" the rotation, "after" it, or never."""
        if weight is None:
            return ""
        return "after" if self.norm_rotated else "before"

    @property
    def q_scale(self) -> float:
        """What `rope_append` folds into q: scores come out in units of log2."""
        return self.scale * LOG2E

    @property
    def score_cap(self) -> float:
        """`softcap` in units of log2."""
        return self.softcap * LOG2E


def make_output(tokens: int, shape: AttentionShape, device: torch.device) -> Activations:
    """Unwritten activations [tokens, q_heads * head_dim] for the attention kernels to fill.

    Their sums are written by `add_sums` where a head is no whole number of them.
    """
    width = shape.q_heads * shape.head_dim
    return Activations(
        torch.empty((tokens, width), dtype=torch.float16, device=device),
        torch.empty((tokens, -(-width // SUM_WIDTH)), dtype=torch.float32, device=device),
    )


def add_sums(out: Activations, shape: AttentionShape) -> None:
    """Sums that cross the borders of heads, once all heads are written."""
    if shape.head_dim % SUM_WIDTH:
        padded = F.pad(out.values, (0, -out.values.shape[1] % SUM_WIDTH))
        torch.sum(padded.unflatten(1, (-1, SUM_WIDTH)), -1, dtype=torch.float32, out=out.sums)


def padded_dim(head_dim: int) -> int:
    """The power of two that a head's values are held in; at least a group of q8_0."""
    return max(KV_GROUP, 1 << math.ceil(math.log2(head_dim)))
