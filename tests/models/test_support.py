"""Models that the decoder would compute differently are refused, each with a hint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import random_tensors, tiny_config
from twostroke.checkpoints.open_checkpoint import open_checkpoint
from twostroke.core.errors import ModelLoadError
from twostroke.models.support import parse_runnable, read_runnable
from twostroke.runtime.weights import loaded_bytes


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_number_of_parameters_is_that_of_the_checkpoint(model_type: str, tied: bool) -> None:
    biases = {} if model_type == "qwen2" else {"attention_bias": True, "mlp_bias": True}
    raw = tiny_config(model_type, tie_word_embeddings=tied, head_dim=12, **biases)
    spec = parse_runnable(raw)
    assert spec.num_parameters == sum(tensor.numel() for tensor in random_tensors(raw).values())
    assert loaded_bytes(spec, 2) == spec.weight_bytes("bfloat16") == 2 * spec.num_parameters
    assert spec.kv_bytes_per_token("float16") == 2 * 2 * (2 * 12) * 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "unknown architecture: model_type is 'gpt2'"),
        ({"model_type": None}, "unknown architecture"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers must be a positive integer, got 'two'"),
        ({"num_key_value_heads": 3}, "is no multiple of num_key_value_heads"),
        ({"head_dim": 7}, "head_dim must be even"),
        ({"hidden_act": "relu2"}, "unsupported activation"),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
            "unsupported rope scaling 'dynamic'",
        ),
        ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "low_freq_factor is missing"),
        ({"rope_scaling": "linear"}, "rope_scaling must be an object"),
        ({"quantization_config": {"quant_method": "hqq"}}, "quantized \\(hqq\\)"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq: bits is missing"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "quantized \\(mxfp4\\)"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings must be true or false"),
        ({"eos_token_id": "</s>"}, "eos_token_id must be token ids"),
        ({"max_position_embeddings": None}, "max_position_embeddings is missing"),
        ({"num_local_experts": 4}, "experts are not supported in this architecture"),
        ({"attn_logit_softcapping": 30.0}, "attn_logit_softcapping"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        (
            {"rope_scaling": {"type": "yarn", "factor": 2.0, "mscale": 1, "mscale_all_dim": -1}},
            "mscale_all_dim must be a positive number",
        ),
        ({"model_type": "qwen3_vl_moe_text"}, "architecture: model_type is 'qwen3_vl_moe_text'"),
        ({"model_type": "jamba"}, "unknown architecture: model_type is 'jamba'"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries for 2 layers"),
        (
            {"layer_types": ["full_attention", "chunked_attention"]},
            "layer_types says 'chunked_attention' of layer 1",
        ),
    ],
)
def test_what_cannot_be_computed_is_refused_with_a_hint(
    changes: dict[str, Any], message: str
) -> None:
    raw = tiny_config("qwen3", use_sliding_window=True)
    with pytest.raises(ModelLoadError, match=message) as failure:
        parse_runnable({**raw, **changes})
    assert failure.value.hint


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
        ({"num_kv_shared_layers": 2}, "num_kv_shared_layers: no layer before layer 0"),
        ({"num_kv_shared_layers": 3}, "num_kv_shared_layers must be from 0 to 2, got 3"),
        ({"per_layer_config": {"1": {"sliding_window": 3}}}, "per_layer_config of layer 1 has"),
        ({"per_layer_config": {"1": 3}}, "per_layer_config of layer 1 has 3"),
        ({"enable_moe_block": True}, "num_experts is missing"),
    ],
)
def test_what_gemma_4_cannot_have_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message) as failure:
        parse_runnable(tiny_config("gemma4_text", **changes))
    assert failure.value.hint


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ssm_multipliers": [1.0, 2.0]}, "ssm_multipliers must be 5 numbers"),
        ({"mlp_multipliers": ["a", 1]}, "mlp_multipliers must be 2 numbers"),
        ({"time_step_limit": [0.5, 0.1]}, "time_step_limit must be two numbers in order"),
        ({"time_step_limit": ["x", 0.1]}, "time_step_limit must be two numbers in order"),
        ({"hidden_act": "gelu"}, "unsupported activation of Mamba-2 layers: 'gelu'"),
    ],
)
def test_what_mamba_2_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    sizes = {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_state": 12}
    with pytest.raises(ModelLoadError, match=message) as failure:
        parse_runnable(tiny_config("falcon_h1", **sizes, **changes))
    assert failure.value.hint


def test_an_unreadable_config_is_refused_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"has no config\.json") as failure:
        read_runnable(open_checkpoint(tmp_path))
    assert failure.value.hint
    for text in ("{", "[]"):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ModelLoadError) as failure:
            read_runnable(open_checkpoint(tmp_path))
        assert failure.value.hint
