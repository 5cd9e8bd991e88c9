"""Families with LayerNorm: Command R and A, StarCoder 2, Nemotron, StableLM."""

from dataclasses import replace

from engine.model.family import Family, with_layers, with_marked_attention
from engine.model.keys import Keys
from engine.model.spec import Activation, LayerSpec, ModelConfig, RopePairing


def _parallel(layer: LayerSpec) -> LayerSpec:
    return replace(layer, ffn_norm=None, parallel=True)


def _command_r(keys: Keys, plain: ModelConfig) -> ModelConfig:
    """Both branches read one norm, and logits are multiplied."""
    return replace(with_layers(plain, _parallel), logit_scale=keys.above_zero("logit_scale"))


def _cohere2(keys: Keys, plain: ModelConfig) -> ModelConfig:
    """Every fourth layer sees all and has no rotation, the others a window."""
    window = keys.positive("attention.sliding_window")
    windowed = keys.windowed(plain.num_layers, period=4)
    made = with_marked_attention(
        plain,
        windowed,
        lambda attention, narrow: (
            replace(attention, window=window) if narrow else replace(attention, rope=None)
        ),
    )
    return _command_r(keys, made)


def _without_gate(plain: ModelConfig, activation: Activation) -> ModelConfig:
    return with_layers(plain, lambda layer: replace(layer, gated=False, activation=activation))


def _starcoder2(keys: Keys, plain: ModelConfig) -> ModelConfig:
    """Files name a window of the training that inference has never had."""
    keys.count("attention.sliding_window")
    return _without_gate(plain, Activation.GELU)


def _nemotron(_keys: Keys, plain: ModelConfig) -> ModelConfig:
    return _without_gate(plain, Activation.RELU2)


def _stablelm(keys: Keys, plain: ModelConfig) -> ModelConfig:
    """The 12B has both branches read one norm: its layers have no second one."""
    keys.flag("use_parallel_residual", False)
    second = "blk.0.ffn_norm.weight" in keys.file.tensors
    return plain if second else with_layers(plain, _parallel)


FAMILIES = (
    Family("command-r", RopePairing.ADJACENT, _command_r, centred=True),
    Family("cohere2", RopePairing.ADJACENT, _cohere2, centred=True),
    Family("starcoder2", RopePairing.HALVES, _starcoder2, centred=True),
    Family("nemotron", RopePairing.HALVES, _nemotron, centred=True),
    Family("stablelm", RopePairing.HALVES, _stablelm, centred=True),
)
