"""llama.cpp's architectures of which some layers keep a state instead of keys and values.

Facts of llama.cpp's converter and ``src/models``, as in ``architectures``.
"""

from __future__ import annotations

from dataclasses import replace

from twostroke.checkpoints.gguf.architecture import (
    EXPERTS,
    GRANITE_SCALES,
    LAYER,
    MLP,
    ROUTED,
    SHARED,
    SHARED_EXPERTS,
    Architecture,
    without,
)

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
    integers=SHARED_EXPERTS,
    layer={
        **without(LAYER, *MLP, "ffn_norm"),
        **_DELTA,
        **ROUTED,
        **SHARED,
        "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    },
)
_QWEN3_NEXT = replace(
    _QWEN35_MOE,
    model_type="qwen3_next",
    layer={
        **without(_QWEN35_MOE.layer, "ssm_alpha", "ssm_beta"),
        "ssm_ba": "linear_attn.in_proj_ba",
    },
)

_MAMBA = {
    "ssm_in": "mamba.in_proj",
    "ssm_conv1d": "mamba.conv1d",
    "ssm_dt": "mamba.dt_bias",
    "ssm_a": "mamba.A_log",
    "ssm_d": "mamba.D",
    "ssm_norm": "mamba.norm",
    "ssm_out": "mamba.out_proj",
}
_MAMBA_BIASES = {"mamba_conv_bias": "ssm_conv1d.bias", "mamba_proj_bias": "ssm_in.bias"}
_FEED_FORWARD = {name: target.replace("mlp", "feed_forward") for name, target in MLP.items()}
_GRANITE = Architecture(
    model_type="granitemoehybrid",
    integers={
        "num_local_experts": "expert_count",
        "num_experts_per_tok": "expert_used_count",
        "shared_intermediate_size": "expert_shared_feed_forward_length",
    },
    numbers=GRANITE_SCALES,
    stated={"num_local_experts": 0},
    flag_tensors={**_MAMBA_BIASES, "attention_bias": "attn_q.bias"},
    layer={
        **without(LAYER, *MLP),
        **_MAMBA,
        "ffn_down": "shared_mlp.output_linear",
        "ffn_down_shexp": "shared_mlp.output_linear",
        "ffn_gate_inp": "block_sparse_moe.router.layer",
        "ffn_down_exps": "block_sparse_moe.output_linear",
    },
    pairs={
        ("ffn_gate", "ffn_up"): "shared_mlp.input_linear.weight",
        ("ffn_gate_shexp", "ffn_up_shexp"): "shared_mlp.input_linear.weight",
        ("ffn_gate_exps", "ffn_up_exps"): "block_sparse_moe.input_linear.weight",
    },
    taps=("ssm_conv1d",),
    unattending="mamba",
    mamba=True,
    interleaved=True,
)
BAMBA = Architecture(  # of granitehybrid without a shared MLP
    model_type="bamba",
    flag_tensors={**_MAMBA_BIASES, "attention_bias": "attn_q.bias", "mlp_bias": "ffn_up.bias"},
    layer={**LAYER, **_MAMBA, **_FEED_FORWARD, "ffn_norm": "pre_ff_layernorm"},
    ends={
        "token_embd": "model.embed_tokens",
        "output_norm": "model.final_layernorm",
        "output": "lm_head",
    },
    taps=("ssm_conv1d",),
    unattending="mamba",
    mamba=True,
    interleaved=True,
)
_FALCON_H1 = replace(
    BAMBA,
    model_type="falcon_h1",
    flag_tensors={**_MAMBA_BIASES, "mamba_rms_norm": "ssm_norm.weight"},
    unattending="",
    interleaved=False,
)

_BACKBONE_ENDS = {
    "token_embd": "backbone.embeddings",
    "output_norm": "backbone.norm_f",
    "output": "lm_head",
}
_MIXER = {name: target.replace("mamba.", "mixer.") for name, target in _MAMBA.items()}
_MIXER_BIASES = {"use_conv_bias": "ssm_conv1d.bias", "use_bias": "ssm_in.bias"}
_MAMBA2 = Architecture(
    model_type="mamba2",
    flag_tensors=_MIXER_BIASES,
    layers="backbone.layers.{}.",
    layer={"attn_norm": "norm", **_MIXER},
    ends=_BACKBONE_ENDS,
    taps=("ssm_conv1d",),
    attends=False,
    mamba=True,
    norm_eps=("layer_norm_epsilon", "attention.layer_norm_rms_epsilon"),
)
_NEMOTRON_H = replace(
    _MAMBA2,
    model_type="nemotron_h",
    flag_tensors={**_MIXER_BIASES, "mlp_bias": "ffn_up.bias"},
    layer={
        **_MAMBA2.layer,
        "attn_q": "mixer.q_proj",
        "attn_k": "mixer.k_proj",
        "attn_v": "mixer.v_proj",
        "attn_output": "mixer.o_proj",
        "ffn_up": "mixer.up_proj",
        "ffn_down": "mixer.down_proj",
    },
    attends=True,
    unattending="mamba",
    feeding="mlp",
    interleaved=True,
    norm_eps=(
        "layer_norm_epsilon",
        "attention.layer_norm_epsilon",
        "attention.layer_norm_rms_epsilon",
    ),
)
_NEMOTRON_H_MOE = replace(
    _NEMOTRON_H,
    integers={
        **without(EXPERTS, "num_experts"),
        "n_routed_experts": "expert_count",
        "n_shared_experts": "expert_shared_count",
        "moe_shared_expert_intermediate_size": "expert_shared_feed_forward_length",
        "moe_latent_size": "moe_latent_size",
    },
    layer={
        **without(_NEMOTRON_H.layer, "ffn_up", "ffn_down"),
        "ffn_gate_inp": "mixer.gate",
        "exp_probs_b": "mixer.gate.e_score_correction_bias",
        "ffn_up_exps": "mixer.experts.{}.up_proj",
        "ffn_down_exps": "mixer.experts.{}.down_proj",
        "ffn_up_shexp": "mixer.shared_experts.up_proj",
        "ffn_down_shexp": "mixer.shared_experts.down_proj",
        "ffn_latent_down": "mixer.fc1_latent_proj",
        "ffn_latent_up": "mixer.fc2_latent_proj",
    },
    feeding="moe",
    sigmoid=True,
)

_LFM2 = Architecture(
    model_type="lfm2",
    integers={"conv_L_cache": "shortconv.l_cache"},
    stated={"block_auto_adjust_ff_dim": False},
    layer={
        **LAYER,
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
    },
    ends={
        "token_embd": "model.embed_tokens",
        "token_embd_norm": "model.embedding_norm",
        "output": "lm_head",
    },
    taps=("shortconv.conv",),
    unattending="conv",
    norm_eps=("norm_eps", "attention.layer_norm_rms_epsilon"),
)
HYBRID_ARCHITECTURES = {
    "granitehybrid": _GRANITE,
    "qwen35": _QWEN35,
    "qwen35moe": _QWEN35_MOE,
    "qwen3next": _QWEN3_NEXT,
    "lfm2": _LFM2,
    "falcon-h1": _FALCON_H1,
    "mamba2": _MAMBA2,
    "nemotron_h": _NEMOTRON_H,
    "nemotron_h_moe": _NEMOTRON_H_MOE,
}
