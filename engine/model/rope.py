"""Rotation frequencies with every scaling that the supported files use.

Sources: RoPE (Su et al. 2021), YaRN (Peng et al. 2023, section 3), Llama 3.1's scaling, which
converters bake into a `rope_freqs.weight` tensor of per-pair divisors.
"""

import math

import torch
from torch import Tensor

from engine.model.config import RopeConfig


def inverse_frequencies(rope: RopeConfig, head_dim: int, divisors: Tensor | None) -> tuple[Tensor, float]:
    """Angle per position of each pair, and the factor on cos and sin.

    divisors: float32 [head_dim / 2] of a `rope_freqs` tensor, or None.
    Returns (float64 [head_dim / 2], magnitude).
    """
    pair = torch.arange(head_dim // 2, dtype=torch.float64)
    extrapolated = rope.base ** (-2.0 * pair / head_dim)
    if divisors is not None:
        extrapolated = extrapolated / divisors.to(torch.float64)
    interpolated = extrapolated / rope.factor if rope.scaling != "none" else extrapolated
    if rope.ext_factor == 0.0:
        return interpolated, rope.attn_factor
    low, high = _correction_range(rope, head_dim)
    ramp = 1.0 - ((pair - low) / max(0.001, high - low)).clamp(0.0, 1.0)
    mix = ramp * rope.ext_factor
    magnitude = rope.attn_factor * (1.0 + 0.1 * math.log(rope.factor))
    return interpolated * (1.0 - mix) + extrapolated * mix, magnitude


def _correction_range(rope: RopeConfig, head_dim: int) -> tuple[float, float]:
    def dimension(rotations: float) -> float:
        ratio = rope.original_context / (rotations * 2.0 * math.pi)
        return head_dim * math.log(ratio) / (2.0 * math.log(rope.base))

    low = max(0.0, math.floor(dimension(rope.beta_fast)))
    high = min(head_dim - 1.0, math.ceil(dimension(rope.beta_slow)))
    return low, high
