"""Checkpoints of every family, spoiled: they load and run, or one line names what is wrong.

``twostroke models`` must say the same without reading the weights.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from tests.checkpoints import random_tensors
from tests.models.tiny_families import FAMILIES
from tests.steps import StepDriver
from twostroke.checkpoints.open_checkpoint import open_checkpoint
from twostroke.core.config import EngineConfig
from twostroke.core.errors import InsufficientMemoryError, ModelLoadError
from twostroke.runtime.checkpoints.survey import read_survey
from twostroke.runtime.loading import load_torch_executor

EXAMPLES = int(os.environ.get("TWOSTROKE_FUZZ_EXAMPLES", "60"))
LENGTH = 8  # tokens that a checkpoint that loads must run
SIZES = st.sampled_from([-1, 0, 1, 2, 3, 5, 7, 12, 31, 33, 2**31, 10**30])
OTHERS: st.SearchStrategy[Any] = st.sampled_from(
    [
        *(None, True, False, "", "two", "auto", 0.5, -0.5, 1e-40, 1e30, 1e40, float("nan")),
        *([], [1], [None], {}, ["attention"], ["full_attention", "mystery"]),
        *({"type": "yarn"}, {"rope_type": "mystery"}, {"quant_method": "gptq"}),
        *(["linear_attention"] * 2, ["sliding_attention"] * 4),
    ]
)
VALUES = SIZES | OTHERS
# What some family reads, whether a configuration here states it or not.
OWN_FIELDS = """
attention_bias attention_chunk_size attn_logit_softcapping dtype final_logit_softcapping
full_attention_interval head_dim hidden_activation layer_norm_eps layer_types linear_conv_kernel_dim
mamba_conv_bias mamba_d_conv mamba_expand mamba_ssm_dtype max_window_layers mlp_bias mlp_only_layers
moe_layer_freq n_group no_rope_layer_interval no_rope_layers norm_topk_prob num_experts
partial_rotary_factor q_lora_rank quantization_config rope_scaling rope_theta routed_scaling_factor
scoring_func sliding_window sliding_window_pattern text_config time_step_limit topk_group
topk_method use_sliding_window
"""
FIELDS = sorted({name for raw in FAMILIES.values() for name in raw} | {*OWN_FIELDS.split()})
TENSOR = re.compile(r"lacks [\w.]+\.|does not have: [\w.]+\.|[\w.]+\.\w+ in [\w.]+ (has|is) ")
# Of ``rope_parameters`` and the like, which a refusal may miss.
INNER = {"factor", "rope_type", "original_max_position_embeddings", "low_freq_factor"}
FUZZED = settings(
    max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=[*HealthCheck]
)
Tensors = dict[str, torch.Tensor]


@cache
def tensors_of(family: str) -> Tensors:
    return random_tensors(FAMILIES[family])


@st.composite
def spoiled_configs(draw: st.DrawFn) -> tuple[str, dict[str, Any], list[str]]:
    """A family, its configuration with one to three fields changed, and which."""
    family = draw(st.sampled_from(sorted(FAMILIES)))
    raw = deepcopy(FAMILIES[family])
    own = st.sampled_from(sorted(raw))
    names = draw(st.lists(own | st.sampled_from(FIELDS), min_size=1, max_size=3, unique=True))
    for name in names:
        inner = raw.get(name)
        if isinstance(inner, dict) and draw(st.booleans()):
            raw[name] = {**inner, draw(st.sampled_from(sorted(inner))): draw(VALUES)}
        elif draw(st.integers(0, 4)):
            raw[name] = draw(VALUES)
        else:
            raw.pop(name, None)
    return family, raw, names


WAYS = ("drop", "cut", "flatten", "widen", "int8", "empty", "add")
PLACES = [(family, name) for family in sorted(FAMILIES) for name in sorted(tensors_of(family))]


def spoil(tensors: Tensors, name: str, how: str) -> Tensors:
    """The same with one dropped, cut, flattened, of another type, or too many."""
    tensor = tensors[name]
    if how == "add":
        return {**tensors, f"{name}.more": tensor.clone()}
    if how == "drop":
        return {other: kept for other, kept in tensors.items() if other != name}
    changed = {
        "cut": tensor[:-1],
        "flatten": tensor.flatten()[None],
        "widen": torch.cat([tensor, tensor], -1),
        "int8": tensor.to(torch.int8),
        "empty": tensor[:0],
    }
    return {**tensors, name: changed[how].contiguous()}


def refusal_of(raw: dict[str, Any], tensors: Tensors) -> str | None:
    """Why a checkpoint does not load; if it does, it must run. ``models`` must agree."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(raw))
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        flags = {"model": name, "device": "cpu", "max_num_seqs": 1, "kv_cache_memory": 2**26}
        config = EngineConfig.from_flat(flags)
        try:
            driver = StepDriver(load_torch_executor(config))
        except ModelLoadError as error:
            assert error.hint
            with pytest.raises(ModelLoadError, match=re.escape(error.message)):
                read_survey(open_checkpoint(folder))
            return error.message
        except InsufficientMemoryError:
            return None  # the stated context is too long for this machine, which is no fault of it
        survey = read_survey(open_checkpoint(folder))
        length = min(LENGTH, driver.executor.info.max_model_len)
        logits = driver.chunked_logits([0] * length, [length])
        assert logits.shape == (length, driver.executor.info.vocab_size)
        info = driver.executor.info
        sizes = {name: tensor.numel() for name, tensor in tensors.items()}
        unread = 0 if survey.parameters == sum(sizes.values()) else sizes["lm_head.weight"]
        assert survey.parameters == sum(sizes.values()) - unread  # a tied head may be there
        shapes = driver.executor.model.state_shapes
        assert survey.state_bytes == sum(each.nbytes for layer in shapes for each in layer)
        assert survey.kv_bytes_per_token == info.kv_bytes_per_token
        return None


@FUZZED
@given(spoiled_configs())
def test_a_spoiled_config_loads_or_names_the_field(
    spoiled: tuple[str, dict[str, Any], list[str]],
) -> None:
    family, raw, names = spoiled
    message = refusal_of(raw, tensors_of(family))
    if message is not None:
        assert "\n" not in message and len(message) < 400
        inner = {key for value in raw.values() if isinstance(value, dict) for key in value}
        known = {*FIELDS, *names, *inner, *INNER}
        assert TENSOR.search(message) or any(name in message for name in known), message


@FUZZED
@given(st.sampled_from(PLACES), st.sampled_from(WAYS))
def test_a_spoiled_tensor_is_named(place: tuple[str, str], how: str) -> None:
    family, name = place
    message = refusal_of(FAMILIES[family], spoil(tensors_of(family), name, how))
    assert message is not None and name in message and "\n" not in message
