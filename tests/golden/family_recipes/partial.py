"""Phi, GLM and Hunyuan: fused tensors, partial and scaled rotations, norms in other places."""

from tests.golden.family_recipes.recipe import Recipe, dense

LONG = {
    "type": "longrope",
    "short_factor": [1.0, 1.05, 1.1, 1.3, 1.6, 2.0, 2.2, 2.5],
    "long_factor": [1.0, 1.4, 2.1, 3.0, 4.2, 6.0, 9.0, 14.0],
}

RECIPES = [
    Recipe(
        "phi3",
        "Phi3ForCausalLM",
        dense("phi3", original_max_position_embeddings=256, rope_scaling=None, sliding_window=None),
    ),
    Recipe(
        "phi3-longrope",
        "Phi3ForCausalLM",
        dense("phi3", original_max_position_embeddings=16, rope_scaling=LONG, sliding_window=None),
        seed=5,
    ),
    Recipe(
        "phi3-partial",
        "Phi3ForCausalLM",
        dense(
            "phi3", original_max_position_embeddings=256, sliding_window=None, tie_word_embeddings=True,
            partial_rotary_factor=0.75,
            rope_scaling={
                "type": "longrope",
                "short_factor": LONG["short_factor"][:6],
                "long_factor": LONG["long_factor"][:6],
            },
        ),
        gains={"embed_tokens": 0.5},
    ),
    Recipe(
        "glm4",
        "Glm4ForCausalLM",
        dense("glm4", head_dim=32, partial_rotary_factor=0.5, attention_bias=True),
    ),
    Recipe(
        "hunyuan-dense",
        "HunYuanDenseV1ForCausalLM",
        dense("hunyuan_v1_dense", head_dim=32, use_qk_norm=True, tie_word_embeddings=True),
        gains={"embed_tokens": 0.5},
    ),
]  # fmt: skip
