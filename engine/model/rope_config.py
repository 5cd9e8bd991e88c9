"""How a file's rotary embedding is set up."""

from engine.model.keys import Keys
from engine.model.spec import RopeConfig, RopeScaling


def read_rope(keys: Keys, head_dim: int, scalings: tuple[RopeScaling, ...]) -> RopeConfig:
    """Read and check the keys `rope.*`; of an architecture's full-attention layers where kinds differ."""
    scaling, factor = _scaling(keys, scalings)
    ext_factor = keys.number("rope.scaling.yarn_ext_factor", -1.0)
    dims = keys.positive("rope.dimension_count", head_dim)
    if dims > head_dim or dims % 2:
        raise keys.error("rope.dimension_count", f"{dims} of {head_dim} dimensions: no pairs")
    base = keys.number("rope.freq_base", 10000.0)
    if base <= 1.0:
        raise keys.error("rope.freq_base", f"{base} is not above 1")
    return RopeConfig(
        base=base,
        dims=dims,
        scaling=scaling,
        factor=factor,
        original_context=keys.positive(
            "rope.scaling.original_context_length", keys.positive("context_length")
        ),
        attn_factor=keys.number("rope.scaling.attn_factor", 1.0),
        ext_factor=ext_factor if ext_factor >= 0 else float(scaling is RopeScaling.YARN),
        log_multiplier=keys.number("rope.scaling.yarn_log_multiplier", 0.0),
        beta_fast=keys.above_zero("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.above_zero("rope.scaling.yarn_beta_slow", 1.0),
    )


def _scaling(keys: Keys, scalings: tuple[RopeScaling, ...]) -> tuple[RopeScaling, float]:
    name = keys.text("rope.scaling.type", "none")
    if name not in scalings:
        raise keys.unsupported(
            "rope.scaling.type",
            f"'{name}' is not supported; supported are {', '.join(scalings)} and rope_freqs tensors",
        )
    scaling = RopeScaling(name)
    # Old converters wrote linear scaling as `rope.scale_linear`, without a type.
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 0.0)) or 1.0
    if factor < 0:
        raise keys.error("rope.scaling.factor", f"{factor} is negative")
    if scaling is RopeScaling.NONE and factor != 1.0 and keys.text("rope.scaling.type", "") == "":
        scaling = RopeScaling.LINEAR
    return scaling, factor
