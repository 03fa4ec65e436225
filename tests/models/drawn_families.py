"""Configurations drawn at random within what each family's ``config.json`` allows."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from tests.checkpoints import LLAMA3_ROPE, tiny_config
from tests.models.tiny_families import YARN_ROPE

NUM_DRAWN = 200


def drawn_config(number: int) -> dict[str, Any]:
    """The configuration of a number; families take turns."""
    model_types = [*DRAWS]
    model_type, random = model_types[number % len(model_types)], Random(number)
    draw = DRAWS[model_type]
    if model_type == "llama" and number // len(model_types) % 2:  # the others stay as they were
        model_type, draw = "mamba2", _mamba2
    raw = tiny_config(model_type, **_sizes(random)) | draw(random)
    return {name: value for name, value in raw.items() if (name, value) != ("head_dim", None)}


def _sizes(random: Random) -> dict[str, Any]:
    kv_heads = random.choice([1, 2, 3])
    return {
        "hidden_size": random.choice([24, 48, 72]),
        "intermediate_size": random.choice([16, 40, 72]),
        "num_hidden_layers": random.randint(1, 5),
        "num_key_value_heads": kv_heads,
        "num_attention_heads": kv_heads * random.choice([1, 2, 4]),
        "head_dim": random.choice([8, 12, 16, 20]),
        "tie_word_embeddings": random.random() < 0.5,
        "rms_norm_eps": random.choice([1e-6, 1e-5]),
        "pad_token_id": 0,
    }


def _window(random: Random) -> dict[str, Any]:
    return {"sliding_window": random.randint(1, 20)}


def _base(random: Random) -> dict[str, Any]:
    """The rotation's base in ``rope_parameters``, scaled or not."""
    base = random.choice([1000.0, 10000.0, 500000.0])
    kinds: list[dict[str, Any]] = [{"rope_type": "default"}, YARN_ROPE, LLAMA3_ROPE]
    scaled = random.choice(kinds)
    return {"rope_parameters": {**scaled, "rope_theta": base}}


def _llama(random: Random) -> dict[str, Any]:
    biases = {"attention_bias": random.random() < 0.5, "mlp_bias": random.random() < 0.5}
    return {**_base(random), **biases}


def _mistral(random: Random) -> dict[str, Any]:
    return _base(random) | random.choice([_window(random), {"sliding_window": None}])


def _qwen2(random: Random) -> dict[str, Any]:
    above = {"use_sliding_window": True, "max_window_layers": random.randint(0, 5)}
    return random.choice([{}, above | _window(random)])


def _phi3(random: Random) -> dict[str, Any]:
    partial = {"head_dim": 16, "partial_rotary_factor": random.choice([0.5, 0.75, 1.0])}
    return _window(random) | partial


def _granite(random: Random) -> dict[str, Any]:
    return {
        "attention_multiplier": random.uniform(0.1, 0.5),
        "residual_multiplier": random.uniform(0.2, 1.0),
        "embedding_multiplier": random.uniform(1.0, 4.0),
        "logits_scaling": random.uniform(0.5, 4.0),
    }


def _layers(random: Random, kinds: list[str], least: str | None = None) -> dict[str, Any]:
    """``layer_types`` of any order, ``least`` among them."""
    drawn = [random.choice(kinds) for _ in range(random.randint(1, 5))]
    if least is not None:
        drawn[random.randrange(len(drawn))] = least
    return {"num_hidden_layers": len(drawn), "layer_types": drawn}


def _windows(random: Random) -> dict[str, Any]:
    return _window(random) | _layers(random, ["sliding_attention", "full_attention"])


def _smollm3(random: Random) -> dict[str, Any]:
    count = random.randint(1, 5)
    rotate = [random.randint(0, 1) for _ in range(count)]
    return {"num_hidden_layers": count, "no_rope_layers": rotate}


def _glm4(random: Random) -> dict[str, Any]:
    return {"head_dim": 16, "attention_bias": random.random() < 0.5}


def _cohere2(random: Random) -> dict[str, Any]:
    return {
        **_windows(random),
        "layer_norm_eps": 1e-5,
        "logit_scale": random.uniform(0.1, 1.0),
        "attention_bias": random.random() < 0.5,
    }


def _gemma(random: Random) -> dict[str, Any]:
    return {
        **_windows(random),
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": random.randint(4, 40),
    }


def _gemma2(random: Random) -> dict[str, Any]:
    caps = {
        "attn_logit_softcapping": random.choice([None, 2.0, 30.0]),
        "final_logit_softcapping": random.choice([None, 3.0, 20.0]),
    }
    return _gemma(random) | caps


def _experts(random: Random) -> dict[str, Any]:
    experts = random.randint(2, 9)
    return {
        "num_experts": experts,
        "num_experts_per_tok": random.randint(1, experts),
        "moe_intermediate_size": random.choice([8, 20, 24]),
    }


def _mixtral(random: Random) -> dict[str, Any]:
    experts = random.randint(2, 9)
    chosen = {"num_local_experts": experts, "num_experts_per_tok": random.randint(1, experts)}
    return chosen | random.choice([{}, _window(random)])


