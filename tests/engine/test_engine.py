"""The loop around the scheduler: text, stop strings, and failures that end what they must and
nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.fakes import VOCAB, FakeExecutor, failed_with, next_token
from tests.text.tiny_tokenizers import byte_level
from twostroke.core.config import EngineConfig
from twostroke.core.errors import (
    EngineDeadError,
    ErrorMessage,
    InsufficientMemoryError,
    InvalidRequestError,
    NonFiniteLogitsError,
    RequestFailedError,
    RequestTooLargeError,
)
from twostroke.core.output import RequestOutput
from twostroke.core.request import FinishReason
from twostroke.core.sampling_params import SamplingParams
from twostroke.core.step import StepPlan, StepResult
from twostroke.engine.engine import MAX_CONSECUTIVE_FAILURES
from twostroke.engine.llm_engine import LLMEngine
from twostroke.engine.messages import GenerationRequest, make_requests
from twostroke.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer(byte_level())


class TextExecutor(FakeExecutor):
    """Says given token sequences, one per request id, whatever the prompt."""

    def __init__(self, says: dict[str, list[int]]) -> None:
        super().__init__()
        self.info = replace(self.info, vocab_size=TOKENIZER.vocab_size, eos_token_ids=frozenset())
        self.says = says

    def execute(self, plan: StepPlan) -> StepResult:
        result = super().execute(plan)
        for request_id in result.token_ids:
            result.token_ids[request_id] = [
                self.says[request_id][self.requests[request_id].num_output_tokens]
            ]
        return result


class NanExecutor(FakeExecutor):
    """Reports one request's numbers as broken in its second step."""

    def execute(self, plan: StepPlan) -> StepResult:
        result = super().execute(plan)
        if "bad" in result.token_ids and plan.scheduled["bad"].start > 0:
            del result.token_ids["bad"]
            result.errors["bad"] = ErrorMessage.of(NonFiniteLogitsError("NaN"))
        return result


def call(request_id: str, prompt: list[int] | None = None, **params: Any) -> GenerationRequest:
    fields = {"max_tokens": 6, "ignore_eos": True, "detokenize": False, **params}
    return GenerationRequest(
        request_id=request_id,
        prompt_token_ids=prompt or [1, 2, 3],
        params=SamplingParams(**fields),
    )


def finish(engine: LLMEngine, limit: int = 200) -> dict[str, list[RequestOutput]]:
    """Step until nothing is left; outputs by request, integrity checked after each step."""
    outputs: dict[str, list[RequestOutput]] = {}
    for _ in range(limit):
        if not engine.has_work():
            break
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
        engine.scheduler.kv.check_integrity()
    assert not engine.has_work()
    assert engine.scheduler.kv.pool.num_free == engine.scheduler.kv.pool.num_blocks
    return outputs


def say(text: str, **params: Any) -> tuple[str, RequestOutput]:
    """What reaches the client when the model says ``text``, and the last output."""
    tokens = TOKENIZER.encode(text, add_special_tokens=False)
    engine = LLMEngine(TextExecutor({"a": tokens}), TOKENIZER)
    fields: dict[str, Any] = {"detokenize": True, "max_tokens": len(tokens), **params}
    engine.submit(call("a", **fields))
    outputs = finish(engine)["a"]
    return "".join(output.text for output in outputs), outputs[-1]


def test_text_comes_whole_and_ends_by_length() -> None:
    text, last = say("héllo wörld 🙂!")
    assert text == "héllo wörld 🙂!"
    assert last.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("include, expected", [(False, "one two "), (True, "one two three")])
def test_stop_string_ends_the_request_and_is_not_leaked(include: bool, expected: str) -> None:
    text, last = say("one two three four", stop="three", include_stop_str_in_output=include)
    assert text == expected
    assert (last.finish_reason, last.stop_reason) == (FinishReason.STOP, "three")


def test_text_withheld_for_a_stop_string_is_given_back_at_the_end() -> None:
    text, last = say("one two thr", stop="three")
    assert text == "one two thr"
    assert last.finish_reason is FinishReason.LENGTH


def test_no_stop_string_before_min_tokens() -> None:
    tokens = len(TOKENIZER.encode("stop it. stop", add_special_tokens=False))
    text, last = say("stop it. stop", stop="stop", min_tokens=tokens - 1)
    assert text == "stop it. "
    assert last.finish_reason is FinishReason.STOP


