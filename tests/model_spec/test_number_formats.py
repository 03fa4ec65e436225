"""Number formats of checkpoints, and what a quantised one leaves in its own precision."""

from __future__ import annotations

import pytest

from tests.model_spec import configs
from twostroke.core.errors import ConfigError
from twostroke.model_spec.reader import parse_model
from twostroke.model_spec.unquantised import Unquantised


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
