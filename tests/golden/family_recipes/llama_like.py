"""Pre-norm, gated decoders: llama and those that add scales, rotations or biases to it."""

from typing import Any

from tests.golden.family_recipes.recipe import Recipe, dense

GRANITE = {
    "embedding_multiplier": 3.5,
    "residual_multiplier": 0.35,
    "attention_multiplier": 0.11,
    "logits_scaling": 1.75,
}

MINISTRAL: dict[str, Any] = {"head_dim": 32, "rope_theta": None, "sliding_window": None}
SCALED: dict[str, Any] = {
    "type": "yarn", "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 1.0,
    "beta_slow": 0.1, "original_max_position_embeddings": 32, "max_position_embeddings": 256,
    "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.4,
}  # fmt: skip

INTERNLM2_NAMES = {
    "model.embed_tokens": "model.tok_embeddings",
    "lm_head": "output",
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
}


def internlm2_tensors(tensors: dict[str, Any]) -> dict[str, Any]:
    """Llama's tensors as InternLM 2 has them: of each KV head its two queries, its key and its value."""
    import torch

    result = {}
    for name, tensor in tensors.items():
        if "q_proj" in name:
            key, value = (tensors[name.replace("q_proj", other)] for other in ("k_proj", "v_proj"))
            groups = [part.reshape(2, -1, 16, 64) for part in (tensor, key, value)]
            joined = name.replace("self_attn.q_proj", "attention.wqkv")
            result[joined] = torch.cat(groups, 1).reshape(-1, 64).contiguous()
        elif "k_proj" not in name and "v_proj" not in name:
            for ours, theirs in INTERNLM2_NAMES.items():
                name = name.replace(ours, theirs)
            result[name] = tensor
    return result


RECIPES = [
    Recipe("llama", "LlamaForCausalLM", dense("llama", head_dim=32)),
    Recipe(
        "internlm2",
        "LlamaForCausalLM",
        dense("llama"),
        seed=30,
        converted=dense("internlm2", architectures=["InternLM2ForCausalLM"]),
        renamed=internlm2_tensors,
    ),
    Recipe("granite", "GraniteForCausalLM", dense("granite", **GRANITE, tie_word_embeddings=True)),
    Recipe(
        "granite-bias",
        "GraniteForCausalLM",
        dense("granite", **GRANITE, attention_bias=True, mlp_bias=True),
    ),
    Recipe(
        "granite-4",
        "GraniteMoeHybridForCausalLM",
        dense(
            "granitemoehybrid", **GRANITE, tie_word_embeddings=True, layer_types=["attention"] * 3,
            num_local_experts=0, num_experts_per_tok=0, shared_intermediate_size=88,
            position_embedding_type="rope", mamba_n_heads=32, mamba_n_groups=1, mamba_d_state=16,
            mamba_d_head=4, mamba_d_conv=4, mamba_expand=2, mamba_chunk_size=256, mamba_conv_bias=True,
        ),
    ),
    Recipe(
        "smollm3",
        "SmolLM3ForCausalLM",
        dense(
            "smollm3", num_hidden_layers=5, no_rope_layers=[1, 1, 1, 0, 1], no_rope_layer_interval=4,
            tie_word_embeddings=True, use_sliding_window=False, sliding_window=None, mlp_bias=False,
        ),
        gains={"embed_tokens": 0.5},
    ),
    Recipe("mistral3", "Ministral3ForCausalLM", dense("ministral3", **MINISTRAL, rope_parameters=SCALED)),
    Recipe(
        "mistral3-magnitude",
        "Ministral3ForCausalLM",
        dense(
            "ministral3", **MINISTRAL | {"head_dim": 24}, rope_parameters={**SCALED, "mscale_all_dim": 0.5}
        ),
    ),
    Recipe(
        "seed_oss",
        "SeedOssForCausalLM",
        dense("seed_oss", head_dim=32, attention_bias=True, attention_out_bias=False, mlp_bias=False),
    ),
    Recipe(
        "ernie4_5",
        "Ernie4_5ForCausalLM",
        dense("ernie4_5", head_dim=32, use_bias=False, tie_word_embeddings=True),
        gains={"embed_tokens": 0.5},
    ),
    Recipe(
        "minicpm",
        "GraniteForCausalLM",
        dense(
            "granite", embedding_multiplier=3.0, residual_multiplier=0.5, attention_multiplier=0.25,
            logits_scaling=2.0, num_hidden_layers=4,
        ),
        converted=dense(
            "minicpm", architectures=["MiniCPMForCausalLM"], scale_emb=3.0, scale_depth=1.0,
            dim_model_base=32, num_hidden_layers=4,
        ),
    ),
]  # fmt: skip
