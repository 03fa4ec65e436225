"""Protects: distributions come once, with the first token, and answers go on as if never cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests import wire
from tests.checkpoints import tiny_config, write_checkpoint
from twostroke.core.config import EngineConfig
from twostroke.core.distribution import Distribution
from twostroke.core.errors import InvalidRequestError
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.output import RequestOutput
from twostroke.core.request import FinishReason
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.llm_engine import LLMEngine
from twostroke.runtime.loading import load_torch_executor
from twostroke.runtime.reference import naive_logits

STOPS = tuple(range(0, 96, 4))


def make_engine(folder: Path, num_blocks: int = 60, **options: Any) -> LLMEngine:
    path = write_checkpoint(folder / "model", tiny_config("llama"))
    options = {
        "model": str(path),
        "device": "cpu",
        "max_model_len": 64,
        "max_num_batched_tokens": 16,
        "max_prefill_chunk": 5,
        "block_size": 8,
        "kv_cache_memory": num_blocks * 8 * 2 * 2 * 2 * 8 * 4,
        **options,
    }
    config = EngineConfig.from_flat(options)
    return LLMEngine(load_torch_executor(config), config=config)


def submit(engine: LLMEngine, name: str, prompt: list[int], **params: Any) -> None:
    sampling = SamplingParams(detokenize=False, **params)
    engine.submit(GenerationRequest(request_id=name, prompt_token_ids=prompt, params=sampling))


def answer(
    engine: LLMEngine, prompt: list[int], **params: Any
) -> tuple[list[int], FinishReason | None]:
    submit(engine, "a", prompt, **params)
    tokens: list[int] = []
    reason = None
    while engine.has_work():
        for output in engine.step():
            tokens += output.token_ids
            reason = output.finish_reason or reason
    return tokens, reason


@pytest.mark.parametrize("num_blocks", [30, 9])
@pytest.mark.parametrize("speculation", [None, "ngram"])
def test_one_with_the_first_token_whatever_happens(
    tmp_path: Path, num_blocks: int, speculation: str | None
) -> None:
    """With nine blocks requests are preempted after their first token, and run once more."""
    extra: dict[str, Any] = {} if speculation is None else {"speculation": speculation}
    engine = make_engine(tmp_path, num_blocks, **extra)
    prompts = {str(i): [(i * 7 + j * 3) % 96 for j in range(18)] for i in range(3)}
    for name, prompt in prompts.items():
        submit(engine, name, prompt, seed=int(name), max_tokens=20, ignore_eos=True, distribution=9)
    found: dict[str, Distribution] = {}
    first: dict[str, int] = {}
    while engine.has_work():
        for output in engine.step():
            assert wire.decode(wire.encode(output), RequestOutput) == output
            if output.token_ids:
                first.setdefault(output.request_id, output.token_ids[0])
            if output.distribution is not None:
                assert output.request_id not in found
                found[output.request_id] = output.distribution
    assert (engine.scheduler.batch.num_preemptions > 0) == (num_blocks == 9)
    model = engine.executor.model  # type: ignore[attr-defined]
    for name, prompt in prompts.items():
        logprobs = torch.log_softmax(naive_logits(model, prompt)[-1], -1)
        assert found[name].token_id == first[name] and found[name].position == len(prompt)
        assert len(found[name].tokens) >= 9
        for token in found[name].tokens:
            expected = logprobs[token.token_id].item()
            assert token.logprob == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_an_answer_that_was_cut_anywhere_goes_on(tmp_path: Path, temperature: float) -> None:
    """Penalties, ``min_tokens`` and stop tokens count what the prompt brought of the answer."""
    engine = make_engine(tmp_path)
    prompt = [3, 1, 4, 1, 5, 9]
    params: dict[str, Any] = {
        "temperature": temperature,
        "seed": 12,
        "presence_penalty": 1.5,
        "frequency_penalty": 0.5,
        "min_tokens": 7,
        "stop_token_ids": STOPS,
    }
    whole, reason = answer(engine, prompt, max_tokens=20, **params)
    assert len(whole) > 7 or reason is FinishReason.STOP
    for count in range(1, len(whole)):
        rest = answer(
            engine,
            prompt + whole[:count],
            max_tokens=20 - count,
            answer_tokens_in_prompt=count,
            **params | {"min_tokens": min(7, 20 - count)},
        )
        assert rest == (whole[count:], reason)
    without = answer(engine, prompt + whole[:6], max_tokens=14, **params)
    assert without[0] != whole[6:], "the prompt's part of the answer would not matter"


def test_what_has_no_meaning_is_refused(tmp_path: Path) -> None:
    engine = make_engine(tmp_path)
    for params, param in (
        ({"answer_tokens_in_prompt": 3}, "answer_tokens_in_prompt"),
        ({"answer_tokens_in_prompt": -1}, "answer_tokens_in_prompt"),
        ({"answer_tokens_in_prompt": 1, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"distribution": 0}, "distribution"),
        ({"distribution": 257}, "distribution"),
        ({"distribution": 2.5}, "distribution"),
    ):
        fields: dict[str, Any] = params
        with pytest.raises(InvalidRequestError) as caught:
            submit(engine, "a", [1, 2, 3], max_tokens=4, **fields)
        assert caught.value.param == param
    assert not engine.has_work()
