"""What one decoder is, as data: a spec for every layer and the constants around them.

Families (`engine.model.families`) make these from a file's metadata; weights and decoder read them and
know no architecture's name. Without torch, so that listing model files stays cheap.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class RopePairing(StrEnum):
    """Which two dimensions of a head rotate together."""

    ADJACENT = "adjacent"
    """(2i, 2i+1), the order that llama-style converters permute q and k into."""
    HALVES = "halves"
    """(i, i + d/2), the order of the original checkpoints."""


class RopeScaling(StrEnum):
    """How rotation frequencies are stretched for long contexts."""

    NONE = "none"
    LINEAR = "linear"
    YARN = "yarn"
    LONGROPE = "longrope"


class Activation(StrEnum):
    """The non-linearity of a feed-forward layer."""

    SILU = "silu"
    GELU = "gelu"
    """Its tanh form."""
    RELU2 = "relu2"
    """The square of what is above 0 (So et al. 2021)."""
    SWIGLU_OAI = "swiglu_oai"
    """gate · σ(1.702 · gate) · (up + 1), gate held to 7 and up to ±7."""


class Gating(StrEnum):
    """How a router's logits become weights of experts."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"
    SOFTMAX_SELECTED = "softmax_selected"
    """Softmax over the selected alone."""


class QKNorm(StrEnum):
    """What queries and keys are normed by (RMS)."""

    HEADS = "heads"
    """Each head by itself."""
    ROTATED_HEADS = "rotated_heads"
    """The same, behind the rotation and not before it."""
    ALL_HEADS = "all_heads"
    """All heads of q as one vector, and all of k."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding parameters (Su et al. 2021; YaRN: Peng et al. 2023; LongRoPE: Ding et al. 2024)."""

    base: float
    dims: int
    """Leading dimensions of a head that rotate."""
    scaling: RopeScaling
    factor: float
    original_context: int
    attn_factor: float
    ext_factor: float
    log_multiplier: float
    """Where it is not 0, YaRN's magnitude is the ratio of two terms, with 1 and with this multiplier."""
    beta_fast: float
    beta_slow: float
    divisors: str | None = "rope_freqs.weight"
    """The tensor of a divisor for each pair; a file may lack it."""
    needs_divisors: bool = False
    """Whether a file must have it."""
    other_divisors: str | None = None
    """Such a tensor that a file has for contexts of another length."""

    def plain(self, base: float) -> "RopeConfig":
        """Of layers of another base, without any scaling."""
        return RopeConfig(
            base, self.dims, RopeScaling.NONE, 1.0, self.original_context, 1.0, 0.0, 0.0, 32.0, 1.0, None
        )


class KVShape(NamedTuple):
    """What a layer keeps of each token, and for how long."""

    window: int
    """Tokens that are needed, the newest included; 0: all."""
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """The attention of one layer."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    """Multiplies q·k."""
    rope: RopeConfig | None
    """None: the layer knows positions from its mask alone."""
    window: int = 0
    """A token sees the last `window` tokens, itself included; 0 sees all."""
    sinks: bool = False
    """Whether each head has a score that takes weight and gives no value."""
    softcap: float = 0.0
    """Scores become softcap · tanh(score / softcap); 0 leaves them."""
    qk_norm: QKNorm | None = None
    value_norm: bool = False
    """Whether each head of values passes an RMS norm without a weight."""
    keys_as_values: bool = False
    """Whether the projection of keys gives the values too, in files that have none of theirs."""
    gated: bool = False
    """Whether its result is multiplied by the sigmoid of a projection of its input."""
    biased: bool = False
    """q, k and v biases are required (they are read wherever a file has them)."""
    temperature: float = 0.0
    """Queries are multiplied by 1 + temperature · ln(1 + ⌊position / temperature_length⌋)."""
    temperature_length: int = 1

    @property
    def q_size(self) -> int:
        """Width of all query heads."""
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key (or value) heads."""
        return self.kv_heads * self.head_dim

    @property
    def kv_shape(self) -> KVShape:
        """What layers of a KV group have in common."""
        return KVShape(self.window, self.kv_heads, self.head_dim)