def test_stop_token_is_left_out_of_the_text_unless_asked_for() -> None:
    tokens = TOKENIZER.encode("one two!", add_special_tokens=False)
    text, last = say("one two!", stop_token_ids=[tokens[-1]])
    assert text == TOKENIZER.decode(tokens[:-1])
    assert last.stop_reason == tokens[-1]
    text, _ = say("one two!", stop_token_ids=[tokens[-1]], include_stop_str_in_output=True)
    assert text == "one two!"


def test_one_request_with_broken_numbers_fails_alone() -> None:
    engine = LLMEngine(NanExecutor())
    engine.submit(call("bad"))
    engine.submit(call("good"))
    outputs = finish(engine)
    assert failed_with(outputs["bad"][-1].error, NonFiniteLogitsError)
    assert outputs["good"][-1].finish_reason is FinishReason.LENGTH
    assert engine.dead is None


def test_failing_pass_fails_its_requests_with_the_cause_and_the_engine_goes_on() -> None:
    executor = FakeExecutor()
    engine = LLMEngine(executor)
    engine.submit(call("a"))
    executor.raise_next = ValueError("boom")
    (output,) = engine.step()
    assert failed_with(output.error, RequestFailedError)
    assert output.error is not None and "ValueError: boom" in output.error.message
    engine.submit(call("b"))
    assert finish(engine)["b"][-1].finish_reason is FinishReason.LENGTH
    assert engine.recorder.events()[0].error is not None


def test_engine_that_keeps_failing_says_so_and_ends_everything() -> None:
    """Never a silent hang: all requests get the error, and further ones are refused with it."""
    executor = FakeExecutor()
    engine = LLMEngine(executor, config=EngineConfig.from_flat({"max_num_seqs": 1}))
    for number in range(MAX_CONSECUTIVE_FAILURES + 1):
        engine.submit(call(str(number)))
    outputs: list[RequestOutput] = []
    for _ in range(MAX_CONSECUTIVE_FAILURES):
        executor.raise_next = RuntimeError("device lost")
        outputs += engine.step()
    assert {o.request_id for o in outputs if o.finish_reason is FinishReason.ERROR} == {
        "0",
        "1",
        "2",
        "3",
    }
    assert failed_with(outputs[-1].error, EngineDeadError)
    assert not engine.has_work()
    with pytest.raises(EngineDeadError):
        engine.submit(call("later"))


def test_every_end_is_counted_once_and_stands_in_an_event() -> None:
    """Whatever ended a request: itself, a failing pass, an abort, or the end of the engine."""
    executor = FakeExecutor()
    engine = LLMEngine(executor, config=EngineConfig.from_flat({"max_num_seqs": 2}))
    for request_id in ("done", "aborted", "waiting"):
        engine.submit(call(request_id, max_tokens=2))
    engine.abort("aborted")
    finish(engine)
    for number in range(MAX_CONSECUTIVE_FAILURES + 2):
        engine.submit(call(f"failed{number}", max_tokens=30))
    for _ in range(MAX_CONSECUTIVE_FAILURES - 1):
        executor.raise_next = RuntimeError("device lost")
        engine.step()
    text = engine.metrics.render()[0].decode()
    counts = {
        reason: f'engine="0",finished_reason="{reason}",model_name="pilot"}} {n}'
        for reason, n in (("length", "2.0"), ("abort", "1.0"), ("error", "4.0"))
    }
    assert all(line in text for line in counts.values()), text
    finished = [f.request_id for event in engine.recorder.events() for f in event.finished]
    assert sorted(finished) == [
        "aborted",
        "done",
        "failed0",
        "failed1",
        "failed2",
        "failed3",
        "waiting",
    ]
    executor.raise_next = RuntimeError("device lost")
    engine.step()
    assert (
        'engine="0",finished_reason="error",model_name="pilot"} 5.0'
        in engine.metrics.render()[0].decode()
    )
    assert (
        'vllm:num_requests_running{engine="0",model_name="pilot"} 0.0'
        in engine.metrics.render()[0].decode()
    )


def test_stop_string_on_the_last_allowed_token_counts_as_stop() -> None:
    tokens = TOKENIZER.encode("one two three", add_special_tokens=False)
    engine = LLMEngine(TextExecutor({"a": tokens}), TOKENIZER)
    engine.submit(call("a", detokenize=True, max_tokens=len(tokens), stop="three"))
    assert finish(engine)["a"][-1].finish_reason is FinishReason.STOP
    assert [f.reason for event in engine.recorder.events() for f in event.finished] == [
        FinishReason.STOP
    ]


