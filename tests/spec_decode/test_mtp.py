"""Protects: a multi-token-prediction head guesses what its formula says, from any batch mix."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.checkpoints import random_tensors, tiny_config, write_checkpoint
from tests.models.tiny_families import DELTA
from tests.spec_decode.engines import answers, make_engine, metric
from twostroke.checkpoints.open_checkpoint import open_checkpoint
from twostroke.core.errors import ConfigError, ModelLoadError
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.llm_engine import LLMEngine
from twostroke.layers.attention.reference import ReferenceAttention
from twostroke.models.decoder import Decoder
from twostroke.models.multi_token_predictor import MultiTokenPredictor, predictor_parameters
from twostroke.models.registry import decoder_family
from twostroke.models.support import parse_runnable
from twostroke.runtime.speculation.predictor_weights import load_predictor
from twostroke.runtime.torch_executor import TorchExecutor

# Attention alone: what is protected here is the head.
RAW = tiny_config("qwen3_5_text", **DELTA, layer_types=["full_attention"] * 2)
PROMPT = torch.randint(0, 96, (21,), generator=torch.Generator().manual_seed(3)).tolist()
ENDLESS: dict[str, Any] = {"ignore_eos": True, "detokenize": False}
SEVERAL = '{"method": "mtp", "num_speculative_tokens": 3, "adaptive": false}'


HYBRID = tiny_config("qwen3_5_text", **DELTA, num_hidden_layers=4)


def head_tensors(raw: dict[str, Any], seed: int = 1) -> dict[str, Tensor]:
    spec, generator = parse_runnable(raw), torch.Generator().manual_seed(seed)
    tensors = {}
    for parameter in predictor_parameters(decoder_family(spec.model_type), spec):
        for name, shape in parameter.parts:
            values = torch.randn(shape, generator=generator)
            tensors[name] = (0.2 if "norm" in name else 0.3) * values
    return tensors


def folder_with_head(
    path: Path, head: dict[str, Tensor] | None = None, raw: dict[str, Any] = RAW
) -> Path:
    head = head_tensors(raw) if head is None else head
    return write_checkpoint(path, raw, random_tensors(raw, std=0.15) | head)


def engine_of(folder: Path, **options: Any) -> LLMEngine:
    return make_engine(model=str(folder), max_model_len=64, **options)


def executor_of(engine: LLMEngine) -> TorchExecutor:
    assert isinstance(engine.executor, TorchExecutor)
    return engine.executor


def naive_drafts(folder: Path, tokens: Sequence[int], count: int) -> list[int]:
    """What the head guesses after ``tokens``: all of it computed anew, without a cache."""
    target = executor_of(engine_of(folder)).model
    assert isinstance(target, Decoder)
    head = load_predictor(open_checkpoint(folder), target, 64, None)
    attention = ReferenceAttention(
        target.spec.sliding_windows, None, [each.attention for each in target.spec.each_layer()]
    )
    with torch.inference_mode():
        everything = torch.tensor(tokens)
        states = target.forward(everything, torch.arange(len(tokens)), attention)[:-1]
        following = [*tokens[1:]]
        for _ in range(count):
            made = _all_states(head, following, states)
            following.append(head.likeliest(made[-1:])[0])
            states = torch.cat([states, made[-1:]])
    return following[len(tokens) - 1 :]


def _all_states(head: MultiTokenPredictor, following: Sequence[int], states: Tensor) -> Tensor:
    specs = [each.attention for each in head.spec.each_layer()]
    attention = ReferenceAttention(head.spec.sliding_windows, None, specs)
    return head.forward(torch.tensor(following), states, torch.arange(len(following)), attention)


def drafts_of(engine: LLMEngine, prompt: Sequence[int], max_tokens: int) -> list[list[int]]:
    """The drafts that each step of one request made, in turn with the tokens it had then."""
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, **ENDLESS)
    engine.submit(GenerationRequest(request_id="0", prompt_token_ids=[*prompt], params=params))
    made, tokens = [], [*prompt]
    while engine.has_work():
        for output in engine.step():
            if output.draft_token_ids:
                made.append([*tokens, -1, *output.draft_token_ids])
            tokens += output.token_ids
    return made


@pytest.mark.parametrize("budget", [5, 64])
def test_drafts_are_those_of_a_pass_over_the_whole_text(tmp_path: Path, budget: int) -> None:
    """Whatever the chunks of the prompt, and whether drafts before were right."""
    folder = folder_with_head(tmp_path / "model")
    options = {"speculative_config": SEVERAL, "max_num_batched_tokens": budget}
    made = drafts_of(engine_of(folder, **options), PROMPT, 12)
    assert len(made) > 2
    for each in made:
        cut = each.index(-1)
        assert naive_drafts(folder, each[:cut], len(each) - cut - 1) == each[cut + 1 :]


@pytest.mark.parametrize(("raw", "temperature"), [(RAW, 0.0), (RAW, 1.0), (HYBRID, 1.0)])
def test_answers_are_those_without_the_head(
    tmp_path: Path, raw: dict[str, Any], temperature: float
) -> None:
    folder = folder_with_head(tmp_path / "model", raw=raw)
    params = [
        SamplingParams(max_tokens=20, temperature=temperature, seed=seed, **ENDLESS)
        for seed in range(4)
    ]
    plain = answers(engine_of(folder), PROMPT, params)
    options = {"speculative_config": SEVERAL, "max_num_batched_tokens": 16}
    engine = engine_of(folder, **options)
    assert answers(engine, PROMPT, params) == plain
    assert answers(engine, PROMPT, params) == plain  # after a prefix hit
    assert metric(engine, "vllm:spec_decode_num_draft_tokens_total") > 0


def test_a_head_that_knows_the_text_is_always_right(tmp_path: Path) -> None:
    """Layers add nothing, so each token follows from the one before; the head reads that one."""
    tensors, head = random_tensors(RAW, std=0.15), head_tensors(RAW)
    for name, tensor in (tensors | head).items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor.zero_()
    head["mtp.norm.weight"].copy_(tensors["model.norm.weight"])
    hidden = RAW["hidden_size"]
    head["mtp.fc.weight"].copy_(torch.cat([torch.eye(hidden), torch.zeros(hidden, hidden)], 1))
    head["mtp.pre_fc_norm_embedding.weight"].zero_()
    folder = write_checkpoint(tmp_path / "model", RAW, tensors | head)
    engine = engine_of(folder, speculative_config=SEVERAL)
    params = SamplingParams(max_tokens=21, temperature=0.0, **ENDLESS)
    [tokens] = answers(engine, PROMPT, [params])
    assert len(tokens) == 21
    drafted = metric(engine, "vllm:spec_decode_num_draft_tokens_total")
    accepted = metric(engine, "vllm:spec_decode_num_accepted_tokens_total")
    assert drafted >= 15 and accepted == drafted


def test_a_checkpoint_without_a_head_is_refused(tmp_path: Path) -> None:
    folder = folder_with_head(tmp_path / "bare", {})
    with pytest.raises(ConfigError, match=r"no multi-token-prediction head \(mtp.fc.weight is"):
        engine_of(folder, speculation="mtp")
    with pytest.raises(ConfigError, match=r"no multi-token-prediction head \(llama\)"):
        engine_of(write_checkpoint(tmp_path / "llama", tiny_config("llama")), speculation="mtp")


def test_a_broken_head_is_refused_only_where_it_is_used(tmp_path: Path) -> None:
    head = head_tensors(RAW)
    del head["mtp.norm.weight"]
    folder = folder_with_head(tmp_path / "model", head)
    engine_of(folder)
    with pytest.raises(ModelLoadError, match=r"lacks mtp.norm.weight"):
        engine_of(folder, speculation="mtp")
