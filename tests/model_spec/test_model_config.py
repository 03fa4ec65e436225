from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import LLAMA3_ROPE, random_tensors, tiny_config
from twostroke.core.errors import ModelLoadError
from twostroke.model_spec.model_config import ModelConfig


def test_old_and_new_spellings_give_the_same_model() -> None:
    scaling = {name: value for name, value in LLAMA3_ROPE.items() if name != "rope_theta"}
    old = tiny_config("llama", rope_theta=10000.0, rope_scaling=scaling)
    new = tiny_config("llama", rope_parameters=LLAMA3_ROPE, dtype="float32")
    del new["torch_dtype"]
    assert ModelConfig.from_dict(old) == ModelConfig.from_dict(new)
    assert ModelConfig.from_dict(old).rope.kind == "llama3"


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_number_of_parameters_is_that_of_the_checkpoint(model_type: str, tied: bool) -> None:
    biases = {} if model_type == "qwen2" else {"attention_bias": True, "mlp_bias": True}
    raw = tiny_config(model_type, tie_word_embeddings=tied, head_dim=12, **biases)
    config = ModelConfig.from_dict(raw)
    assert config.num_parameters == sum(tensor.numel() for tensor in random_tensors(raw).values())
    assert config.weight_bytes(2) == 2 * config.num_parameters
    assert config.kv_bytes_per_token(2) == 2 * 2 * (2 * 12) * 2


def test_sliding_windows_follow_each_family() -> None:
    def windows(model_type: str, **changes: Any) -> tuple[int | None, ...]:
        return ModelConfig.from_dict(
            tiny_config(model_type, num_hidden_layers=3, **changes)
        ).sliding_windows

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


def test_end_tokens_come_from_both_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny_config("llama", eos_token_id=2)))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 2]}))
    assert ModelConfig.from_folder(tmp_path).eos_token_ids == (7, 2)


def test_yarn_stretches_the_context() -> None:
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    config = ModelConfig.from_dict(tiny_config("qwen2", rope_scaling=yarn))
    assert (config.max_position_embeddings, config.context_length) == (256, 1024)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "unknown architecture: model_type is 'gpt2'"),
        ({"model_type": None}, "unknown architecture"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers must be a positive integer, got 'two'"),
        ({"num_key_value_heads": 3}, "is no multiple of num_key_value_heads"),
        ({"head_dim": 7}, "head_dim must be even"),
        ({"hidden_act": "gelu"}, "unsupported activation"),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
            "unsupported rope scaling 'dynamic'",
        ),
        ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "low_freq_factor is missing"),
        ({"rope_scaling": "linear"}, "rope_scaling must be an object"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized \\(gptq\\)"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings must be true or false"),
        ({"eos_token_id": "</s>"}, "eos_token_id must be token ids"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries for 2 layers"),
        (
            {"layer_types": ["full_attention", "chunked_attention"]},
            "layer_types holds \\['chunked_attention'\\]",
        ),
    ],
)
def test_what_cannot_be_computed_is_refused_with_a_hint(
    changes: dict[str, Any], message: str
) -> None:
    raw = tiny_config("qwen3", use_sliding_window=True)
    with pytest.raises(ModelLoadError, match=message) as failure:
        ModelConfig.from_dict({**raw, **changes})
    assert failure.value.hint


def test_an_unreadable_config_is_refused_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"has no config\.json") as failure:
        ModelConfig.from_folder(tmp_path)
    assert failure.value.hint
    for text in ("{", "[]"):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ModelLoadError) as failure:
            ModelConfig.from_folder(tmp_path)
        assert failure.value.hint


def test_configuration_and_file_lookup_import_no_torch() -> None:
    code = (
        "import sys, twostroke.model_spec.model_config, twostroke.model_spec.model_files;"
        " sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_sampling_defaults_come_from_the_generation_config(tmp_path: Path) -> None:
    """As vLLM's users expect: what the model's makers recommend holds where a client says
    nothing.
    """
    path = tmp_path / "generation_config.json"
    assert ModelConfig.sampling_defaults(tmp_path) == {}
    path.write_text(
        json.dumps({"temperature": 0.6, "top_k": 20, "max_length": 99, "eos_token_id": 2})
    )
    assert ModelConfig.sampling_defaults(tmp_path) == {"temperature": 0.6, "top_k": 20}
    path.write_text(json.dumps({"top_p": 7}))
    with pytest.raises(ModelLoadError, match="top_p"):
        ModelConfig.sampling_defaults(tmp_path)
