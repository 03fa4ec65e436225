"""The loop around the scheduler: text, stop strings, and failures that end what they must and
nothing else.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.engine.calls import TOKENIZER, NanExecutor, TextExecutor, call, finish
from tests.fakes import FakeExecutor, failed_with, next_token
from twostroke.core.config import EngineConfig
from twostroke.core.errors import (
    EngineDeadError,
    ErrorMessage,
    InsufficientMemoryError,
    InvalidRequestError,
    NonFiniteLogitsError,
    RequestFailedError,
    ShuttingDownError,
)
from twostroke.core.output import RequestOutput
from twostroke.core.request import FinishReason
from twostroke.engine.engine import MAX_CONSECUTIVE_FAILURES
from twostroke.engine.llm_engine import LLMEngine


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


@pytest.mark.parametrize(
    "params",
    [
        {"stop": "three"},
        {"stop": "three", "include_stop_str_in_output": True},
        {"stop": ["e f", "one"], "min_tokens": 4},
        {"stop": "four", "min_tokens": 15},
        {"stop": "nothing"},
        {"stop": "r", "stop_token_ids": [TOKENIZER.encode("u", add_special_tokens=False)[0]]},
    ],
)
def test_several_tokens_a_step_end_where_single_ones_would(params: dict[str, Any]) -> None:
    """Tokens behind a stop string are in no output, no count and no later step."""
    answers = []
    for num_drafts in (0, 5):
        says = TOKENIZER.encode("one two three four", add_special_tokens=False)
        engine = LLMEngine(TextExecutor({"a": says}, num_drafts), TOKENIZER)
        engine.submit(call("a", detokenize=True, max_tokens=len(says), **params))
        outputs = finish(engine)["a"]
        ends = outputs[-1].finish_reason, outputs[-1].stop_reason
        tokens = [token for output in outputs for token in output.token_ids]
        generated = engine.metrics.registry.get_sample_value(
            "vllm:generation_tokens_total",
            {"engine": "0", "model_name": engine.config.model.model},
        )
        answers.append(("".join(output.text for output in outputs), tokens, ends, generated))
        assert generated == len(tokens)
        shares = [share for event in engine.recorder.events() for share in event.scheduled]
        assert sum(share.num_new_tokens for share in shares) == len(tokens)
    assert answers[0] == answers[1]


@pytest.mark.parametrize("error", [None, ErrorMessage.of(ShuttingDownError("x"))])
def test_an_abort_keeps_what_was_computed(error: ErrorMessage | None) -> None:
    """A shutdown's too: it took whole shared prompts out of the folder of a warm start."""
    engine = LLMEngine(FakeExecutor())
    engine.submit(call("a", [1, 2, 3, 4, 5]))
    engine.step()
    engine.abort("a", error)
    engine.submit(call("b", [1, 2, 3, 4, 5]))
    assert finish(engine)["b"][-1].num_cached_tokens == 4


def test_what_may_be_wrong_is_not_cached() -> None:
    """An engine that has failed drops the blocks of what ran."""
    engine = LLMEngine(FakeExecutor())
    engine.submit(call("a", [1, 2, 3, 4, 5]))
    engine.step()
    pool = engine.scheduler.kv.pool
    assert any(pool.content(block) for block in range(pool.num_blocks))
    engine.die(EngineDeadError("x"))
    assert not any(pool.content(block) for block in range(pool.num_blocks))


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
        'vllm:cache_config_info{block_size="4",cache_dtype="auto",enable_prefix_caching="True",'
        'engine="0",',
    ):
        assert line in metrics, line
    events = engine.recorder.events()
    assert [event.num_tokens for event in events] == [13, 1, 1, 1, 1, 1]
    assert events[3].prefix_hits == 12
    assert [f.request_id for f in events[-1].finished] == ["b"]
