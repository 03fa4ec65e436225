"""The offline API: what ``LLM`` returns, and how it refuses wrong arguments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tests.checkpoints import random_tensors, tiny_config, write_checkpoint
from tests.fakes import FakeExecutor
from tests.runtime.adapters.peft_files import adapter_config, adapter_tensors, write_adapter
from tests.text.tiny_tokenizers import byte_level
from twostroke import LLM, EngineConfig, SamplingParams, StructuredOutputsParams
from twostroke.core.errors import ConfigError, EngineDeadError, EngineError, InvalidRequestError
from twostroke.core.request import FinishReason
from twostroke.engine.llm_engine import LLMEngine
from twostroke.llm import Prompt

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("pilot", device="cpu", max_model_len=256, kv_cache_memory="8MiB", seed=1) as llm:
        yield llm


def test_prompts_come_as_text_or_tokens_alone_or_listed(llm: LLM) -> None:
    tokens = llm.tokenizer.encode("Prefill is")
    prompts: list[Prompt] = ["Prefill is", tokens]
    one, two = llm.generate(prompts, GREEDY)
    assert one.outputs[0].token_ids == two.outputs[0].token_ids
    assert (
        llm.generate(tokens, GREEDY)[0].text
        == one.text
        == llm.generate("Prefill is", GREEDY)[0].text
    )
    assert one.outputs[0].finish_reason is FinishReason.LENGTH
    assert len(one.outputs[0].token_ids) == 8


def test_each_prompt_may_have_its_own_parameters_and_samples(llm: LLM) -> None:
    several = SamplingParams(
        n=3, seed=5, max_tokens=4, logprobs=2, prompt_logprobs=1, ignore_eos=True
    )
    one, many = llm.generate(["Hello", "Prefill is"], [GREEDY, several], use_tqdm=True)
    assert [len(sample.token_ids) for sample in many.outputs] == [4, 4, 4]
    assert len({tuple(sample.token_ids) for sample in many.outputs}) > 1
    assert all(
        len(sample.logprobs) == 4 and sample.cumulative_logprob < 0 for sample in many.outputs
    )
    assert len(many.prompt_logprobs) == len(many.prompt_token_ids) - 1
    assert one.prompt_logprobs == []


def test_chat_takes_one_conversation_or_several(llm: LLM) -> None:
    conversation = [{"role": "user", "content": "Hello"}]
    one = llm.chat(conversation, GREEDY)
    two = llm.chat([conversation, conversation], GREEDY)
    assert [result.text for result in two] == [one[0].text] * 2
    with pytest.raises(InvalidRequestError):
        llm.chat([])


def test_answers_have_the_form_that_is_asked_for(llm: LLM) -> None:
    """Written as for vLLM; a dict of the fields will do."""
    form = StructuredOutputsParams(choice=["prefill", "decode"])
    wanted = SamplingParams(temperature=1, max_tokens=40, structured_outputs=form)
    fields: Any = {"choice": ["x"]}
    same = SamplingParams(max_tokens=40, structured_outputs=fields)
    one, two, free = llm.generate(["Hello"] * 3, [wanted, same, GREEDY])
    assert one.text in ("prefill", "decode") and two.text == "x" and len(free.text) > 1
    with pytest.raises(InvalidRequestError, match="'not' is not supported"):
        llm.generate(
            "Hello", SamplingParams(structured_outputs=StructuredOutputsParams(json={"not": {}}))
        )
    with pytest.raises(InvalidRequestError, match="structured_outputs must be"):
        SamplingParams(structured_outputs=cast(Any, {"schema": {}}))


def test_stream_gives_the_same_text_in_pieces_and_leaves_nothing_behind(llm: LLM) -> None:
    pieces = [output.text for output in llm.stream("Prefill is", GREEDY)]
    assert "".join(pieces) == llm.generate("Prefill is", GREEDY)[0].text
    stream = llm.stream("Prefill is", GREEDY)
    next(stream)
    with pytest.raises(InvalidRequestError, match="another call"):
        llm.generate("Hello", GREEDY)
    stream.close()  # type: ignore[attr-defined]
    assert not llm.engine.has_work()


def test_one_failed_request_does_not_take_the_others_along(llm: LLM) -> None:
    contradiction = SamplingParams(allowed_token_ids=[5], banned_token_ids=[5], max_tokens=4)
    failed, fine = llm.generate(["Hello", "Hello"], [contradiction, GREEDY])
    assert fine.text
    assert failed.outputs[0].finish_reason is FinishReason.ERROR
    with pytest.raises((EngineError, InvalidRequestError)):
        _ = failed.text


MISTAKES: list[tuple[Any, Any]] = [
    (5, None),
    (None, None),
    ([1.5], None),
    ("hi", {"n": 2}),
    (["a", 3], None),
]


@pytest.mark.parametrize("prompts, params", MISTAKES)
def test_mistakes_are_named(llm: LLM, prompts: Any, params: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        llm.generate(prompts, params)
    assert caught.value.param in ("prompts", "sampling_params")
    assert not llm.engine.has_work()


def test_the_models_own_sampling_defaults_hold_without_parameters(llm: LLM) -> None:
    defaults: dict[str, Any] = llm.engine.info.sampling_defaults
    assert llm.default_params() == SamplingParams(**defaults)
    assert llm.default_params(temperature=2.0).temperature == 2.0


def test_a_closed_llm_says_so() -> None:
    llm = LLM("pilot", device="cpu", max_model_len=64, kv_cache_memory=2**20)
    llm.close()
    with pytest.raises(EngineDeadError, match="closed"):
        llm.generate("Hello", GREEDY)


def test_a_script_that_was_written_for_vllm() -> None:
    """Only its import is changed."""
    with LLM(
        model="pilot",
        dtype="float",
        device="cpu",
        max_model_len=128,
        tensor_parallel_size=1,
        enforce_eager=True,
        trust_remote_code=False,
        kv_cache_memory="8MiB",
    ) as llm:
        tokens = llm.tokenizer.encode("Prefill is")
        prompts: list[Prompt] = [
            {"prompt": "Prefill is"},
            {"prompt_token_ids": tokens},
            {"prompt": "Prefill is", "prompt_token_ids": tokens},
        ]
        outputs = llm.generate(prompts, sampling_params=GREEDY, use_tqdm=False)
        assert [output.prompt for output in outputs] == ["Prefill is", None, None]
        assert len({output.outputs[0].text for output in outputs}) == 1
        (one,) = llm.generate({"prompt_token_ids": tokens}, GREEDY)
        assert one.prompt_token_ids == tokens
        assert one.outputs[0].finish_reason == "length"
        messages = [{"role": "user", "content": "hi"}]
        assert llm.chat(messages, sampling_params=GREEDY, use_tqdm=False)[0].text
        assert "".join(o.text for o in llm.stream({"prompt": "Prefill is"}, GREEDY)) == (
            outputs[0].outputs[0].text
        )
        for prompt in ({}, {"prompt_embeds": 1}, {"prompt": None}, {"prompt_token_ids": ["a"]}):
            with pytest.raises(InvalidRequestError):
                llm.generate([prompt], GREEDY)
    with pytest.raises(ConfigError, match="no code of a checkpoint"):
        LLM("pilot", trust_remote_code=True)
    with pytest.raises(ConfigError, match="--pipeline-parallel-size must be 1"):
        LLM("pilot", pipeline_parallel_size=2)


@pytest.mark.parametrize(("device", "defaults"), [("cpu", (64, 2048)), ("cuda:0", (256, 8192))])
def test_the_defaults_of_a_live_engine_are_its_devices(
    device: str, defaults: tuple[int, int]
) -> None:
    def limits(**given: int) -> tuple[int, int]:
        executor = FakeExecutor(num_blocks=4096)
        executor.info = replace(executor.info, device=device)
        engine = LLMEngine(executor, None, EngineConfig.from_flat({"model": "fake", **given}))
        scheduling = engine.scheduler.config
        return scheduling.max_num_seqs, scheduling.max_num_batched_tokens

    assert limits() == defaults
    assert limits(max_num_seqs=64) == (64, defaults[1])


def test_the_operators_template_and_sampling_defaults() -> None:
    """The same flags as the server's, from the configuration to the executor."""
    options: dict[str, Any] = {
        "chat_template": "{{ greeting }}, {{ messages[0].content }}",
        "default_chat_template_kwargs": {"greeting": "Hello"},
        "override_generation_config": {"temperature": 0.5, "max_new_tokens": 3},
    }
    with LLM("pilot", device="cpu", max_model_len=64, kv_cache_memory="4MiB", **options) as llm:
        assert llm.default_params().temperature == 0.5
        (answer,) = llm.chat([{"role": "user", "content": "you"}], GREEDY)
        assert llm.tokenizer.decode(answer.prompt_token_ids) == "Hello, you"
        assert len(answer.outputs[0].token_ids) == 3
    for name, wrong in (("chat_template", "{% if %}"), ("override_generation_config", "[]")):
        with pytest.raises(ConfigError, match="--" + name.replace("_", "-")):
            LLM("pilot", device="cpu", **{name: wrong})


def test_an_adapter_is_named_by_the_call(tmp_path: Path) -> None:
    raw = tiny_config("llama", vocab_size=331)
    model, tensors = write_checkpoint(tmp_path / "base", raw), adapter_tensors(random_tensors(raw))
    (model / "tokenizer.json").write_text(byte_level().to_str())
    folder = write_adapter(tmp_path / "lora", adapter_config(), tensors)
    with LLM(str(model), kv_cache_memory="1MiB", lora=(f"own={folder}",)) as llm:
        base, adapted, again = (
            llm.generate([[*range(5, 25)]], GREEDY, adapter=name)[0].outputs[0].token_ids
            for name in ("", "own", "")
        )
        streamed = [
            t for out in llm.stream([*range(5, 25)], GREEDY, adapter="own") for t in out.token_ids
        ]
        assert base == again != adapted == streamed
        with pytest.raises(InvalidRequestError, match="there is no adapter 'other'"):
            llm.generate("x", GREEDY, adapter="other")