def test_a_closed_engine_says_so() -> None:
    engine = LLMEngine(FakeExecutor())
    engine.submit(call("a"))
    assert [output.finish_reason for output in engine.close()] == [FinishReason.ABORT]
    with pytest.raises(EngineDeadError, match="closed"):
        engine.submit(call("b"))


def test_abort_ends_all_samples_and_frees_their_blocks() -> None:
    engine = LLMEngine(FakeExecutor())
    engine.submit(call("a", n=3, max_tokens=50))
    for _ in range(3):
        engine.step()
    outputs = engine.abort("a")
    assert [(o.index, o.finish_reason) for o in outputs] == [
        (i, FinishReason.ABORT) for i in range(3)
    ]
    engine.scheduler.kv.check_integrity()
    assert engine.scheduler.kv.pool.num_free == engine.scheduler.kv.pool.num_blocks
    assert engine.abort("a") == []


def test_samples_of_one_request_differ_by_their_seeds_and_repeat() -> None:
    def tokens() -> list[list[int]]:
        engine = LLMEngine(FakeExecutor())
        engine.submit(call("a", n=3, seed=7))
        outputs = finish(engine)["a"]
        return [[t for o in outputs if o.index == i for t in o.token_ids] for i in range(3)]

    first = tokens()
    assert first == tokens()
    assert len({tuple(t) for t in first}) == 3
    assert first[0][0] == next_token([1, 2, 3], 7), "the first sample keeps the client's seed"


@pytest.mark.parametrize(
    "request_, error, param",
    [
        (GenerationRequest(request_id="x", prompt_token_ids=[]), InvalidRequestError, "prompt"),
        (call("x", [1, VOCAB]), InvalidRequestError, "prompt"),
        (call("x", [1, -1]), InvalidRequestError, "prompt"),
        (call("x", [1] * 128), RequestTooLargeError, "prompt"),
        (call("x", [1] * 100, max_tokens=29), RequestTooLargeError, "max_tokens"),
        (call("x", stop_token_ids=[VOCAB]), InvalidRequestError, "stop_token_ids"),
        (call("x", detokenize=True), InvalidRequestError, "detokenize"),
    ],
)
def test_bad_requests_are_refused_before_anything_is_queued(
    request_: GenerationRequest, error: type[InvalidRequestError], param: str
) -> None:
    engine = LLMEngine(FakeExecutor())
    with pytest.raises(error) as caught:
        engine.submit(request_)
    assert caught.value.param == param
    assert not engine.has_work()


def test_an_id_in_use_is_refused_whole() -> None:
    engine = LLMEngine(FakeExecutor())
    engine.submit(call("a"))
    with pytest.raises(InvalidRequestError, match="in use"):
        engine.submit(call("a", n=2))
    assert set(finish(engine)) == {"a"}
    engine.submit(call("a", n=2))
    assert set(finish(engine)) == {"a"}


def test_too_little_memory_for_a_batch_does_not_end_the_engine() -> None:
    """Three clients with prompts that are too large in a row must not take the server down."""
    executor = FakeExecutor()
    engine = LLMEngine(executor)
    for number in range(MAX_CONSECUTIVE_FAILURES + 1):
        engine.submit(call(str(number)))
        executor.raise_next = InsufficientMemoryError("too large")
        assert engine.step()[0].finish_reason is FinishReason.ERROR
    engine.submit(call("fine"))
    assert finish(engine)["fine"][-1].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    "fields, param",
    [
        ({"priority": "high"}, "priority"),
        ({"priority": None}, "priority"),
        ({"cache_salt": 5}, "cache_salt"),
        ({"request_id": "a#1"}, "request_id"),
        ({"request_id": ""}, "request_id"),
        ({"prompt_token_ids": [True]}, "prompt"),
        ({"prompt_token_ids": [1.0]}, "prompt"),
    ],
)
def test_wrong_types_from_python_are_refused(fields: dict[str, Any], param: str) -> None:
    """A bad value that reached the scheduler's queue would end the engine for everybody."""
    with pytest.raises(InvalidRequestError) as caught:
        LLMEngine(FakeExecutor()).submit(replace(call("x"), **fields))
    assert caught.value.param == param