def _qwen_moe(random: Random) -> dict[str, Any]:
    return {
        **_experts(random),
        "decoder_sparse_step": random.randint(1, 3),
        "norm_topk_prob": random.random() < 0.5,
        "mlp_only_layers": random.sample(range(5), random.randint(0, 2)),
        "shared_expert_intermediate_size": random.choice([12, 20]),
    }


def _groups(random: Random) -> dict[str, Any]:
    """Routing over groups of experts, of which some are chosen first."""
    groups, size = random.choice([1, 2, 4]), random.choice([2, 3])
    chosen = random.randint(1, groups)
    return {
        "n_routed_experts": groups * size,
        "n_group": groups,
        "topk_group": chosen,
        "num_experts_per_tok": random.randint(1, chosen * size),
        "moe_intermediate_size": random.choice([8, 24]),
        "n_shared_experts": random.randint(1, 2),
        "routed_scaling_factor": random.uniform(0.5, 2.5),
        "norm_topk_prob": random.random() < 0.5,
        "first_k_dense_replace": random.randint(0, 2),
    }


def _glm4_moe(random: Random) -> dict[str, Any]:
    return _groups(random) | {
        "head_dim": 16,
        "use_qk_norm": random.random() < 0.5,
        "attention_bias": random.random() < 0.5,
    }


def _deepseek(random: Random) -> dict[str, Any]:
    heads = random.choice([2, 4])
    return _groups(random) | {
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": None,
        "kv_lora_rank": random.choice([12, 20]),
        "q_lora_rank": random.choice([None, 12]),
        "qk_rope_head_dim": random.choice([4, 8]),
        "qk_nope_head_dim": random.choice([6, 10]),
        "v_head_dim": random.choice([8, 12]),
        "attention_bias": random.random() < 0.5,
    }


def _deepseek_v2(random: Random) -> dict[str, Any]:
    method = random.choice(["greedy", "group_limited_greedy"])
    return _deepseek(random) | {"topk_method": method, "norm_topk_prob": False}


def _deepseek_v3(random: Random) -> dict[str, Any]:
    scaling = YARN_ROPE | {"mscale": 1.0, "mscale_all_dim": random.uniform(0.5, 1.0)}
    return _deepseek(random) | random.choice([{}, {"rope_scaling": scaling}])


def _delta(random: Random) -> dict[str, Any]:
    keys = random.choice([1, 2])
    return {
        "head_dim": 16,
        "linear_num_key_heads": keys,
        "linear_num_value_heads": keys * random.choice([1, 2, 3]),
        "linear_key_head_dim": random.choice([4, 8]),
        "linear_value_head_dim": random.choice([8, 12]),
        "linear_conv_kernel_dim": random.choice([2, 4]),
        **_layers(random, ["linear_attention", "full_attention"], "full_attention"),
    }


def _delta_moe(random: Random) -> dict[str, Any]:
    shared = {"shared_expert_intermediate_size": random.choice([12, 20])}
    return _delta(random) | _experts(random) | shared


def _gpt_oss(random: Random) -> dict[str, Any]:
    return _windows(random) | {
        "num_local_experts": random.randint(2, 6),
        "num_experts_per_tok": random.randint(1, 2),
        "rope_parameters": {**YARN_ROPE, "truncate": random.random() < 0.5},
    }


def _granite_hybrid(random: Random) -> dict[str, Any]:
    heads, groups, size = random.choice([(4, 1, 16), (8, 2, 8), (6, 3, 8)])
    return _granite(random) | {
        **_layers(random, ["mamba", "attention"], "attention"),
        "num_local_experts": 0,
        "shared_intermediate_size": random.choice([24, 40]),
        "hidden_size": heads * size // 2,
        "num_attention_heads": 4,
        "num_key_value_heads": random.choice([1, 2, 4]),
        "mamba_n_heads": heads,
        "mamba_d_head": size,
        "mamba_n_groups": groups,
        "mamba_d_state": random.choice([4, 12]),
        "mamba_d_conv": random.choice([2, 4]),
        "mamba_conv_bias": random.random() < 0.5,
        "mamba_proj_bias": random.random() < 0.5,
        "position_embedding_type": random.choice(["nope", "rope"]),
    }


def _lfm2(random: Random) -> dict[str, Any]:
    return _layers(random, ["conv", "full_attention"], "full_attention") | {
        "norm_eps": 1e-5,
        "conv_L_cache": random.choice([2, 3, 4]),
        "conv_bias": random.random() < 0.5,
        "block_multiple_of": 8,
        "block_auto_adjust_ff_dim": random.random() < 0.5,
    }


def _gemma4(random: Random) -> dict[str, Any]:
    """The last layer sees everything; some layers share the caches of earlier ones."""
    kinds = _layers(random, ["sliding_attention", "full_attention"])["layer_types"]
    kinds = ["sliding_attention", "full_attention", *kinds, "full_attention"]
    return _gemma(random) | {
        "num_hidden_layers": len(kinds),
        "layer_types": kinds,
        "head_dim": random.choice([8, 12]),
        "global_head_dim": random.choice([12, 16]),
        "final_logit_softcapping": random.choice([None, 3.0]),
        "num_kv_shared_layers": random.choice([0, len(kinds) - 2]),
        "vocab_size_per_layer_input": 96,
        "hidden_size_per_layer_input": random.choice([0, 8, 10]),
        "tie_word_embeddings": True,
    }


