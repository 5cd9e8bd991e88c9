"""Gemma 2 to 4 and Muse Glimmer: norms around each branch, windows, soft-caps."""

from typing import Any

from tests.golden.family_recipes.recipe import VOCAB, WINDOW, Recipe, dense

GEMMA: dict[str, Any] = {
    "hidden_activation": "gelu_pytorch_tanh", "hidden_act": None, "tie_word_embeddings": True,
    "head_dim": 32, "sliding_window": WINDOW,
}  # fmt: skip
SMALL_EMBEDDING = {"embed_tokens": 0.25}
"""With tied weights a large one repeats the last token for ever."""
SMALL_SCORES = {"q_norm": 0.35}
"""Scores that nothing scales are so large that rounding alone moves the weights of keys."""
LOUD_BRANCHES = {"post_": 2.0, "model.norm": 7.0}

GEMMA4: dict[str, Any] = {
    **GEMMA, "rope_theta": None, "num_hidden_layers": 5, "head_dim": 24, "global_head_dim": 32,
    "num_global_key_value_heads": 1, "attention_k_eq_v": True, "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0, "num_kv_shared_layers": 0, "final_logit_softcapping": 6.0,
    "enable_moe_block": False, "use_double_wide_mlp": False, "num_experts": None, "top_k_experts": None,
    "layer_types": [*["sliding_attention"] * 2, "full_attention", "sliding_attention", "full_attention"],
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
    },
}  # fmt: skip

DEEP: dict[str, Any] = {
    **GEMMA, "hidden_size": 32, "intermediate_size": 40, "head_dim": 12, "query_pre_attn_scalar": 8,
}  # fmt: skip
"""Models with the layers of a 27B scale scores by hidden size over heads."""

RECIPES = [
    Recipe(
        "gemma2",
        "Gemma2ForCausalLM",
        dense(
            "gemma2", **GEMMA, query_pre_attn_scalar=32, attn_logit_softcapping=3.0, num_hidden_layers=4,
            final_logit_softcapping=8.0, cache_implementation="hybrid",
        ),
        gains=SMALL_EMBEDDING,
        means=LOUD_BRANCHES,
    ),
    Recipe(
        "gemma3",
        "Gemma3ForCausalLM",
        dense(
            "gemma3_text", **GEMMA, query_pre_attn_scalar=32, num_hidden_layers=6,
            rope_scaling={"factor": 3.0, "rope_type": "linear"}, rope_local_base_freq=2e3,
            sliding_window_pattern=6, rope_theta=3e4,
        ),
        gains=SMALL_EMBEDDING,
        means=LOUD_BRANCHES,
    ),
    Recipe(
        "gemma2-46",
        "Gemma2ForCausalLM",
        dense(
            "gemma2", **DEEP, num_hidden_layers=46, attn_logit_softcapping=3.0, final_logit_softcapping=8.0
        ),
        answer=8,
        gains=SMALL_EMBEDDING,
        means=LOUD_BRANCHES,
    ),
    Recipe(
        "gemma3-62",
        "Gemma3ForCausalLM",
        dense(
            "gemma3_text", **DEEP, num_hidden_layers=62, rope_theta=1e6, rope_local_base_freq=1e4,
            sliding_window_pattern=6,
        ),
        answer=8,
        gains=SMALL_EMBEDDING,
        means=LOUD_BRANCHES,
    ),
    Recipe(
        "gemma4",
        "Gemma4ForCausalLM",
        dense("gemma4_text", **GEMMA4, moe_intermediate_size=None),
        gains=SMALL_EMBEDDING,
        means=LOUD_BRANCHES,
    ),
    Recipe(
        "gemma4-moe",
        "Gemma4ForCausalLM",
        dense(
            "gemma4_text",
            **GEMMA4 | {
                "enable_moe_block": True, "num_experts": 6, "top_k_experts": 2, "num_hidden_layers": 4,
                "head_dim": 32, "global_head_dim": 64, "layer_types": GEMMA4["layer_types"][1:],
            },
            moe_intermediate_size=40,
        ),
        answer=32,
        gains=SMALL_EMBEDDING | SMALL_SCORES,
        means=LOUD_BRANCHES | {"model.norm": 2.0},
    ),
    Recipe(
        "gemma4-e",
        "Gemma4ForCausalLM",
        dense(
            "gemma4_text",
            **GEMMA4 | {
                "num_hidden_layers": 7, "num_kv_shared_layers": 3, "attention_k_eq_v": False,
                "num_global_key_value_heads": None, "hidden_size_per_layer_input": 16,
                "vocab_size_per_layer_input": VOCAB, "use_double_wide_mlp": True, "intermediate_size": 56,
                "layer_types": [*["sliding_attention"] * 3, "full_attention", *GEMMA4["layer_types"][:3]],
            },
            moe_intermediate_size=None,
        ),
        gains=SMALL_EMBEDDING,
        means=LOUD_BRANCHES | {"model.norm": 2.0},
    ),
    Recipe(
        "muse-glimmer",
        "MuseGlimmerForConditionalGeneration",
        {
            "model_type": "muse_glimmer",
            "text_config": dense(
                "muse_glimmer_text", head_dim=32, num_hidden_layers=5, sliding_window=WINDOW, hidden_act=None,
                hidden_activation="silu", final_logit_softcapping=6.0, output_multiplier=0.7,
                qk_scale_factor=1.9, post_norm_eps=1e-8,
                layer_types=["full_attention", *["sliding_attention"] * 3, "full_attention"],
            ),
            "vision_config": {
                "model_type": "muse_glimmer_vision", "hidden_size": 16, "intermediate_size": 16,
                "num_hidden_layers": 1, "num_attention_heads": 1, "patch_size": 4,
            },
            "image_token_id": 3, "video_token_id": 4, "out_hidden_size": 64, "projector_hidden_size": 16,
            "tie_word_embeddings": False,
        },
    ),
]  # fmt: skip