def test_labels_stand_in_the_event_of_the_first_step() -> None:
    engine = LLMEngine(FakeExecutor())
    engine.submit(replace(call("a"), labels={"user": "joe"}))
    engine.submit(call("b"))
    finish(engine)
    labelled = [
        [(item.request_id, item.labels) for item in event.labelled]
        for event in engine.recorder.events()
    ]
    assert labelled[0] == [("a", {"user": "joe"})]
    assert not any(labelled[1:])


def test_bad_words_are_banned_as_they_are_written() -> None:
    engine = LLMEngine(TextExecutor({}), TOKENIZER)
    request = engine.prepare(call("a", detokenize=True, bad_words=["\n", " "]))
    newline, space = (
        tuple(TOKENIZER.encode(word, add_special_tokens=False)) for word in ("\n", " ")
    )
    assert set(request.bad_words_token_ids) >= {newline, space}
    only_newline = engine.prepare(call("b", detokenize=True, bad_words=["\n"]))
    assert space not in only_newline.bad_words_token_ids


def test_parameters_are_checked_once_for_all_samples_and_prompts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the event loop's thread: 256 bad words, or 262,144 token ids, took seconds for 256 prompts
    or samples.
    """
    engine = LLMEngine(FakeExecutor(), TOKENIZER)
    encoded: list[str] = []
    made: list[SamplingParams] = []
    check = SamplingParams.__post_init__

    def encode_all(_: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
        encoded.extend(texts)
        return [[1] for _ in texts]

    def counted(params: SamplingParams) -> None:
        made.append(params)
        check(params)

    monkeypatch.setattr(Tokenizer, "encode_all", encode_all)
    first = call("a", detokenize=True, bad_words=["x", "y"], prompt_logprobs=1, n=16)
    monkeypatch.setattr(SamplingParams, "__post_init__", counted)
    samples = make_requests(engine.prepare(first))
    assert len(encoded) == 6  # as written, at the start of a text, and after a space
    assert {sample.bad_words_token_ids for sample in samples} == {((1,),)}
    assert [sample.params.prompt_logprobs for sample in samples] == [1] + [None] * 15
    engine.prepare(replace(first, request_id="b", prompt_token_ids=[4, 5]))
    assert (len(encoded), len(made)) == (6, 1)
    engine.prepare(call("none", detokenize=True))
    engine.prepare(call("same", detokenize=True, bad_words=["x", "y"]))
    assert len(encoded) == 6
    engine.prepare(call("c", detokenize=True, bad_words=["x", "z"]))
    assert len(encoded) == 12


def test_without_max_tokens_an_answer_may_fill_context_or_cache() -> None:
    engine = LLMEngine(FakeExecutor(num_blocks=8))  # 32 slots, context 128
    engine.submit(call("a", max_tokens=None))
    tokens = sum(len(output.token_ids) for output in finish(engine)["a"])
    assert tokens == 32 - 3


def test_metrics_and_events_tell_what_happened() -> None:
    engine = LLMEngine(FakeExecutor())
    engine.submit(call("a", list(range(1, 14)), max_tokens=3))
    finish(engine)
    engine.submit(call("b", list(range(1, 14)), max_tokens=3))
    finish(engine)
    metrics = engine.metrics.render()[0].decode()
    label = '{engine="0",model_name="pilot"}'
    for line in (
        f"vllm:prompt_tokens_total{label} 26.0",
        f"vllm:generation_tokens_total{label} 6.0",
        f"vllm:prefix_cache_hits_total{label} 12.0",
        'vllm:request_success_total{engine="0",finished_reason="length",model_name="pilot"} 2.0',
        f"vllm:time_to_first_token_seconds_count{label} 2.0",
        f"vllm:num_requests_running{label} 0.0",
        f"vllm:request_params_n_sum{label} 2.0",
        f"vllm:request_max_num_generation_tokens_sum{label} 6.0",
        'vllm:cache_config_info{block_size="4",enable_prefix_caching="True",engine="0",model_name="pilot",num_gpu_blocks=',
    ):
        assert line in metrics, line
    events = engine.recorder.events()
    assert [event.num_tokens for event in events] == [13, 1, 1, 1, 1, 1]
    assert events[3].prefix_hits == 12
    assert [f.request_id for f in events[-1].finished] == ["b"]
