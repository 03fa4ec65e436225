"""llama.cpp's architectures in terms of Hugging Face's: fields of ``config.json``, tensor names.

Facts of llama.cpp's ``convert_hf_to_gguf.py`` and ``src/models``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

# Tensors outside the layers.
ENDS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}
MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
# Of a layer, as Llama names them.
LAYER = {**ATTENTION, **MLP, "ffn_norm": "post_attention_layernorm"}
_LFM2_ENDS = {
    "token_embd": "model.embed_tokens",
    "token_embd_norm": "model.embedding_norm",
    "output": "lm_head",
}
_LFM2 = {
    "attn_norm": "operator_norm",
    "attn_output": "self_attn.out_proj",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "feed_forward.w1",
    "ffn_up": "feed_forward.w3",
    "ffn_down": "feed_forward.w2",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.conv": "conv.conv",
    "shortconv.out_proj": "conv.out_proj",
}
_GEMMA = {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
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
_QWEN_SHARED = {
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
_GPT_OSS = {
    "attn_sinks": "self_attn.sinks",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_gate_inp": "mlp.router",
}
_QWEN_EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
}

_DEEPSEEK = {
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "exp_probs_b": "mlp.gate.e_score_correction_bias",
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
}

_DELTA = {
    "post_attention_norm": "post_attention_layernorm",
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_dt": "linear_attn.dt_bias",
    "ssm_a": "linear_attn.A_log",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}

_GRANITE_HYBRID = {
    "ssm_in": "mamba.in_proj",
    "ssm_conv1d": "mamba.conv1d",
    "ssm_dt": "mamba.dt_bias",
    "ssm_a": "mamba.A_log",
    "ssm_d": "mamba.D",
    "ssm_norm": "mamba.norm",
    "ssm_out": "mamba.out_proj",
    "ffn_down": "shared_mlp.output_linear",
    "ffn_down_shexp": "shared_mlp.output_linear",
    "ffn_gate_inp": "block_sparse_moe.router.layer",
    "ffn_down_exps": "block_sparse_moe.output_linear",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """How one of them becomes a ``model_type``.

    Attributes:
        integers, numbers: Fields of ``config.json`` beside those of all, and their keys, less the
            architecture's name. A key that is missing states nothing.
        stated: What every model of it has in its ``config.json``.
        layer: Names of a layer's tensors; ``{}`` is the index of an expert, whose tensors lie in
            one.
        ends: Names of the tensors outside the layers.
        taps: Names in files of a convolution's weights, which lack the dimension of one input.
        unattending: Kind, in ``layer_types``, of layers that have no key-value heads by the file's
            list of their numbers; empty: it has no list.
        latent: Attention is DeepSeek's; see ``latent_models``.
        delta: Some layers have linear attention; see ``delta_models``.
        mamba: Some layers are Mamba-2; see ``mamba_models``.
        longrope: It may have factors for short and for long contexts, one for each frequency.
        interleaved: Rows of queries and keys are reordered, so that pairs that rotate are
            neighbours.
        norm_shift: What was added to the weights of norms.
        biases: It has ``attention_bias`` and ``mlp_bias``, which the tensors tell.
        large_layers: A model of this many layers divides scores by the root of hidden size over
            heads, others of a head's size (Gemma).
        norm_eps: Field and key of the norms' epsilon.
        truncated: Where yarn begins and ends is rounded to whole frequencies.
    """

    model_type: str
    integers: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, str] = field(default_factory=dict)
    stated: Mapping[str, object] = field(default_factory=dict)
    layer: Mapping[str, str] = field(default_factory=lambda: LAYER)
    ends: Mapping[str, str] = field(default_factory=lambda: ENDS)
    taps: tuple[str, ...] = ()
    unattending: str = ""
    latent: bool = False
    delta: bool = False
    mamba: bool = False
    longrope: bool = False
    interleaved: bool = False
    norm_shift: float = 0.0
    biases: bool = False
    large_layers: int = 0
    norm_eps: tuple[str, str] = ("rms_norm_eps", "attention.layer_norm_rms_epsilon")
    truncated: bool = True


def without(names: Mapping[str, str], *dropped: str) -> dict[str, str]:
    return {name: target for name, target in names.items() if name not in dropped}


_WINDOW = {"sliding_window": "attention.sliding_window"}
_EXPERTS = {
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
}
_SHARED_EXPERTS = {
    **_EXPERTS,
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
}
_QWEN35 = Architecture(
    model_type="qwen3_5_text",
    layer={**without(LAYER, "ffn_norm"), **_DELTA},
    taps=("ssm_conv1d",),
    delta=True,
    norm_shift=1.0,
)
_QWEN35_MOE = replace(
    _QWEN35,
    model_type="qwen3_5_moe_text",
    integers=_SHARED_EXPERTS,
    layer={**without(LAYER, *MLP, "ffn_norm"), **_DELTA, **_QWEN_EXPERTS, **_QWEN_SHARED},
)
_QWEN3_NEXT = replace(
    _QWEN35_MOE,
    model_type="qwen3_next",
    layer={
        **without(_QWEN35_MOE.layer, "ssm_alpha", "ssm_beta"),
        "ssm_ba": "linear_attn.in_proj_ba",
    },
)
_GRANITE_SCALES = {
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}
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
ARCHITECTURES = {
    "llama": Architecture(model_type="llama", interleaved=True, biases=True),
    "qwen2": Architecture(model_type="qwen2"),
    "qwen3": Architecture(model_type="qwen3"),
    "qwen3moe": Architecture(
        model_type="qwen3_moe",
        integers=_EXPERTS,
        stated={"norm_topk_prob": True},
        layer={**LAYER, **_QWEN_EXPERTS},
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
    "qwen2moe": Architecture(
        model_type="qwen2_moe",
        integers=_SHARED_EXPERTS,
        stated={"norm_topk_prob": False},
        layer={**LAYER, **_QWEN_EXPERTS, **_QWEN_SHARED},
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
        model_type="granite",
        numbers=_GRANITE_SCALES,
        interleaved=True,
        biases=True,
    ),
    "granitehybrid": Architecture(
        model_type="granitemoehybrid",
        integers={
            "mamba_d_conv": "ssm.conv_kernel",
            "mamba_d_state": "ssm.state_size",
            "mamba_n_groups": "ssm.group_count",
            "num_local_experts": "expert_count",
            "num_experts_per_tok": "expert_used_count",
            "shared_intermediate_size": "expert_shared_feed_forward_length",
        },
        numbers=_GRANITE_SCALES,
        stated={"num_local_experts": 0},
        layer={**without(LAYER, "ffn_gate", "ffn_up"), **_GRANITE_HYBRID},
        taps=("ssm_conv1d",),
        unattending="mamba",
        mamba=True,
        interleaved=True,
    ),
    "smollm3": Architecture(model_type="smollm3", interleaved=True, biases=True),
    "cohere2": Architecture(
        model_type="cohere2",
        integers=_WINDOW,
        numbers={"logit_scale": "logit_scale"},
        layer=without(LAYER, "ffn_norm"),
        norm_eps=("layer_norm_eps", "attention.layer_norm_epsilon"),
    ),
    "glm4": Architecture(
        model_type="glm4", layer={**without(LAYER, "ffn_gate"), **_GLM}, biases=True
    ),
    "qwen35": _QWEN35,
    "qwen35moe": _QWEN35_MOE,
    "qwen3next": _QWEN3_NEXT,
    "deepseek2": Architecture(
        model_type="deepseek_v3",  # or V2, which its fields tell
        integers={
            "q_lora_rank": "attention.q_lora_rank",
            "first_k_dense_replace": "leading_dense_block_count",
            "n_routed_experts": "expert_count",
            "num_experts_per_tok": "expert_used_count",
            "moe_intermediate_size": "expert_feed_forward_length",
            "n_shared_experts": "expert_shared_count",
        },
        layer={**without(LAYER, "attn_k", "attn_v"), **_QWEN_EXPERTS, **_DEEPSEEK},
        latent=True,
    ),
    "lfm2": Architecture(
        model_type="lfm2",
        integers={"conv_L_cache": "shortconv.l_cache"},
        stated={"block_auto_adjust_ff_dim": False},
        layer={**LAYER, **_LFM2},
        ends=_LFM2_ENDS,
        taps=("shortconv.conv",),
        unattending="conv",
        norm_eps=("norm_eps", "attention.layer_norm_rms_epsilon"),
    ),
    "gpt-oss": Architecture(
        model_type="gpt_oss",
        integers={
            **_WINDOW,
            "num_local_experts": "expert_count",
            "num_experts_per_tok": "expert_used_count",
            "intermediate_size": "expert_feed_forward_length",
        },
        layer={**without(LAYER, "ffn_norm"), **_QWEN_EXPERTS, **_GPT_OSS},
        truncated=False,
    ),
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
