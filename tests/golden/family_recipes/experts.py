"""Mixtures of experts outside Qwen and Gemma."""

import math
from typing import Any

from tests.golden.family_recipes.llama_like import GRANITE
from tests.golden.family_recipes.recipe import WINDOW, Recipe, dense

GLM4MOE: dict[str, Any] = {
    "head_dim": 32, "partial_rotary_factor": 0.5, "num_hidden_layers": 4, "attention_bias": True,
    "n_routed_experts": 6, "num_experts_per_tok": 2, "n_shared_experts": 2, "moe_intermediate_size": 40,
    "first_k_dense_replace": 1, "routed_scaling_factor": 1.7, "norm_topk_prob": True, "n_group": 1,
    "topk_group": 1, "num_nextn_predict_layers": 0,
}  # fmt: skip

WHOLE_RANGE_THETA = math.exp(32 * math.log(128 / (2 * math.pi)) / (2 * (7 - 1e-6)))
"""YaRN's correction range then ends a hair below 7: whether it is rounded, which no key says, is the same."""

GPT_OSS = dense(
    "gpt_oss", rope_theta=WHOLE_RANGE_THETA, head_dim=32, num_hidden_layers=4, sliding_window=WINDOW,
    attention_bias=True, num_local_experts=6, num_experts_per_tok=2, intermediate_size=64,
    swiglu_limit=7.0,
    rope_scaling={
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128,
        "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    },
)  # fmt: skip

CLAMPED = {"gate_up_proj": 4.0, "sinks": 4.0}
"""Large enough that many of the values meet the limit, and that sinks take their part."""

RECIPES = [
    Recipe(
        "llama-experts",
        "MixtralForCausalLM",
        dense(
            "mixtral", head_dim=32, num_local_experts=6, num_experts_per_tok=2, sliding_window=None,
            intermediate_size=40, router_aux_loss_coef=0.001,
        ),
    ),
    Recipe(
        "granitemoe",
        "GraniteMoeForCausalLM",
        dense(
            "granitemoe", **GRANITE, tie_word_embeddings=True, num_local_experts=6, num_experts_per_tok=2,
            intermediate_size=40,
        ),
    ),
    Recipe(
        "granitemoe-shared",
        "GraniteMoeSharedForCausalLM",
        dense(
            "granitemoeshared", **GRANITE, num_local_experts=6, num_experts_per_tok=3, intermediate_size=40,
            shared_intermediate_size=56,
        ),
    ),
    Recipe("glm4moe", "Glm4MoeForCausalLM", dense("glm4_moe", **GLM4MOE, use_qk_norm=True)),
    Recipe(
        "glm4moe-groups",
        "Glm4MoeForCausalLM",
        dense("glm4_moe", **GLM4MOE | {"n_group": 3, "topk_group": 2}, use_qk_norm=False),
    ),
    Recipe(
        "glm4moe-predicts",
        "Glm4MoeForCausalLM",
        dense(
            "glm4_moe", **GLM4MOE | {"head_dim": 24, "num_hidden_layers": 2, "num_nextn_predict_layers": 1}
        ),
    ),
    Recipe("gpt-oss", "GptOssForCausalLM", GPT_OSS, seed=4, gains=CLAMPED, means={"sinks": 1.0}),
    Recipe(
        "gpt-oss-mxfp4",
        "GptOssForCausalLM",
        GPT_OSS | {"num_hidden_layers": 2},
        gains=CLAMPED,
        means={"sinks": 1.0},
        experts="MXFP4",
    ),
    Recipe(
        "ernie4_5-moe",
        "Ernie4_5_MoeForCausalLM",
        dense(
            "ernie4_5_moe", use_bias=False, moe_num_experts=6, moe_k=2, intermediate_size=96,
            moe_intermediate_size=24, moe_num_shared_experts=2, moe_layer_start_index=1,
            moe_layer_end_index=3,
            moe_layer_interval=1, num_hidden_layers=4, moe_use_aux_free=True,
        ),
    ),
    Recipe(
        "hunyuan-moe",
        "HunYuanMoEV1ForCausalLM",
        dense(
            "hunyuan_v1_moe", num_experts=6, moe_topk=[2, 2, 2], num_shared_expert=[1, 1, 1],
            moe_intermediate_size=[40, 40, 40], intermediate_size=40, use_qk_norm=True, head_dim=32,
            use_mixed_mlp_moe=True,
        ),
    ),
]  # fmt: skip
