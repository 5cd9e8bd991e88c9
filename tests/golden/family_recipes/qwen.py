"""Qwen: dense and with experts."""

from tests.golden.family_recipes.recipe import Recipe, dense

RECIPES = [
    Recipe(
        "qwen3moe",
        "Qwen3MoeForCausalLM",
        dense(
            "qwen3_moe", head_dim=24, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=40,
            norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[], rms_norm_eps=1e-6,
            router_aux_loss_coef=0.001, use_sliding_window=False,
        ),
    ),
]  # fmt: skip
