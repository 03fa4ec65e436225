"""Logits equal those of transformers on tiny random checkpoints, whole and in chunks."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

from tests.checkpoints import LLAMA3_ROPE, random_tensors, tiny_config, write_checkpoint
from tests.steps import StepDriver
from twostroke.layers.attention.compiled import CompiledBackend
from twostroke.layers.attention.reference import ReferenceAttention
from twostroke.layers.recurrent_state import FreshStates
from twostroke.runtime.torch_executor import TorchExecutor

YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
DELTA = {
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
}
LATENT = {
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "moe_intermediate_size": 24,
    "num_experts_per_tok": 3,
    "kv_lora_rank": 20,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 10,
    "v_head_dim": 12,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": tiny_config("llama"),
    "llama-tied-llama3-rope": tiny_config(
        "llama", rope_parameters=LLAMA3_ROPE, tie_word_embeddings=True
    ),
    "llama-linear-rope-biases": tiny_config(
        "llama",
        rope_scaling={"type": "linear", "factor": 2.0},
        attention_bias=True,
        mlp_bias=True,
        head_dim=16,
    ),
    "llama-one-kv-head": tiny_config("llama", num_key_value_heads=1),
    "llama-all-kv-heads": tiny_config("llama", num_key_value_heads=4),
    "mistral-window": tiny_config("mistral", sliding_window=7),
    "mistral-no-window": tiny_config("mistral", sliding_window=None),
    "qwen2-tied-yarn": tiny_config("qwen2", rope_parameters=YARN_ROPE, tie_word_embeddings=True),
    "qwen2-window-above": tiny_config(
        "qwen2", use_sliding_window=True, sliding_window=5, max_window_layers=1
    ),
    "qwen3": tiny_config("qwen3", head_dim=12),
    "phi3": tiny_config("phi3", sliding_window=7, pad_token_id=0),
    "phi4-partial": tiny_config("phi3", partial_rotary_factor=0.5, head_dim=16, pad_token_id=0),
    "granite": tiny_config(
        "granite",
        attention_multiplier=0.2,
        residual_multiplier=0.3,
        embedding_multiplier=3.0,
        logits_scaling=2.5,
        tie_word_embeddings=True,
    ),
    "olmo2": tiny_config("olmo2"),
    "olmo3": tiny_config("olmo3", num_hidden_layers=4, sliding_window=9),
    "olmo3-yarn": tiny_config(
        "olmo3",
        num_hidden_layers=4,
        sliding_window=9,
        rope_scaling={**YARN_ROPE, "attention_factor": 1.2},
    ),
    "smollm3": tiny_config("smollm3", num_hidden_layers=4, pad_token_id=0),
    "glm4": tiny_config("glm4", head_dim=16, attention_bias=True, pad_token_id=0),
    "cohere2": tiny_config(
        "cohere2",
        num_hidden_layers=4,
        sliding_window=9,
        layer_norm_eps=1e-5,
        logit_scale=0.5,
        tie_word_embeddings=True,
    ),
    "gemma2": tiny_config(
        "gemma2",
        head_dim=12,
        hidden_activation="gelu_pytorch_tanh",
        sliding_window=9,
        query_pre_attn_scalar=30,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0,
        tie_word_embeddings=True,
    ),
    "gemma3": tiny_config(
        "gemma3_text",
        num_hidden_layers=6,
        head_dim=12,
        hidden_activation="gelu_pytorch_tanh",
        sliding_window=9,
        query_pre_attn_scalar=30,
        tie_word_embeddings=True,
    ),
    "mixtral": tiny_config("mixtral", num_local_experts=6, sliding_window=7),
    "qwen2-moe": tiny_config(
        "qwen2_moe", **EXPERTS, shared_expert_intermediate_size=20, mlp_only_layers=[1]
    ),
    "qwen3-moe": tiny_config(
        "qwen3_moe", **EXPERTS, num_hidden_layers=3, decoder_sparse_step=2, norm_topk_prob=True
    ),
    "glm4-moe": tiny_config(
        "glm4_moe",
        head_dim=16,
        n_routed_experts=8,
        moe_intermediate_size=24,
        num_experts_per_tok=3,
        n_group=4,
        topk_group=2,
        routed_scaling_factor=1.7,
        use_qk_norm=True,
        attention_bias=True,
    ),
    "qwen3.5": tiny_config("qwen3_5_text", num_hidden_layers=5, **DELTA),
    "qwen3.5-moe": tiny_config(
        "qwen3_5_moe_text",
        num_hidden_layers=4,
        shared_expert_intermediate_size=20,
        **DELTA,
        **EXPERTS,
    ),
    "qwen3-next": tiny_config(
        "qwen3_next",
        num_hidden_layers=4,
        shared_expert_intermediate_size=20,
        **DELTA,
        **EXPERTS,
    ),
    "gpt-oss": tiny_config(
        "gpt_oss",
        head_dim=16,
        sliding_window=9,
        num_local_experts=5,
        num_experts_per_tok=2,
        rope_parameters={**YARN_ROPE, "truncate": False},
    ),
    "deepseek-v2": tiny_config(
        "deepseek_v2",
        **LATENT,
        q_lora_rank=None,
        n_group=4,
        topk_group=2,
        topk_method="group_limited_greedy",
        routed_scaling_factor=1.5,
        first_k_dense_replace=1,
    ),
    "deepseek-v3": tiny_config(
        "deepseek_v3",
        **LATENT,
        q_lora_rank=12,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        attention_bias=True,
        rope_scaling={**YARN_ROPE, "mscale": 1.0, "mscale_all_dim": 0.7},
    ),
    "gemma3-linear": tiny_config(
        "gemma3_text",
        num_hidden_layers=6,
        head_dim=12,
        hidden_activation="gelu_pytorch_tanh",
        sliding_window=9,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
        rope_local_base_freq=1000.0,
        tie_word_embeddings=True,
    ),
}
# In bfloat16 on a CPU all layers go in one compiled call if heads are multiples of 16, as every
# real model's are.
WIDE: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
COMPILED: dict[str, dict[str, Any]] = {
    "compiled-llama": tiny_config("llama", rope_parameters=LLAMA3_ROPE, **WIDE),
    "compiled-qwen2": tiny_config("qwen2", tie_word_embeddings=True, **WIDE),
    "compiled-qwen3": tiny_config("qwen3", **WIDE),
}
TOKENS = torch.randint(0, 96, (45,), generator=torch.Generator().manual_seed(1)).tolist()


def transformers_logits(
    raw: dict[str, Any], tensors: dict[str, torch.Tensor], dtype: torch.dtype
) -> torch.Tensor:
    """What transformers computes for ``TOKENS`` in one pass: ``[tokens, vocab]``."""
    from transformers import AutoModelForCausalLM

    with TemporaryDirectory() as folder:
        write_checkpoint(Path(folder), raw, tensors)
        model, found = AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="eager", dtype=dtype, output_loading_info=True
        )
    assert not (found["missing_keys"] or found["unexpected_keys"] or found["mismatched_keys"])
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([TOKENS])).logits[0].float()
    return logits


def load(
    folder: Path, raw: dict[str, Any], tensors: dict[str, torch.Tensor], **options: Any
) -> StepDriver:
    return StepDriver.load(write_checkpoint(folder, raw, tensors), block_size=4, **options)


def whole_logits(executor: TorchExecutor) -> torch.Tensor:
    model = executor.model
    with torch.inference_mode():
        specs = [layer.attention for layer in model.spec.each_layer()]
        attention = ReferenceAttention(model.spec.sliding_windows, None, specs)
        states = FreshStates(model.state_shapes, len(TOKENS), model.device)
        positions = torch.arange(len(TOKENS))
        hidden = model.forward(torch.tensor(TOKENS), positions, attention, states=states)
        return model.logits(hidden)


@pytest.mark.parametrize("family", FAMILIES)
def test_float32_logits_equal_those_of_transformers(family: str, tmp_path: Path) -> None:
    raw = FAMILIES[family]
    # The delta rule's rounding grows with the inputs, in both implementations.
    tensors = random_tensors(raw, std=0.1 if "linear_num_key_heads" in raw else 0.3)
    expected = transformers_logits(raw, tensors, torch.float32)
    driver = load(tmp_path, raw, tensors)
    assert (whole_logits(driver.executor) - expected).abs().max() < 1e-4
    for chunks in ([45], [1] * 45, [10, 20, 1, 1, 2, 11], [3, 8, 9, 25]):
        driver.reset()
        assert (driver.chunked_logits(TOKENS, chunks) - expected).abs().max() < 1e-4


@pytest.mark.parametrize("family", ["llama-tied-llama3-rope", "mistral-window", "qwen3", *COMPILED])
def test_bfloat16_logits_are_as_near_to_float32_as_those_of_transformers(
    family: str, tmp_path: Path
) -> None:
    # Random bfloat16 rounding differs between any two correct implementations; allow twice
    # transformers' own error.
    raw = {**FAMILIES, **COMPILED}[family]
    tensors = {name: tensor.bfloat16() for name, tensor in random_tensors(raw).items()}
    exact = transformers_logits(raw, {n: t.float() for n, t in tensors.items()}, torch.float32)
    tolerance = 2 * (transformers_logits(raw, tensors, torch.bfloat16) - exact).abs().mean()
    driver = load(tmp_path, raw, tensors, dtype="bfloat16")
    assert driver.executor.model.dtype == torch.bfloat16
    assert isinstance(driver.executor.backend, CompiledBackend) == (family in COMPILED)
    for chunks in ([45], [20, 1, 24]):
        driver.reset()
        assert (driver.chunked_logits(TOKENS, chunks) - exact).abs().mean() < tolerance


def test_requests_of_different_lengths_in_one_step_do_not_change_each_other(tmp_path: Path) -> None:
    raw = FAMILIES["mistral-window"]
    driver = load(tmp_path, raw, random_tensors(raw))
    alone = []
    for length in (45, 3, 17):
        driver.reset()
        alone.append(driver.chunked_logits(TOKENS[:length], [length])[-1])
    driver.reset()
    driver.add("a", TOKENS[:45])
    driver.add("b", TOKENS[:3])
    driver.add("c", TOKENS[:17])
    driver.hidden({"a": 30, "c": 5})
    mixed = driver.hidden({"a": 14, "b": 2, "c": 11})
    mixed = driver.hidden({"b": 1, "a": 1, "c": 1})
    for row, expected in zip(("a", "b", "c"), alone):
        logits = driver.executor.model.logits(mixed[row])[-1]
        assert (logits - expected).abs().max() < 1e-4
