"""Qwen with experts, and the text side of those that see."""

from typing import Any

from tests.golden.family_recipes.recipe import Recipe, dense

SEES: dict[str, Any] = {
    "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 1, "out_hidden_size": 64,
    "patch_size": 4, "spatial_merge_size": 1, "temporal_patch_size": 2, "deepstack_visual_indexes": [0],
    "num_position_embeddings": 16, "in_channels": 3, "hidden_act": "gelu_pytorch_tanh",
}  # fmt: skip
THREE_AXES = {"rope_type": "default", "mrope_section": [6, 5, 5], "mrope_interleaved": True}
EXPERTS: dict[str, Any] = {
    "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "norm_topk_prob": True,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "router_aux_loss_coef": 0.001,
}  # fmt: skip


def seeing(model_type: str, **text: Any) -> dict[str, Any]:
    """A config of a model that sees, whose text side has the shared sizes."""
    inner = dense(f"{model_type}_text", head_dim=32, rope_scaling=THREE_AXES, **text)
    return {
        "model_type": model_type,
        "text_config": inner,
        "vision_config": {**SEES, "model_type": model_type},
        "tie_word_embeddings": False,
        "image_token_id": 3,
        "video_token_id": 4,
        "vision_start_token_id": 1,
        "vision_end_token_id": 2,
    }


QWEN2MOE = dense(
    "qwen2_moe", attention_bias=None, **EXPERTS | {"norm_topk_prob": False},
    shared_expert_intermediate_size=56, use_sliding_window=False, qkv_bias=True,
)  # fmt: skip

RECIPES = [
    Recipe("qwen2moe", "Qwen2MoeForCausalLM", QWEN2MOE),
    Recipe("qwen2moe-fused", "Qwen2MoeForCausalLM", QWEN2MOE, seed=22, converter={"fuse_qkv": True}),
    Recipe(
        "qwen3moe",
        "Qwen3MoeForCausalLM",
        dense("qwen3_moe", head_dim=32, use_sliding_window=False, **EXPERTS),
    ),
    Recipe(
        "qwen3moe-q8_0",
        "Qwen3MoeForCausalLM",
        dense(
            "qwen3_moe", head_dim=32, use_sliding_window=False, num_hidden_layers=2, tie_word_embeddings=True,
            **EXPERTS | {"moe_intermediate_size": 32},
        ),
        gains={"experts": 127 / 128, "embed_tokens": 0.5},
        experts="Q8_0",
    ),
    Recipe("qwen3vl", "Qwen3VLForConditionalGeneration", seeing("qwen3_vl")),
    Recipe(
        "qwen3vlmoe",
        "Qwen3VLMoeForConditionalGeneration",
        seeing("qwen3_vl_moe", **EXPERTS),
        transposed=("experts.gate_up_proj", "experts.down_proj"),
    ),
]  # fmt: skip
