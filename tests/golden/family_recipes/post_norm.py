"""Decoders without a pre-norm, and those with LayerNorm."""

from typing import Any

from tests.golden.family_recipes.recipe import EPSILON, WINDOW, Recipe, dense

COHERE: dict[str, Any] = {
    "layer_norm_eps": EPSILON, "rms_norm_eps": None, "logit_scale": 0.3, "tie_word_embeddings": True,
}  # fmt: skip

RECIPES = [
    Recipe("olmo2", "Olmo2ForCausalLM", dense("olmo2", num_hidden_layers=4)),
    Recipe(
        "olmo2-3",
        "Olmo3ForCausalLM",
        dense(
            "olmo3", num_hidden_layers=4, sliding_window=WINDOW,
            layer_types=[*["sliding_attention"] * 3, "full_attention"],
            rope_theta=500000.0,
            rope_scaling={
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 512,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "attention_factor": 1.1386294361119891,
            },
        ),
    ),
    Recipe(
        "exaone4",
        "Exaone4ForCausalLM",
        dense(
            "exaone4", head_dim=16, sliding_window=None, sliding_window_pattern=None,
            layer_types=["full_attention"] * 3,
        ),
    ),
    Recipe(
        "exaone4-64",
        "Exaone4ForCausalLM",
        dense(
            "exaone4", head_dim=8, hidden_size=32, intermediate_size=40, num_hidden_layers=64,
            sliding_window=WINDOW, sliding_window_pattern="LLLG",
            layer_types=[*["sliding_attention"] * 3, "full_attention"] * 16,
        ),
        answer=8,
    ),
    Recipe("command-r", "CohereForCausalLM", dense("cohere", **COHERE, use_qk_norm=False)),
    Recipe(
        "cohere2",
        "Cohere2ForCausalLM",
        dense(
            "cohere2", **COHERE, num_hidden_layers=5, sliding_window=WINDOW, sliding_window_pattern=4,
            rotary_pct=1.0, head_dim=16,
        ),
    ),
    Recipe(
        "starcoder2",
        "Starcoder2ForCausalLM",
        dense(
            "starcoder2", hidden_act="gelu_pytorch_tanh", use_bias=True, norm_epsilon=EPSILON,
            rms_norm_eps=None, mlp_type="default", norm_type="layer_norm", attention_bias=None,
        ),
    ),
    Recipe(
        "nemotron",
        "NemotronForCausalLM",
        dense(
            "nemotron", hidden_act="relu2", norm_eps=EPSILON, rms_norm_eps=None, partial_rotary_factor=0.5,
            mlp_bias=False, head_dim=16,
        ),
    ),
    Recipe(
        "stablelm",
        "StableLmForCausalLM",
        dense(
            "stablelm", layer_norm_eps=EPSILON, rms_norm_eps=None, partial_rotary_factor=0.25,
            use_qkv_bias=True, qk_layernorm=False, use_parallel_residual=False,
        ),
    ),
    Recipe(
        "stablelm-parallel",
        "StableLmForCausalLM",
        dense(
            "stablelm", layer_norm_eps=EPSILON, rms_norm_eps=None, partial_rotary_factor=0.25,
            use_qkv_bias=False, qk_layernorm=False, use_parallel_residual=True,
        ),
    ),
]  # fmt: skip
