"""A tiny configuration of each family, with what sets it apart."""

from __future__ import annotations

from typing import Any

from tests.checkpoints import LLAMA3_ROPE, tiny_config

YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
DELTA = {
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
}
LATENT = {
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "moe_intermediate_size": 24,
    "num_experts_per_tok": 3,
    "kv_lora_rank": 20,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 10,
    "v_head_dim": 12,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": tiny_config("llama"),
    "llama-tied-llama3-rope": tiny_config(
        "llama", rope_parameters=LLAMA3_ROPE, tie_word_embeddings=True
    ),
    "llama-linear-rope-biases": tiny_config(
        "llama",
        rope_scaling={"type": "linear", "factor": 2.0},
        attention_bias=True,
        mlp_bias=True,
        head_dim=16,
    ),
    "llama-one-kv-head": tiny_config("llama", num_key_value_heads=1),
    "llama-all-kv-heads": tiny_config("llama", num_key_value_heads=4),
    "mistral-window": tiny_config("mistral", sliding_window=7),
    "mistral-no-window": tiny_config("mistral", sliding_window=None),
    "qwen2-tied-yarn": tiny_config("qwen2", rope_parameters=YARN_ROPE, tie_word_embeddings=True),
    "qwen2-window-above": tiny_config(
        "qwen2", use_sliding_window=True, sliding_window=5, max_window_layers=1
    ),
    "qwen3": tiny_config("qwen3", head_dim=12),
    "phi3": tiny_config("phi3", sliding_window=7, pad_token_id=0),
    "phi4-partial": tiny_config("phi3", partial_rotary_factor=0.5, head_dim=16, pad_token_id=0),
    "granite": tiny_config(
        "granite",
        attention_multiplier=0.2,
        residual_multiplier=0.3,
        embedding_multiplier=3.0,
        logits_scaling=2.5,
        tie_word_embeddings=True,
    ),
    "olmo2": tiny_config("olmo2"),
    "olmo3": tiny_config("olmo3", num_hidden_layers=4, sliding_window=9),
    "olmo3-yarn": tiny_config(
        "olmo3",
        num_hidden_layers=4,
        sliding_window=9,
        rope_scaling={**YARN_ROPE, "attention_factor": 1.2},
    ),
    "smollm3": tiny_config("smollm3", num_hidden_layers=4, pad_token_id=0),
    "glm4": tiny_config("glm4", head_dim=16, attention_bias=True, pad_token_id=0),
    "cohere2": tiny_config(
        "cohere2",
        num_hidden_layers=4,
        sliding_window=9,
        layer_norm_eps=1e-5,
        logit_scale=0.5,
        tie_word_embeddings=True,
    ),
    "gemma2": tiny_config(
        "gemma2",
        head_dim=12,
        hidden_activation="gelu_pytorch_tanh",
        sliding_window=9,
        query_pre_attn_scalar=30,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0,
        tie_word_embeddings=True,
    ),
    "gemma3": tiny_config(
        "gemma3_text",
        num_hidden_layers=6,
        head_dim=12,
        hidden_activation="gelu_pytorch_tanh",
        sliding_window=9,
        query_pre_attn_scalar=30,
        tie_word_embeddings=True,
    ),
    "mixtral": tiny_config("mixtral", num_local_experts=6, sliding_window=7),
    "qwen2-moe": tiny_config(
        "qwen2_moe", **EXPERTS, shared_expert_intermediate_size=20, mlp_only_layers=[1]
    ),
    "qwen3-moe": tiny_config(
        "qwen3_moe", **EXPERTS, num_hidden_layers=3, decoder_sparse_step=2, norm_topk_prob=True
    ),
    "glm4-moe": tiny_config(
        "glm4_moe",
        head_dim=16,
        n_routed_experts=8,
        moe_intermediate_size=24,
        num_experts_per_tok=3,
        n_group=4,
        topk_group=2,
        routed_scaling_factor=1.7,
        use_qk_norm=True,
        attention_bias=True,
    ),
    "qwen3.5": tiny_config("qwen3_5_text", num_hidden_layers=5, **DELTA),
    "qwen3.5-moe": tiny_config(
        "qwen3_5_moe_text",
        num_hidden_layers=4,
        shared_expert_intermediate_size=20,
        **DELTA,
        **EXPERTS,
    ),
    "qwen3-next": tiny_config(
        "qwen3_next",
        num_hidden_layers=4,
        shared_expert_intermediate_size=20,
        **DELTA,
        **EXPERTS,
    ),
    "gpt-oss": tiny_config(
        "gpt_oss",
        head_dim=16,
        sliding_window=9,
        num_local_experts=5,
        num_experts_per_tok=2,
        rope_parameters={**YARN_ROPE, "truncate": False},
    ),
    "deepseek-v2": tiny_config(
        "deepseek_v2",
        **LATENT,
        q_lora_rank=None,
        n_group=4,
        topk_group=2,
        topk_method="group_limited_greedy",
        routed_scaling_factor=1.5,
        first_k_dense_replace=1,
    ),
    "deepseek-v3": tiny_config(
        "deepseek_v3",
        **LATENT,
        q_lora_rank=12,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        attention_bias=True,
        rope_scaling={**YARN_ROPE, "mscale": 1.0, "mscale_all_dim": 0.7},
    ),
    "granite-hybrid": tiny_config(
        "granitemoehybrid",
        num_hidden_layers=3,
        layer_types=["mamba", "attention", "mamba"],
        num_local_experts=0,
        shared_intermediate_size=40,
        mamba_n_heads=8,
        mamba_d_head=8,
        mamba_n_groups=2,
        mamba_d_state=12,
        attention_multiplier=0.3,
        residual_multiplier=0.4,
        embedding_multiplier=2.0,
        logits_scaling=1.5,
    ),
    "granite-hybrid-rope": tiny_config(
        "granitemoehybrid",
        num_hidden_layers=2,
        layer_types=["mamba", "attention"],
        num_local_experts=0,
        shared_intermediate_size=40,
        mamba_n_heads=4,
        mamba_d_head=16,
        mamba_d_state=12,
        mamba_proj_bias=True,
        position_embedding_type="rope",
        tie_word_embeddings=True,
    ),
    "gemma3-linear": tiny_config(
        "gemma3_text",
        num_hidden_layers=6,
        head_dim=12,
        hidden_activation="gelu_pytorch_tanh",
        sliding_window=9,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
        rope_local_base_freq=1000.0,
        tie_word_embeddings=True,
    ),
}
