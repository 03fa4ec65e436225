"""Counts are exact: against published numbers, transformers, and counting one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.model_spec import configs
from twostroke.core.errors import ConfigError
from twostroke.model_spec.config.families import FAMILIES
from twostroke.model_spec.layer_specs import AttentionSpec, ExpertsSpec, LatentSpec, seen_pairs
from twostroke.model_spec.number_formats import NumberFormat
from twostroke.model_spec.reader import parse_model

# Smallest models of each kind that still have every kind of layer.
BASE = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
LATENT = {
    "n_routed_experts": 4,
    "n_shared_experts": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "num_key_value_heads": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LINEAR = {
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
}
MAMBA = {"mamba_n_heads": 8, "mamba_d_state": 12, "mamba_n_groups": 2}
TINY: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True},
    "mistral": {"sliding_window": 64},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 32},
    "phi3": {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2},
    "granite": {},
    "olmo2": {"pad_token_id": 0},
    "olmo3": {"sliding_window": 32, "pad_token_id": 0},
    "smollm3": {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2},
    "glm4": {"head_dim": 16, "pad_token_id": 0},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "cohere2": {"sliding_window": 32, "eos_token_id": 1},
    "gemma2": {"head_dim": 16},
    "gemma3_text": {"head_dim": 16, "sliding_window": 32},
    "gemma4_text": {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "head_dim": 16,
        "vocab_size_per_layer_input": 100,
        "hidden_size_per_layer_input": 12,
        "attention_k_eq_v": True,
        "num_kv_shared_layers": 1,
        "use_double_wide_mlp": True,
        "enable_moe_block": True,
        "num_experts": 4,
        "top_k_experts": 2,
        "moe_intermediate_size": 24,
    },
    "mixtral": {"num_local_experts": 4},
    "qwen2_moe": {**EXPERTS, "shared_expert_intermediate_size": 48},
    "qwen3_moe": {**EXPERTS, "decoder_sparse_step": 2, "head_dim": 32},
    "gpt_oss": {"num_local_experts": 4, "head_dim": 16},
    "deepseek_v2": {**LATENT, "q_lora_rank": None},
    "deepseek_v3": {**LATENT, "q_lora_rank": 24},
    "glm4_moe": {
        **LATENT,
        "use_qk_norm": True,
        "attention_bias": True,
        "head_dim": 16,
        "num_key_value_heads": 2,
    },
    "llama4_text": {
        "num_local_experts": 4,
        "head_dim": 16,
        "intermediate_size_mlp": 128,
        "interleave_moe_layer_step": 2,
        "pad_token_id": 0,
    },
    "qwen3_5_text": LINEAR,
    "qwen3_5_moe_text": {**EXPERTS, **LINEAR, "shared_expert_intermediate_size": 48},
    "qwen3_next": {
        **EXPERTS,
        **LINEAR,
        "shared_expert_intermediate_size": 48,
    },
    "jamba": {"num_hidden_layers": 10, "num_experts": 4, "mamba_d_state": 8},
    "nemotron_h": {
        "layers_block_type": ["linear_attention", "mlp", "full_attention", "moe"],
        "head_dim": 16,
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "n_groups": 2,
        "ssm_state_size": 12,
        "n_routed_experts": 4,
        "moe_intermediate_size": 24,
        "moe_shared_expert_intermediate_size": 40,
        "moe_latent_size": 20,
    },
    "granitemoehybrid": {
        **MAMBA,
        "layer_types": ["mamba", "attention"] * 2,
        "shared_intermediate_size": 40,
    },
    "falcon_h1": {
        **MAMBA,
        "mamba_d_ssm": 96,
        "mamba_rms_norm": True,
        "projectors_bias": True,
        "mlp_bias": True,
    },
    "bamba": {**MAMBA, "attn_layer_indices": [2], "mamba_proj_bias": True, "attention_bias": True},
    "minimax": {
        "num_local_experts": 4,
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "head_dim": 24,
    },
    "minimax_m2": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16},
    "mamba2": {"num_heads": 8, "head_dim": 16, "n_groups": 2, "state_size": 12, "use_bias": True},
    "mamba": {"state_size": 8, "use_conv_bias": False},
}
# The same with an index that finds the tokens of sparse attention.
INDEXED = {
    **LATENT,
    "q_lora_rank": 24,
    "index_topk": 16,
    "index_n_heads": 4,
    "index_head_dim": 12,
}


def test_every_family_is_compared_with_transformers() -> None:
    assert set(TINY) == set(FAMILIES)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", [*TINY, "deepseek_v32", "glm_moe_dsa"])
def test_parameters_are_those_of_transformers(model_type: str) -> None:
    config = AutoConfig.for_model(model_type, **{**BASE, **TINY.get(model_type, INDEXED)})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    raw = {**config.to_dict(), "tie_word_embeddings": config.tie_word_embeddings}
    assert parse_model(raw).num_parameters == sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (configs.LLAMA_8B, 8_030_261_248),
        (configs.LLAMA_70B, 70_553_706_496),
        (configs.QWEN3_32B, 32_762_123_264),
        (configs.MIXTRAL, 46_702_792_704),
        (configs.QWEN3_MOE, 30_532_122_624),
        (configs.DEEPSEEK_V3, 671_026_404_352),
        (configs.JAMBA, 51_570_323_328),
        (configs.NEMOTRON_H_8B, 8_100_852_736),
        (configs.NEMOTRON_3_NANO, 31_577_937_344),
        (configs.GRANITE_4_H_SMALL, 32_207_337_984),
        (configs.FALCON_H1_7B, 7_585_519_712),
        (configs.BAMBA_9B, 9_780_235_392),
        (configs.CODESTRAL_MAMBA, 7_285_403_648),
    ],
)
def test_published_parameter_counts(config: dict[str, Any], parameters: int) -> None:
    assert parse_model(config).num_parameters == parameters


def test_active_parameters() -> None:
    """As the models' reports say, less embeddings.

    With them it is 12.9 billion of Mixtral and 37 billion of DeepSeek-V3.
    """
    assert parse_model(configs.MIXTRAL).active_parameters == pytest.approx(12.75e9, rel=0.002)
    assert parse_model(configs.DEEPSEEK_V3).active_parameters == pytest.approx(36.63e9, rel=0.002)
    dense = parse_model(configs.LLAMA_8B)
    assert dense.active_parameters == dense.num_parameters - dense.vocab_size * dense.hidden_size


def test_cache_of_grouped_and_latent_attention() -> None:
    assert parse_model(configs.LLAMA_70B).kv_bytes_per_token() == 2 * 80 * 8 * 128 * 2
    assert parse_model(configs.LLAMA_70B).kv_bytes_per_token("fp8", ranks=4) == 2 * 80 * 2 * 128
    # More ranks than KV heads: each keeps one head whole.
    assert parse_model(configs.LLAMA_70B).kv_bytes_per_token(ranks=16) == 2 * 80 * 1 * 128 * 2
    # 70 KB, the figure of the DeepSeek-V3 report (table 1); every rank keeps all of it.
    assert parse_model(configs.DEEPSEEK_V3).kv_bytes_per_token() == 61 * (512 + 64) * 2 == 70272
    assert parse_model(configs.DEEPSEEK_V3).kv_bytes_per_token(ranks=8) == 70272


def test_a_cache_of_half_bytes_counts_its_scales() -> None:
    """Two heads of 40 elements, each with a key and a value: 2.5 groups of 16 need 3 scales."""
    half = NumberFormat("half", 4, "bf16", scale_bits=8, group=16)
    assert half.bits == 4.5 and half.bits_of(40) == 40 * 4 + 3 * 8
    grouped = AttentionSpec(8, 4, 40, 40)
    assert grouped.cached_bits(half, ranks=2) == 2 * 2 * (40 * 4 + 3 * 8)
    latent = AttentionSpec(8, 8, 40, 40, latent=LatentSpec(72, 64))
    assert latent.cached_bits(half, ranks=2) == 72 * 4 + 5 * 8


def test_cache_of_windows_and_states() -> None:
    mixed = parse_model(configs.GPT_OSS_20B)
    assert mixed.kv_bytes_per_token() == 24 * 2 * 8 * 64 * 2
    assert mixed.kv_bytes(1000) == 12 * 2 * 8 * 64 * 2 * (1000 + 128)
    hybrid = parse_model(configs.QWEN3_NEXT)
    assert hybrid.kv_bytes_per_token() == 12 * 2 * 2 * 256 * 2  # one layer in four has attention
    state = 4 * 32 * 128 * 128 + 2 * (2 * 16 * 128 + 32 * 128) * 3
    assert hybrid.state_bytes() == 36 * state
    assert hybrid.kv_bytes(0) == hybrid.state_bytes()


def test_weight_bytes() -> None:
    spec = parse_model(configs.LLAMA_8B)
    assert spec.weight_bytes() == 2 * spec.num_parameters
    assert spec.weight_bytes("fp32") == 4 * spec.num_parameters
    tables = 2 * spec.vocab_size * spec.hidden_size * 2
    assert spec.weight_bytes("fp8") == pytest.approx(
        (2 * spec.num_parameters - tables) / 2 + tables, rel=1e-4
    )
    assert spec.weight_bytes("int4") < 0.36 * spec.weight_bytes()
    # Norms stay whole on every rank, everything else is dealt out.
    assert spec.weight_bytes(ranks=4) == pytest.approx(spec.weight_bytes() / 4, rel=1e-4)
    assert spec.weight_bytes(ranks=4) * 4 > spec.weight_bytes()


@pytest.mark.parametrize("window", [None, 1, 5, 64])
@pytest.mark.parametrize(("new", "cached"), [(1, 0), (1, 9), (7, 0), (7, 3), (20, 70)])
def test_pairs_are_counted_as_one_would_by_hand(new: int, cached: int, window: int | None) -> None:
    by_hand = sum(min(cached + i + 1, window or 10**9) for i in range(new))
    assert seen_pairs(new, cached, window) == by_hand


def test_flops_of_a_dense_model() -> None:
    """Two for each weight that a token meets, and four for each pair, head and element."""
    spec = parse_model(configs.LLAMA_8B)
    norms = 65 * 4096
    assert spec.linear_flops() + spec.head_flops() == 2 * (spec.active_parameters - norms)
    assert spec.attention_flops(1, 99) == 32 * 4 * 32 * 128 * 100
    assert (
        spec.prefill_flops(10)
        == 10 * spec.linear_flops() + spec.head_flops() + 32 * 4 * 32 * 128 * 55
    )


def test_distinct_experts() -> None:
    """All that a single token picks; nearly all that many pick; in between, a random mean."""
    experts = ExpertsSpec(8, 2, ())
    assert experts.expected_distinct(1) == pytest.approx(2)
    assert experts.expected_distinct(1000) == pytest.approx(8)
    assert experts.expected_distinct(2) == pytest.approx(2 + 2 * (1 - 2 / 8))


def test_equal_layers_in_a_row_are_one_run() -> None:
    mixed = parse_model(configs.GPT_OSS_20B)
    assert [layer.attention.window for layer in mixed.layers if layer.attention] == [128, None] * 12
    deepseek = parse_model(configs.DEEPSEEK_V3)
    assert [(layer.count, layer.experts is not None) for layer in deepseek.layers] == [
        (3, False),
        (58, True),
    ]
    assert (
        parse_model(configs.LLAMA_70B).num_layers == 80
        and len(parse_model(configs.LLAMA_70B).layers) == 1
    )


def test_chunks_bound_what_is_seen_in_three_layers_of_four() -> None:
    scout = {
        **BASE,
        "model_type": "llama4_text",
        "num_local_experts": 4,
        "intermediate_size_mlp": 96,
    }
    windows = [
        layer.attention.window
        for layer in parse_model({**scout, "attention_chunk_size": 64}).layers
        if layer.attention
    ]
    assert windows == [64, None]
    named = {
        **scout,
        "layer_types": ["chunked_attention", "attention"] * 2,
        "attention_chunk_size": 64,
    }
    assert [layer.attention.window for layer in parse_model(named).layers if layer.attention] == [
        64,
        None,
    ] * 2


def test_ranks_must_divide_the_heads() -> None:
    with pytest.raises(
        ConfigError, match="tensor parallelism 3 does not divide the model's 32 attention heads"
    ):
        parse_model(configs.LLAMA_8B).check_ranks(3)
