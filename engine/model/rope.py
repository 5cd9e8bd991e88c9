"""Rotation frequencies with every scaling that the supported files use.

Sources: RoPE (Su et al. 2021), YaRN (Peng et al. 2023, section 3), Llama 3.1's scaling and LongRoPE (Ding
et al. 2024), which converters bake into tensors of per-pair divisors.
"""

import math

import torch
from torch import Tensor

from engine.model.spec import RopeConfig, RopeScaling


def inverse_frequencies(rope: RopeConfig, divisors: Tensor | None) -> tuple[Tensor, float]:
    """Angle per position of each pair, and the factor on cos and sin.

    divisors: float32 [dims / 2] of the file's tensor, or None. Returns (float64 [dims / 2], magnitude).
    """
    pair = torch.arange(rope.dims // 2, dtype=torch.float64)
    extrapolated = rope.base ** (-2.0 * pair / rope.dims)
    if divisors is not None:
        extrapolated = extrapolated / divisors.to(torch.float64)
    stretched = rope.scaling in (RopeScaling.LINEAR, RopeScaling.YARN)
    interpolated = extrapolated / rope.factor if stretched else extrapolated
    if rope.ext_factor == 0.0:
        return interpolated, rope.attn_factor
    low, high = _correction_range(rope)
    ramp = 1.0 - ((pair - low) / max(0.001, high - low)).clamp(0.0, 1.0)
    mix = ramp * rope.ext_factor
    return interpolated * (1.0 - mix) + extrapolated * mix, rope.attn_factor * _magnitude(rope)


def _magnitude(rope: RopeConfig) -> float:
    def term(multiplier: float) -> float:
        return 1.0 if rope.factor <= 1.0 else 1.0 + 0.1 * multiplier * math.log(rope.factor)

    return term(1.0) / term(rope.log_multiplier)


def _correction_range(rope: RopeConfig) -> tuple[float, float]:
    def dimension(rotations: float) -> float:
        ratio = rope.original_context / (rotations * 2.0 * math.pi)
        return rope.dims * math.log(ratio) / (2.0 * math.log(rope.base))

    low = max(0.0, math.floor(dimension(rope.beta_fast)))
    high = min(rope.dims - 1.0, math.ceil(dimension(rope.beta_slow)))
    return low, high