@dataclass(frozen=True, slots=True)
class ExpertsSpec:
    """A feed-forward layer of many experts (Shazeer et al. 2017), of which a token uses a few."""

    count: int
    used: int
    size: int
    """Width of one expert."""
    gating: Gating = Gating.SOFTMAX
    normalised: bool = True
    """Whether the weights of the selected are divided by their sum."""
    scale: float = 1.0
    """Multiplies the weights."""
    groups: int = 1
    """Equal parts of the experts, of which a token may use `groups_used`."""
    groups_used: int = 1
    shared_size: int = 0
    """Width of an expert that every token uses besides; 0: there is none."""
    shared_gated: bool = False
    """Whether that one is weighed by a sigmoid of its own."""
    fused: bool = False
    """Whether files usually have gate and up in one matrix; which one a file has decides."""
    weighed: bool = False
    """Whether a file may give each expert a factor on its weight, behind their division by their sum."""


@dataclass(frozen=True, slots=True)
class ExpertNorms:
    """Norms of experts that read the residual stream beside the layer's own feed-forward part.

    The norm behind both together is the layer's.
    """

    before: str
    """Of what the experts read."""
    router: str
    """Of what their router reads; its weight is divided by the root of the hidden size."""
    behind: str
    ffn_behind: str
    """Behind the layer's own part."""


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer: two branches, each with a norm before it and one behind it where a name stands for them."""

    attention: AttentionSpec
    ffn_size: int
    """Width of the feed-forward part; 0 where experts stand in its place."""
    experts: ExpertsSpec | None = None
    expert_norms: ExpertNorms | None = None
    """Of experts beside the feed-forward part."""
    activation: Activation = Activation.SILU
    gated: bool = True
    """Or without a gate: down · activation(up · x)."""
    attn_norm: str | None = "attn_norm"
    attn_post_norm: str | None = None
    ffn_norm: str | None = "ffn_norm"
    ffn_post_norm: str | None = None
    post_norm_eps: float | None = None
    """Of the norms behind the branches; None: that of all norms."""
    parallel: bool = False
    """Both branches read the first norm's output, and their sum joins the residual stream."""
    fused: bool = False
    """Whether files usually have q, k and v in one matrix; which one a file has decides."""
    branch_scale: float = 1.0
    """Multiplies what a branch adds to the residual stream."""
    output_scaled: bool = False
    """Whether a file may have a factor on the residual stream behind the layer (`layer_output_scale`)."""
    activation_scale: float = 1.0
    """Power of two at which gated products are kept until their branch joins the residual stream.

    On a GPU they are float16 and end at 65,504. Not for parallel branches, which join as one sum.
    """


WIDE_ACTIVATIONS = 2.0**-6
"""The scale of families whose gated products pass 65,504: they end at 4,192,256, and from 0.004 on none
loses a bit."""


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers whose keys and values are of one shape and are needed for equally long."""

    shape: KVShape
    layers: tuple[int, ...]

    def among(self, numbers: range) -> list[int]:
        """Those of its layers that are among so numbered ones."""
        return [layer for layer in self.layers if layer in numbers]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shapes and constants of one decoder."""

    architecture: str
    pairing: RopePairing
    """How q and k rows of the file are ordered."""
    layers: tuple[LayerSpec, ...]
    hidden_size: int
    vocab_size: int
    norm_eps: float
    centred: bool
    """Whether norms take the mean off (LayerNorm), or not (RMS)."""
    context_length: int
    embedding_scale: float = 1.0
    embedding_norm: bool = False
    """Whether embeddings pass an RMS norm without a weight."""
    logit_scale: float = 1.0
    logit_softcap: float = 0.0
    """Logits become softcap · tanh(logit / softcap) after their scale; 0 leaves them."""
    ignored_layers: int = 0
    """Layers of the file behind the last that are no part of the decoder: they guess tokens ahead."""

    @property
    def num_layers(self) -> int:
        """Layers that have keys and values."""
        return len(self.layers)

    @property
    def kv_groups(self) -> tuple[KVGroup, ...]:
        """All layers; those that see everything come first."""
        members: dict[KVShape, list[int]] = {}
        for index, layer in enumerate(self.layers):
            members.setdefault(layer.attention.kv_shape, []).append(index)
        return tuple(KVGroup(shape, tuple(layers)) for shape, layers in sorted(members.items()))

    @property
    def kv_values(self) -> int:
        """Values that all layers keep of one token while it is seen."""
        return sum(2 * layer.attention.kv_size for layer in self.layers)

    @property
    def ropes(self) -> tuple[RopeConfig | None, ...]:
        """The kinds of rotation, in order of the layers that have them first."""
        return tuple(dict.fromkeys(layer.attention.rope for layer in self.layers))