def _mamba_heads(random: Random) -> dict[str, Any]:
    heads, groups, size = random.choice([(4, 1, 16), (8, 2, 8), (6, 3, 8)])
    return {
        "mamba_n_heads": heads,
        "mamba_d_head": size,
        "mamba_n_groups": groups,
        "mamba_d_state": random.choice([4, 12]),
        "mamba_d_conv": random.choice([2, 4]),
        "mamba_conv_bias": random.random() < 0.5,
        "mamba_proj_bias": random.random() < 0.5,
    }


def _falcon_h1(random: Random) -> dict[str, Any]:
    own = _mamba_heads(random)
    return own | {
        "mamba_d_ssm": own["mamba_n_heads"] * own["mamba_d_head"],
        "mamba_rms_norm": random.random() < 0.5,
        "mamba_norm_before_gate": random.random() < 0.5,
        "attention_bias": random.random() < 0.5,
        "key_multiplier": random.uniform(0.3, 1.0),
        "ssm_in_multiplier": random.uniform(0.5, 1.5),
        "mlp_multipliers": [random.uniform(0.5, 1.0), random.uniform(0.5, 1.0)],
        "lm_head_multiplier": random.uniform(0.3, 1.0),
    }


def _mamba2(random: Random) -> dict[str, Any]:
    heads, groups, size = random.choice([(4, 1, 12), (8, 2, 12), (6, 3, 16)])
    return {
        "hidden_size": heads * size // 2,
        "num_heads": heads,
        "head_dim": size,
        "n_groups": groups,
        "state_size": random.choice([4, 12]),
        "conv_kernel": random.choice([2, 4]),
        "use_bias": random.random() < 0.5,
        "use_conv_bias": random.random() < 0.5,
        "layer_norm_epsilon": random.choice([1e-6, 1e-5]),
        "time_step_limit": random.choice([[0.0, float("inf")], [0.02, 0.7]]),
    }


def _nemotron_h(random: Random) -> dict[str, Any]:
    pattern = [random.choice("M-*E") for _ in range(random.randint(1, 4))] + ["*", "M"]
    random.shuffle(pattern)
    heads, groups, size = random.choice([(4, 1, 16), (8, 2, 8), (6, 3, 8)])
    experts = _groups(random)
    return {
        "tie_word_embeddings": False,  # transformers never ties these
        "hybrid_override_pattern": "".join(pattern),
        "num_hidden_layers": len(pattern),
        "mamba_num_heads": heads,
        "mamba_head_dim": size,
        "n_groups": groups,
        "ssm_state_size": random.choice([4, 12]),
        "conv_kernel": random.choice([2, 4]),
        "use_bias": random.random() < 0.5,
        "mlp_bias": random.random() < 0.5,
        "moe_shared_expert_intermediate_size": random.choice([12, 20]),
        "moe_latent_size": random.choice([None, 16]),
        **{name: value for name, value in experts.items() if name != "first_k_dense_replace"},
        "n_shared_experts": 1,
    }


def _llama4(random: Random) -> dict[str, Any]:
    count = random.randint(1, 4)
    return {
        "num_hidden_layers": count,
        "no_rope_layers": [random.randint(0, 1) for _ in range(count)],
        "head_dim": random.choice([8, 12, 16]),
        "intermediate_size_mlp": random.choice([16, 40]),
        "num_local_experts": random.randint(2, 6),
        "num_experts_per_tok": random.randint(1, 2),
        "interleave_moe_layer_step": random.randint(1, 3),
        "attention_chunk_size": random.randint(4, 64),
        "attn_temperature_tuning": random.random() < 0.5,
        "floor_scale": 8,
        "use_qk_norm": random.random() < 0.5,
    }


DRAWS: dict[str, Callable[[Random], dict[str, Any]]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _base,
    "phi3": _phi3,
    "granite": _granite,
    "olmo2": _base,
    "olmo3": _windows,
    "smollm3": _smollm3,
    "glm4": _glm4,
    "cohere2": _cohere2,
    "gemma2": _gemma2,
    "gemma3_text": _gemma,
    "mixtral": _mixtral,
    "qwen2_moe": _qwen_moe,
    "qwen3_moe": _qwen_moe,
    "glm4_moe": _glm4_moe,
    "gpt_oss": _gpt_oss,
    "deepseek_v2": _deepseek_v2,
    "deepseek_v3": _deepseek_v3,
    "qwen3_next": _delta_moe,
    "qwen3_5_text": _delta,
    "qwen3_5_moe_text": _delta_moe,
    "granitemoehybrid": _granite_hybrid,
    "lfm2": _lfm2,
    "gemma4_text": _gemma4,
    "falcon_h1": _falcon_h1,
    "nemotron_h": _nemotron_h,
    "llama4_text": _llama4,
}
