"""Gemma 2 to 4: norms around each branch, windows, soft-caps."""

from tests.golden.family_recipes.recipe import WINDOW, Recipe, dense

GEMMA = {
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_act": None,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-6,
}
SMALL_EMBEDDING = {"embed_tokens": 0.25}
"""With tied weights a large one repeats the last token for ever."""
LOUD_BRANCHES = {"post_": 2.0, "model.norm": 7.0}

RECIPES = [
    Recipe(
        "gemma2",
        "Gemma2ForCausalLM",
        dense(
            "gemma2", **GEMMA, head_dim=24, query_pre_attn_scalar=24, sliding_window=WINDOW,
            attn_logit_softcapping=3.0, final_logit_softcapping=8.0, cache_implementation="hybrid",
            num_hidden_layers=4,
        ),
        gains=SMALL_EMBEDDING,
        means=LOUD_BRANCHES,
    ),
]  # fmt: skip
