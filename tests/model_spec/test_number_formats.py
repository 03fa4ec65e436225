"""Number formats of checkpoints, and what a quantised one leaves in its own precision."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.model_spec import configs
from twostroke.core.config import CacheConfig, SchedulerConfig
from twostroke.core.errors import ConfigError
from twostroke.model_spec.reader import parse_model, read_model
from twostroke.model_spec.unquantised import Unquantised
from twostroke.simulator.deployment.deployment import deploy
from twostroke.simulator.deployment.options import DeploymentOptions


def test_formats_are_read_from_the_checkpoint() -> None:
    assert parse_model(configs.DEEPSEEK_V3).format == "fp8_block"
    assert parse_model(configs.GPT_OSS_20B).format == "mxfp4"
    awq = {**configs.LLAMA_8B, "quantization_config": {"quant_method": "awq", "bits": 4}}
    assert parse_model(awq).format == "int4"
    groups = {"group_0": {"weights": {"num_bits": 8, "type": "float"}}}
    packed = {
        "quantization_config": {"quant_method": "compressed-tensors", "config_groups": groups}
    }
    assert parse_model({**configs.LLAMA_8B, **packed}).format == "fp8"


@pytest.mark.parametrize(
    ("stated", "weights"),
    [
        ({"quant_algo": "FP8"}, "fp8"),
        ({"quant_algo": "FP8_PB_WO"}, "fp8_block"),
        ({"quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_algo": "NVFP4_AWQ"}, "nvfp4"),
        ({"quant_algo": "W4A8_MXFP4_FP8"}, "mxfp4"),
        ({"quant_algo": "W4A16_AWQ"}, "int4"),
        ({"quant_algo": "W8A8_SQ_PER_CHANNEL"}, "int8"),
        (
            {
                "quant_algo": "MIXED_PRECISION",
                "quantized_layers": {
                    "model.layers.0.self_attn.q_proj": {"quant_algo": "FP8"},
                    "model.layers.0.mlp.up_proj": {"quant_algo": "NVFP4"},
                    "model.layers.0.mlp.down_proj": {"quant_algo": "NVFP4"},
                },
            },
            "nvfp4",
        ),
    ],
)
def test_modelopts_file_beside_the_config_is_read(
    tmp_path: Path, stated: dict[str, Any], weights: str
) -> None:
    write = {"config.json": configs.LLAMA_8B, "hf_quant_config.json": {"quantization": stated}}
    for name, content in write.items():
        (tmp_path / name).write_text(json.dumps(content))
    assert read_model(tmp_path).format == read_model(tmp_path / "config.json").format == weights
    assert read_model(tmp_path).weight_bytes() == parse_model(configs.LLAMA_8B).weight_bytes(
        weights
    )
    deployed = deploy(
        DeploymentOptions(model=str(tmp_path), gpu="b200"), CacheConfig(), SchedulerConfig()
    )
    assert deployed.weight_bytes == read_model(tmp_path).weight_bytes()


def test_modelopts_exceptions_stay_as_they_are(tmp_path: Path) -> None:
    kept = {"quant_algo": "NVFP4", "exclude_modules": ["lm_head", "model.layers.0.self_attn*"]}
    for name, content in {
        "config.json": configs.LLAMA_8B,
        "hf_quant_config.json": {"quantization": kept},
    }.items():
        (tmp_path / name).write_text(json.dumps(content))
    model, attention = read_model(tmp_path), 2 * (2 * 4096**2 + 2 * 4096 * 1024)
    fewer = attention - attention / 2 * 4.5 / 8
    assert model.weight_bytes() == parse_model(configs.LLAMA_8B).weight_bytes("nvfp4") + fewer


@pytest.mark.parametrize(
    ("weights", "packed", "expected"),
    [
        ([{"num_bits": 4, "type": "int", "group_size": 128}], "pack-quantized", "int4"),
        ([{"num_bits": 4, "type": "int", "group_size": 32}], "pack-quantized", "int4_g32"),
        ([{"num_bits": 8, "type": "int"}], "int-quantized", "int8"),
        ([{"num_bits": 4, "type": "float"}], "nvfp4-pack-quantized", "nvfp4"),
        ([{"num_bits": 4, "type": "float"}], "mxfp4-pack-quantized", "mxfp4"),
        # Attention in eight bits, experts in four.
        ([{"num_bits": 8, "type": "float"}, {"num_bits": 4, "type": "float"}], "mixed", "nvfp4"),
    ],
)
def test_groups_of_compressed_tensors_are_read(
    weights: list[dict[str, Any]], packed: str, expected: str
) -> None:
    groups = {f"group_{number}": {"weights": each} for number, each in enumerate(weights)}
    stated = {"quant_method": "compressed-tensors", "format": packed, "config_groups": groups}
    assert parse_model({**configs.LLAMA_8B, "quantization_config": stated}).format == expected


def test_an_unknown_quantisation_is_refused_only_where_it_is_used() -> None:
    novel = parse_model(
        {**configs.LLAMA_8B, "quantization_config": {"quant_method": "novel", "bits": 3}}
    )
    with pytest.raises(ConfigError, match="unknown weight format 'novel with 3 bits'") as caught:
        novel.weight_bytes()
    assert "--weight-dtype" in str(caught.value.hint)
    assert novel.weight_bytes("int4") == parse_model(configs.LLAMA_8B).weight_bytes("int4")
    assert parse_model({**configs.LLAMA_8B, "quantization_config": "x"}).weight_bytes("bf16")


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
    assert parse_model(config).weight_bytes() == 13_761_264_768


@pytest.mark.parametrize(
    ("field", "entry", "kept"),
    [
        ("ignore", "model.layers.0.self_attn.q_proj", {("qkv", 0)}),
        (
            "ignore",
            "re:.*self_attn.*",
            {(name, index) for name in ("qkv", "attention_output") for index in (0, 1, 10)},
        ),
        (
            "ignored_layers",
            "model.layers.1.mlp.down_proj",
            {("mlp_down", 1)},
        ),  # and not of layer 10
        (
            "exclude_modules",
            "model.layers.1*.self_attn*",
            {(n, index) for n in ("qkv", "attention_output") for index in (1, 10)},
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
    unquantised = Unquantised({"quantization_config": {field: [entry]}})
    names = ("qkv", "attention_output", "mlp_gate_up", "mlp_down", "router")
    assert {
        (name, index) for name in names for index in (0, 1, 10) if unquantised.has(name, index)
    } == kept
