"""What is read of a checkpoint's files, and what is refused by name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import LLAMA3_ROPE, tiny_config
from tests.model_spec import configs
from tests.model_spec.test_counts import BASE
from twostroke.core.errors import ModelLoadError
from twostroke.model_spec.generation_config import read_generation, read_sampling_defaults
from twostroke.model_spec.reader import parse_model, read_model


def test_old_and_new_spellings_give_the_same_model() -> None:
    scaling = {name: value for name, value in LLAMA3_ROPE.items() if name != "rope_theta"}
    old = tiny_config("llama", rope_theta=10000.0, rope_scaling=scaling)
    new = tiny_config("llama", rope_parameters=LLAMA3_ROPE, dtype="float32")
    del new["torch_dtype"]
    assert parse_model(old) == parse_model(new)
    rope = parse_model(old).rope
    assert rope is not None and rope.kind == "llama3"


def test_sliding_windows_follow_each_family() -> None:
    def windows(model_type: str, **changes: Any) -> tuple[int | None, ...]:
        return parse_model(tiny_config(model_type, num_hidden_layers=3, **changes)).sliding_windows

    assert windows("llama", sliding_window=5) == (None, None, None)
    assert windows("mistral", sliding_window=5) == (5, 5, 5)
    assert windows("mistral", sliding_window=None) == (None, None, None)
    assert windows("qwen2", sliding_window=5) == (None, None, None)
    assert windows("qwen2", sliding_window=5, use_sliding_window=True, max_window_layers=2) == (
        None,
        None,
        5,
    )
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    assert windows("qwen3", sliding_window=5, use_sliding_window=True, layer_types=kinds) == (
        5,
        None,
        5,
    )


def test_defaults_are_those_of_transformers() -> None:
    """Absent and null differ for a few families; others ignore what Llama reads."""
    absent = {name: v for name, v in tiny_config("mistral").items() if "key_value" not in name}
    absent["num_attention_heads"] = 16

    def kv_heads(raw: dict[str, Any]) -> int:
        attention = parse_model(raw).layers[0].attention
        assert attention is not None
        return attention.kv_heads

    assert kv_heads(absent) == 8 and kv_heads({**absent, "num_key_value_heads": None}) == 16
    assert kv_heads({**absent, "model_type": "llama"}) == 16
    assert parse_model(absent).sliding_windows == (4096, 4096)
    kinds = ["sliding_attention"] * 2
    assert parse_model(tiny_config("qwen3", layer_types=kinds)).sliding_windows == (None, None)
    biased = parse_model(tiny_config("mistral", attention_bias=True))
    assert biased == parse_model(tiny_config("mistral"))


def test_end_tokens_come_from_both_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny_config("llama", eos_token_id=2)))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 2]}))
    assert read_model(tmp_path).eos_token_ids == (7, 2)


def test_yarn_stretches_the_context() -> None:
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    spec = parse_model(tiny_config("qwen2", rope_scaling=yarn))
    assert (spec.stated_length, spec.context_length) == (256, 1024)


def test_multimodal_files_give_their_text_model() -> None:
    nested = {
        "model_type": "gemma3",
        "text_config": {**BASE, "model_type": "gemma3_text", "head_dim": 16},
    }
    assert parse_model(nested).model_type == "gemma3_text"


def test_what_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(
        ModelLoadError, match="unknown architecture: model_type is 'mamba9'"
    ) as caught:
        parse_model({"model_type": "mamba9"})
    assert caught.value.hint is not None and "deepseek_v3" in caught.value.hint
    with pytest.raises(ModelLoadError, match="hidden_size is missing"):
        parse_model({"model_type": "llama"})
    with pytest.raises(ModelLoadError, match="hidden_size must be a positive integer, got '4096'"):
        parse_model({"model_type": "llama", "hidden_size": "4096"})
    with pytest.raises(ModelLoadError, match="cannot read"):
        read_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(configs.LLAMA_8B))
    assert read_model(tmp_path) == parse_model(configs.LLAMA_8B)


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
        parse_model({**config, **changes})
    assert caught.value.hint


@pytest.mark.parametrize(
    "content", [b"\xff\xfe", b"{" * 100_000, b'{"a":' * 100_000, b"[1]", b'{"hidden_size": 1e999}']
)
def test_files_that_are_no_config_are_one_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelLoadError):
        read_model(tmp_path)


def test_configuration_and_file_lookup_import_no_torch() -> None:
    code = (
        "import sys, twostroke.model_spec.reader, twostroke.model_spec.model_files;"
        " sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_sampling_defaults_come_from_the_generation_config(tmp_path: Path) -> None:
    """As vLLM's users expect: what the makers recommend holds where a client gives nothing."""
    path = tmp_path / "generation_config.json"
    assert read_sampling_defaults(read_generation(tmp_path), tmp_path) == {}
    path.write_text(
        json.dumps({"temperature": 0.6, "top_k": 20, "max_length": 99, "eos_token_id": 2})
    )
    assert read_sampling_defaults(read_generation(tmp_path), tmp_path) == {
        "temperature": 0.6,
        "top_k": 20,
    }
    path.write_text(json.dumps({"top_p": 7}))
    with pytest.raises(ModelLoadError, match="top_p"):
        read_sampling_defaults(read_generation(tmp_path), tmp_path)
