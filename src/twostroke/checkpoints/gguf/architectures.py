"""llama.cpp's architectures in terms of Hugging Face's: fields of ``config.json``, tensor names.

Facts of llama.cpp's ``convert_hf_to_gguf.py`` and ``src/models``.
"""

from __future__ import annotations

from dataclasses import replace

from twostroke.checkpoints.gguf.architecture import (
    BIASES,
    ENDS,
    EXPERTS,
    GRANITE_SCALES,
    LAYER,
    ROUTED,
    SHARED,
    SHARED_EXPERTS,
    Architecture,
    without,
)
from twostroke.checkpoints.gguf.hybrid_architectures import BAMBA, HYBRID_ARCHITECTURES

_GEMMA = {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GEMMA4 = {
    **_GEMMA,
    "ffn_gate_inp": "router.proj",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
    "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
    "ffn_gate_up_exps": "experts.gate_up_proj",
    "ffn_down_exps": "experts.down_proj",
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
    "layer_output_scale": "layer_scalar",
}
_FUSED = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
_OLMO = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GLM = {
    "ffn_up": "mlp.gate_up_proj",
    "post_attention_norm": "post_self_attn_layernorm",
    "post_ffw_norm": "post_mlp_layernorm",
}
_GPT_OSS = {
    "attn_sinks": "self_attn.sinks",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_gate_inp": "mlp.router",
}
_CORRECTED = {
    **ROUTED,
    "exp_probs_b": "mlp.gate.e_score_correction_bias",
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
}
_DEEPSEEK = {
    **_CORRECTED,
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
}
_ROUTED_EXPERTS = {
    "first_k_dense_replace": "leading_dense_block_count",
    "n_routed_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "n_shared_experts": "expert_shared_count",
}
_WINDOW = {"sliding_window": "attention.sliding_window"}
_GEMMA2 = Architecture(
    model_type="gemma2",
    integers=_WINDOW,
    numbers={
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
    },
    stated={"hidden_activation": "gelu_pytorch_tanh"},
    layer={**LAYER, **_GEMMA},
    norm_shift=1.0,
    large_layers=46,
)
_GEMMA4_ROW = Architecture(
    model_type="gemma4_text",
    integers={
        **_WINDOW,
        "num_kv_shared_layers": "attention.shared_kv_layers",
        "num_experts": "expert_count",
        "top_k_experts": "expert_used_count",
        "moe_intermediate_size": "expert_feed_forward_length",
    },
    numbers={"final_logit_softcapping": "final_logit_softcapping"},
    stated={"hidden_activation": "gelu_pytorch_tanh"},
    flag_tensors={"enable_moe_block": "ffn_gate_inp.weight"},
    layer={**LAYER, **_GEMMA4},
    scales={"ffn_gate_inp": "router.scale", "ffn_down_exps": "router.per_expert_scale"},
    pairs={("ffn_gate_exps", "ffn_up_exps"): "experts.gate_up_proj"},
    ends={
        **ENDS,
        "per_layer_token_embd": "model.embed_tokens_per_layer",
        "per_layer_model_proj": "model.per_layer_model_projection",
        "per_layer_proj_norm": "model.per_layer_projection_norm",
    },
    gemma4=True,
)
_LLAMA4 = Architecture(
    model_type="llama4_text",
    integers={
        "num_local_experts": "expert_count",
        "num_experts_per_tok": "expert_used_count",
        "intermediate_size": "expert_feed_forward_length",
        "intermediate_size_mlp": "feed_forward_length",
        "interleave_moe_layer_step": "interleave_moe_layer_step",
    },
    stated={"attention_chunk_size": 8192, "floor_scale": 8192, "attn_scale": 0.1},
    flag_tensors={"attention_bias": "attn_q.bias"},
    layer={
        **{name: target.replace("mlp.", "feed_forward.") for name, target in LAYER.items()},
        **{name: target.replace("mlp.", "feed_forward.") for name, target in ROUTED.items()},
        **{name: target.replace("mlp.", "feed_forward.") for name, target in SHARED.items()},
        "ffn_gate_inp": "feed_forward.router",
    },
    unnormed_experts=128,
)
ARCHITECTURES = {
    "llama": Architecture(model_type="llama", flag_tensors=BIASES, interleaved=True),
    "qwen2": Architecture(model_type="qwen2"),
    "qwen3": Architecture(model_type="qwen3"),
    "qwen3moe": Architecture(
        model_type="qwen3_moe",
        integers=EXPERTS,
        stated={"norm_topk_prob": True},
        layer={**LAYER, **ROUTED},
    ),
    "gemma2": _GEMMA2,
    "gemma3": replace(
        _GEMMA2,
        model_type="gemma3_text",
        numbers={
            "rope_local_base_freq": "rope.freq_base_swa",
            "final_logit_softcapping": "final_logit_softcapping",
        },
        large_layers=62,
    ),
    "gemma4": _GEMMA4_ROW,
    "qwen2moe": Architecture(
        model_type="qwen2_moe",
        integers=SHARED_EXPERTS,
        stated={"norm_topk_prob": False},
        layer={
            **LAYER,
            **ROUTED,
            **SHARED,
            "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
        },
    ),
    "phi3": Architecture(
        model_type="phi3",
        integers=_WINDOW,
        layer={**without(LAYER, "ffn_gate"), **_FUSED},
        longrope=True,
    ),
    "olmo2": Architecture(
        model_type="olmo2",
        integers=_WINDOW,
        layer={**without(LAYER, "attn_norm", "ffn_norm"), **_OLMO},
    ),
    "granite": Architecture(
        model_type="granite", numbers=GRANITE_SCALES, flag_tensors=BIASES, interleaved=True
    ),
    "smollm3": Architecture(model_type="smollm3", flag_tensors=BIASES, interleaved=True),
    "cohere2": Architecture(
        model_type="cohere2",
        integers=_WINDOW,
        numbers={"logit_scale": "logit_scale"},
        layer=without(LAYER, "ffn_norm"),
        norm_eps=("layer_norm_eps", "attention.layer_norm_epsilon"),
    ),
    "glm4": Architecture(
        model_type="glm4", flag_tensors=BIASES, layer={**without(LAYER, "ffn_gate"), **_GLM}
    ),
    "glm4moe": Architecture(
        model_type="glm4_moe",
        integers=_ROUTED_EXPERTS,
        flag_tensors={"attention_bias": "attn_q.bias", "use_qk_norm": "attn_q_norm.weight"},
        layer={
            **without(LAYER, "ffn_norm"),
            **_CORRECTED,
            "post_attention_norm": "post_attention_layernorm",
        },
        sigmoid=True,
    ),
    "deepseek2": Architecture(
        model_type="deepseek_v3",  # or V2, which its fields tell
        integers={"q_lora_rank": "attention.q_lora_rank", **_ROUTED_EXPERTS},
        layer={**without(LAYER, "attn_k", "attn_v"), **_DEEPSEEK},
        latent=True,
    ),
    "llama4": _LLAMA4,
    "gpt-oss": Architecture(
        model_type="gpt_oss",
        integers={
            **_WINDOW,
            "num_local_experts": "expert_count",
            "num_experts_per_tok": "expert_used_count",
            "intermediate_size": "expert_feed_forward_length",
        },
        layer={**without(LAYER, "ffn_norm"), **ROUTED, **_GPT_OSS},
        truncated=False,
    ),
    **HYBRID_ARCHITECTURES,
}
MIXTRAL = Architecture(  # of llama with experts
    model_type="mixtral",
    integers={"num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"},
    layer={
        **LAYER,
        "ffn_gate_inp": "block_sparse_moe.gate",
        "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
        "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
        "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
    },
    interleaved=True,
)
ROWS = (*ARCHITECTURES.values(), MIXTRAL, BAMBA)
