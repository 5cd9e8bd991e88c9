"""Per-architecture differences as data; the decoder body reads this table and has no names in it.

Architecture names are those of `general.architecture` in GGUF metadata. Without torch, so that listing
model files stays cheap.
"""

from dataclasses import dataclass
from enum import StrEnum


class RopePairing(StrEnum):
    """Which two dimensions of a head rotate together."""

    ADJACENT = "adjacent"
    """(2i, 2i+1), the order that llama-style converters permute q and k into."""
    HALVES = "halves"
    """(i, i + d/2), the order of the original checkpoints."""


@dataclass(frozen=True, slots=True)
class ArchSpec:
    """What sets an architecture apart from the plain pre-norm, gated decoder."""

    name: str
    rope_pairing: RopePairing
    qkv_bias: bool = False
    """q, k and v biases are required (they are read wherever a file has them)."""
    qk_norm: bool = False
    """RMS norm over each head of q and k before the rotation."""


ARCHITECTURES: dict[str, ArchSpec] = {
    spec.name: spec
    for spec in (
        ArchSpec("llama", RopePairing.ADJACENT),
        ArchSpec("qwen2", RopePairing.HALVES, qkv_bias=True),
        ArchSpec("qwen3", RopePairing.HALVES, qk_norm=True),
    )
}


def supported_architectures() -> str:
    """The names in one line, for error messages."""
    return ", ".join(sorted(ARCHITECTURES))
