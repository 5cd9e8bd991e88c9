"""Pre-norm, gated decoders: llama and those that add scales, rotations or biases to it."""

from tests.golden.family_recipes.recipe import Recipe, dense

RECIPES = [
    Recipe("llama", "LlamaForCausalLM", dense("llama", head_dim=24)),
    Recipe(
        "granite",
        "GraniteForCausalLM",
        dense(
            "granite", embedding_multiplier=3.5, residual_multiplier=0.35, attention_multiplier=0.11,
            logits_scaling=1.75, tie_word_embeddings=True,
        ),
    ),
]  # fmt: skip
