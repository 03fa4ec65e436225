"""Model sheets: counts are exact. Against published numbers, against transformers, against counting
one by one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.model_spec import configs
from twostroke.core.errors import ConfigError, ModelLoadError
from twostroke.model_spec.model_reader import FAMILIES, model_sheet, read_model
from twostroke.model_spec.model_sheet import Experts, seen_pairs
from twostroke.model_spec.unquantised import Unquantised

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
    "gemma2": {"head_dim": 16},
    "gemma3_text": {"head_dim": 16, "sliding_window": 32},
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
    "mamba2": {"num_heads": 8, "head_dim": 16, "n_groups": 2, "state_size": 12, "use_bias": True},
    "mamba": {"state_size": 8, "use_conv_bias": False},
}


def test_every_family_is_compared_with_transformers() -> None:
    assert set(TINY) == set(FAMILIES)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", list(TINY))
def test_parameters_are_those_of_transformers(model_type: str) -> None:
    config = AutoConfig.for_model(model_type, **{**BASE, **TINY[model_type]})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    raw = {**config.to_dict(), "tie_word_embeddings": config.tie_word_embeddings}
    assert model_sheet(raw).num_parameters == sum(weight.numel() for weight in model.parameters())


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
    assert model_sheet(config).num_parameters == parameters


def test_active_parameters() -> None:
    """12.9 billion of Mixtral and 37 billion of DeepSeek-V3 with embeddings, as their reports say;
    these have none.
    """
    assert model_sheet(configs.MIXTRAL).active_parameters == pytest.approx(12.75e9, rel=0.002)
    assert model_sheet(configs.DEEPSEEK_V3).active_parameters == pytest.approx(36.63e9, rel=0.002)
    dense = model_sheet(configs.LLAMA_8B)
    assert dense.active_parameters == dense.num_parameters - dense.vocab_size * dense.hidden_size


def test_cache_of_grouped_and_latent_attention() -> None:
    assert model_sheet(configs.LLAMA_70B).kv_bytes_per_token() == 2 * 80 * 8 * 128 * 2
    assert model_sheet(configs.LLAMA_70B).kv_bytes_per_token("fp8", ranks=4) == 2 * 80 * 2 * 128
    # More ranks than KV heads: each keeps one head whole.
    assert model_sheet(configs.LLAMA_70B).kv_bytes_per_token(ranks=16) == 2 * 80 * 1 * 128 * 2
    # 70 KB, the figure of the DeepSeek-V3 report (table 1); every rank keeps all of it.
    assert model_sheet(configs.DEEPSEEK_V3).kv_bytes_per_token() == 61 * (512 + 64) * 2 == 70272
    assert model_sheet(configs.DEEPSEEK_V3).kv_bytes_per_token(ranks=8) == 70272


def test_cache_of_windows_and_states() -> None:
    mixed = model_sheet(configs.GPT_OSS_20B)
    assert mixed.kv_bytes_per_token() == 24 * 2 * 8 * 64 * 2
    assert mixed.kv_bytes(1000) == 12 * 2 * 8 * 64 * 2 * (1000 + 128)
    hybrid = model_sheet(configs.QWEN3_NEXT)
    assert hybrid.kv_bytes_per_token() == 12 * 2 * 2 * 256 * 2  # one layer in four has attention
    state = 4 * 32 * 128 * 128 + 2 * (2 * 16 * 128 + 32 * 128) * 3
    assert hybrid.state_bytes() == 36 * state
    assert hybrid.kv_bytes(0) == hybrid.state_bytes()


def test_weight_bytes() -> None:
    sheet = model_sheet(configs.LLAMA_8B)
    assert sheet.weight_bytes() == 2 * sheet.num_parameters
    assert sheet.weight_bytes("fp32") == 4 * sheet.num_parameters
    tables = 2 * sheet.vocab_size * sheet.hidden_size * 2
    assert sheet.weight_bytes("fp8") == pytest.approx(
        (2 * sheet.num_parameters - tables) / 2 + tables, rel=1e-4
    )
    assert sheet.weight_bytes("int4") < 0.36 * sheet.weight_bytes()
    # Norms stay whole on every rank, everything else is dealt out.
    assert sheet.weight_bytes(ranks=4) == pytest.approx(sheet.weight_bytes() / 4, rel=1e-4)
    assert sheet.weight_bytes(ranks=4) * 4 > sheet.weight_bytes()


def test_formats_are_read_from_the_checkpoint() -> None:
    assert model_sheet(configs.DEEPSEEK_V3).format == "fp8_block"
    assert model_sheet(configs.GPT_OSS_20B).format == "mxfp4"
    awq = {**configs.LLAMA_8B, "quantization_config": {"quant_method": "awq", "bits": 4}}
    assert model_sheet(awq).format == "int4"
    groups = {"group_0": {"weights": {"num_bits": 8, "type": "float"}}}
    packed = {
        "quantization_config": {"quant_method": "compressed-tensors", "config_groups": groups}
    }
    assert model_sheet({**configs.LLAMA_8B, **packed}).format == "fp8"


def test_an_unknown_quantisation_matters_only_to_who_asks_for_it() -> None:
    novel = model_sheet(
        {**configs.LLAMA_8B, "quantization_config": {"quant_method": "novel", "bits": 3}}
    )
    with pytest.raises(ConfigError, match="unknown weight format 'novel with 3 bits'") as caught:
        novel.weight_bytes()
    assert "--weight-dtype" in str(caught.value.hint)
    assert novel.weight_bytes("int4") == model_sheet(configs.LLAMA_8B).weight_bytes("int4")
    assert model_sheet({**configs.LLAMA_8B, "quantization_config": "x"}).weight_bytes("bf16")


def test_what_a_quantised_checkpoint_left_out_counts_in_full() -> None:
    """The published sizes in bytes: gpt-oss-20b keeps attention, router and biases in bfloat16."""
    kept = [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ]
    config = {
        **configs.GPT_OSS_20B,
        "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": kept},
    }
    assert model_sheet(config).weight_bytes() == 13_761_264_768


@pytest.mark.parametrize(
    ("field", "entry", "kept"),
    [
        ("ignore", "model.layers.0.self_attn.q_proj", {("qkv", 0)}),
        (
            "ignore",
            "re:.*self_attn.*",
            {(name, at) for name in ("qkv", "attention_output") for at in (0, 1, 10)},
        ),
        (
            "ignored_layers",
            "model.layers.1.mlp.down_proj",
            {("mlp_down", 1)},
        ),  # and not of layer 10
        (
            "exclude_modules",
            "model.layers.1*.self_attn*",
            {(n, at) for n in ("qkv", "attention_output") for at in (1, 10)},
        ),
        (
            "modules_to_not_convert",
            "language_model.model.layers.10.mlp",
            {("mlp_gate_up", 10), ("mlp_down", 10)},
        ),
        (
            "modules_to_not_convert",
            "mlp.gate",
            set(),
        ),  # the router of experts, not what ends in _proj
        ("modules_to_not_convert", "lm_head", set()),
    ],
)
def test_exceptions_are_found_by_their_modules(
    field: str, entry: str, kept: set[tuple[str, int]]
) -> None:
    found = Unquantised({"quantization_config": {field: [entry]}})
    names = ("qkv", "attention_output", "mlp_gate_up", "mlp_down", "router")
    assert {(name, at) for name in names for at in (0, 1, 10) if found.has(name, at)} == kept


@pytest.mark.parametrize("window", [None, 1, 5, 64])
@pytest.mark.parametrize(("new", "cached"), [(1, 0), (1, 9), (7, 0), (7, 3), (20, 70)])
def test_pairs_are_counted_as_one_would_by_hand(new: int, cached: int, window: int | None) -> None:
    by_hand = sum(min(cached + i + 1, window or 10**9) for i in range(new))
    assert seen_pairs(new, cached, window) == by_hand


def test_flops_of_a_dense_model() -> None:
    """Two for each weight that a token is multiplied with, and four for each pair, head and
    element.
    """
    sheet = model_sheet(configs.LLAMA_8B)
    norms = 65 * 4096
    assert sheet.linear_flops() + sheet.head_flops() == 2 * (sheet.active_parameters - norms)
    assert sheet.attention_flops(1, 99) == 32 * 4 * 32 * 128 * 100
    assert (
        sheet.prefill_flops(10)
        == 10 * sheet.linear_flops() + sheet.head_flops() + 32 * 4 * 32 * 128 * 55
    )


def test_distinct_experts() -> None:
    """All that a single token picks; nearly all that many pick; in between, the mean of drawing at
    random.
    """
    experts = Experts(8, 2, ())
    assert experts.expected_distinct(1) == pytest.approx(2)
    assert experts.expected_distinct(1000) == pytest.approx(8)
    assert experts.expected_distinct(2) == pytest.approx(2 + 2 * (1 - 2 / 8))


def test_kinds_of_layers_are_told_apart() -> None:
    mixed = model_sheet(configs.GPT_OSS_20B)
    assert [layer.attention.window for layer in mixed.layers if layer.attention] == [128, None] * 12
    deepseek = model_sheet(configs.DEEPSEEK_V3)
    assert [(layer.count, layer.experts is not None) for layer in deepseek.layers] == [
        (3, False),
        (58, True),
    ]
    assert (
        model_sheet(configs.LLAMA_70B).num_layers == 80
        and len(model_sheet(configs.LLAMA_70B).layers) == 1
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
        for layer in model_sheet({**scout, "attention_chunk_size": 64}).layers
        if layer.attention
    ]
    assert windows == [64, None]
    named = {
        **scout,
        "layer_types": ["chunked_attention", "attention"] * 2,
        "attention_chunk_size": 64,
    }
    assert [layer.attention.window for layer in model_sheet(named).layers if layer.attention] == [
        64,
        None,
    ] * 2


def test_multimodal_files_give_their_text_model() -> None:
    nested = {
        "model_type": "gemma3",
        "text_config": {**BASE, "model_type": "gemma3_text", "head_dim": 16},
    }
    assert model_sheet(nested).model_type == "gemma3_text"


def test_what_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(
        ModelLoadError, match="unknown architecture: model_type is 'mamba9'"
    ) as caught:
        model_sheet({"model_type": "mamba9"})
    assert caught.value.hint is not None and "deepseek_v3" in caught.value.hint
    with pytest.raises(ModelLoadError, match="hidden_size is missing"):
        model_sheet({"model_type": "llama"})
    with pytest.raises(ModelLoadError, match="hidden_size must be an integer, got '4096'"):
        model_sheet({"model_type": "llama", "hidden_size": "4096"})
    with pytest.raises(ModelLoadError, match="cannot read"):
        read_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(configs.LLAMA_8B))
    assert read_model(tmp_path) == model_sheet(configs.LLAMA_8B)


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        (configs.LLAMA_8B, {"hidden_size": 0}),
        (
            configs.LLAMA_8B,
            {"num_hidden_layers": 10**12},
        ),  # refused at once, not after a trillion layers
        (configs.LLAMA_8B, {"num_hidden_layers": -1}),
        (configs.LLAMA_8B, {"num_attention_heads": 0}),
        (configs.LLAMA_8B, {"num_key_value_heads": 7}),
        (configs.LLAMA_8B, {"num_key_value_heads": 0}),
        (configs.LLAMA_8B, {"vocab_size": -1}),
        (configs.LLAMA_8B, {"max_position_embeddings": 0}),
        (configs.LLAMA_8B, {"attention_bias": "yes"}),
        (configs.LLAMA_8B, {"layer_types": ["full_attention"]}),
        (configs.LLAMA_8B, {"layer_types": "abc"}),
        (configs.LLAMA_8B, {"model_type": "mistral", "sliding_window": "x"}),
        (
            configs.LLAMA_8B,
            {"model_type": "gemma3_text", "sliding_window": 8, "sliding_window_pattern": 0},
        ),
        (configs.QWEN3_MOE, {"num_experts": -1}),
        (configs.QWEN3_MOE, {"num_experts_per_tok": 999}),
        (configs.QWEN3_MOE, {"decoder_sparse_step": 0}),
        (configs.QWEN3_MOE, {"mlp_only_layers": 5}),
        (configs.DEEPSEEK_V3, {"q_lora_rank": "x"}),
        (configs.DEEPSEEK_V3, {"moe_layer_freq": 0}),
        (configs.QWEN3_NEXT, {"full_attention_interval": 0}),
        (configs.QWEN3_NEXT, {"linear_num_key_heads": 0}),
        (configs.JAMBA, {"attn_layer_period": 0}),
        (configs.JAMBA, {"expert_layer_offset": 2}),
        (configs.JAMBA, {"mamba_dt_rank": "many"}),
        (configs.NEMOTRON_H_8B, {"hybrid_override_pattern": ""}),
        (configs.NEMOTRON_H_8B, {"hybrid_override_pattern": 7}),
        (configs.NEMOTRON_H_8B, {"layers_block_type": "M" * 20_000}),
        (configs.NEMOTRON_H_8B, {"mamba_ssm_cache_dtype": ["float32"]}),
        (configs.GRANITE_4_H_SMALL, {"mamba_n_heads": 100}),
        (configs.FALCON_H1_7B, {"mamba_d_ssm": -1}),
        (configs.BAMBA_9B, {"attn_layer_indices": 9}),
        (configs.CODESTRAL_MAMBA, {"num_heads": 0}),
    ],
    ids=lambda value: str(value)[:60] if "model_type" not in value or len(value) < 5 else "",
)
def test_nonsense_is_refused_by_name(config: dict[str, Any], changes: dict[str, Any]) -> None:
    with pytest.raises(ModelLoadError, match="|".join(changes) + "|key-value heads") as caught:
        model_sheet({**config, **changes})
    assert caught.value.hint


@pytest.mark.parametrize(
    "content", [b"\xff\xfe", b"{" * 100_000, b'{"a":' * 100_000, b"[1]", b'{"hidden_size": 1e999}']
)
def test_files_that_are_no_config_are_one_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelLoadError):
        read_model(tmp_path)


def test_ranks_must_divide_the_heads() -> None:
    with pytest.raises(
        ConfigError, match="tensor parallelism 3 does not divide the model's 32 attention heads"
    ):
        model_sheet(configs.LLAMA_8B).check_ranks(3)
