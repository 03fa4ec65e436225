"""Protects: a step that is launched before the last one's result shows in no answer."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.calls import TOKENIZER, TextExecutor, call, finish
from tests.fakes import FakeExecutor, next_token
from twostroke.core.config import EngineConfig
from twostroke.core.errors import InsufficientMemoryError
from twostroke.core.request import FinishReason
from twostroke.core.sampling_params import HostWait
from twostroke.core.step import StepPlan, StepResult
from twostroke.core.structured_outputs import StructuredOutputsParams
from twostroke.engine.llm_engine import LLMEngine
from twostroke.sampling.request_state import RequestState
from twostroke.scheduling.speculation import FixedDepth


class Device(FakeExecutor):
    """Runs ahead, and fails when it is told to.

    Attributes:
        launches: The plans, in order.
        fails: Numbers of steps that fail when they are launched, or when they are collected.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(runs_ahead=True, **options)
        self.launches: list[StepPlan] = []
        self.num_collected = 0
        self.fails: dict[int, str] = {}

    def next_token(self, request: RequestState, token_ids: list[int]) -> int:
        return next_token(token_ids)

    def launch(self, plan: StepPlan) -> None:
        self.launches.append(plan)
        if self.fails.get(plan.step) == "launch":
            self.requests.update(plan)
            raise InsufficientMemoryError("too large")
        super().launch(plan)

    def collect(self) -> StepResult:
        result = super().collect()
        step = self.launches[self.num_collected].step
        while self.fails.get(step) == "launch":  # that one is not collected
            self.num_collected += 1
            step = self.launches[self.num_collected].step
        self.num_collected += 1
        if self.fails.get(step) == "collect":
            raise InsufficientMemoryError("too large")
        return result


def expected(prompt: list[int], count: int, *, stop: int | None = None) -> list[int]:
    """What the fake model answers; ``stop`` ends it."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
        if tokens[-1] == stop:
            break
    return tokens[len(prompt) :]


def run(engine: LLMEngine) -> dict[str, tuple[list[int], FinishReason | None]]:
    answers: dict[str, tuple[list[int], FinishReason | None]] = {}
    for _ in range(500):
        if not engine.has_work():
            return answers
        for output in engine.step():
            before = answers.get(output.request_id, ([], None))[0]
            answers[output.request_id] = (before + output.token_ids, output.finish_reason)
        engine.scheduler.kv.check_integrity()
    raise AssertionError("it does not end")


def test_every_step_but_the_first_is_launched_beside_another() -> None:
    executor = Device()
    engine = LLMEngine(executor)
    engine.submit(call("a", prompt=[1, 2, 3], max_tokens=6))
    assert engine.step() == []  # it is launched
    assert [len(executor._results), len(executor.launches)] == [1, 1]
    assert [output.token_ids for output in engine.step()] == [expected([1, 2, 3], 1)]
    assert [len(executor._results), len(executor.launches)] == [1, 2]
    assert run(engine)["a"][0] == expected([1, 2, 3], 6)[1:]
    assert [plan.is_ahead for plan in executor.launches] == [False] + 5 * [True]
    assert all(share.new_token_ids == [] for share in executor.launches[1].scheduled.values())
    events = engine.recorder.events()
    assert [event.step for event in events] == list(range(6))
    for before, after in pairwise(events):  # one runs after the other
        assert after.time >= before.time + before.duration


def test_no_token_after_the_last_one_is_computed() -> None:
    """The length of an answer is known before its last token is."""
    executor = Device()
    engine = LLMEngine(executor)
    engine.submit(call("a", prompt=[1, 2, 3], max_tokens=4))
    run(engine)
    assert sum(plan.num_tokens for plan in executor.launches) == 3 + 3


def test_a_stop_token_takes_effect_a_step_later_and_shows_nothing_of_it() -> None:
    stop = expected([5, 6], 9)[3]
    executor = Device()
    engine = LLMEngine(executor)
    engine.submit(call("a", prompt=[5, 6], max_tokens=9, stop_token_ids=[stop]))
    tokens, reason = run(engine)["a"]
    assert tokens == expected([5, 6], 9, stop=stop) and reason is FinishReason.STOP
    assert sum(plan.num_tokens for plan in executor.launches) == 2 + len(tokens)  # one in vain
    assert engine.scheduler.kv.pool.num_free == executor.info.num_blocks


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_is_not_overrun(include: bool) -> None:
    tokens = TOKENIZER.encode("one two three four", add_special_tokens=False)
    executor = TextExecutor({"a": tokens})
    executor.info = replace(executor.info, runs_ahead=True)
    engine = LLMEngine(executor, TOKENIZER)
    params: dict[str, Any] = {
        "detokenize": True,
        "stop": "three",
        "include_stop_str_in_output": include,
    }
    engine.submit(call("a", max_tokens=len(tokens), **params))
    outputs = finish(engine)["a"]
    text = "".join(output.text for output in outputs)
    assert text == ("one two three" if include else "one two ")
    assert outputs[-1].finish_reason is FinishReason.STOP


def test_a_name_that_is_used_again_at_once_is_another_request() -> None:
    executor = Device()
    engine = LLMEngine(executor)
    engine.submit(call("a", prompt=[1, 2, 3], max_tokens=9))
    for _ in range(3):
        engine.step()
    engine.abort("a")  # while its step runs
    engine.submit(call("a", prompt=[7, 8], max_tokens=5))
    assert run(engine)["a"] == (expected([7, 8], 5), FinishReason.LENGTH)


@pytest.mark.parametrize(
    ("params", "wait"),
    [
        ({"logprobs": 1}, HostWait.LOGPROBS),
        ({"frequency_penalty": 0.5}, HostWait.PENALTIES),
        ({"presence_penalty": 0.5}, HostWait.PENALTIES),
        ({"structured_outputs": StructuredOutputsParams(regex="[a-z]*")}, HostWait.FORM),
        ({"min_tokens": 2, "seed": 3, "temperature": 0.7}, None),
    ],
)
def test_steps_say_what_they_are_waited_for(params: dict[str, Any], wait: HostWait | None) -> None:
    executor = Device()
    engine = LLMEngine(executor, TOKENIZER)
    engine.submit(call("a", max_tokens=9))
    for _ in range(3):
        engine.step()
    engine.submit(call("b", max_tokens=3, **params))
    run(engine)
    events = engine.recorder.events()
    with_b = [any(item.request_id == "b" for item in event.scheduled) for event in events]
    assert any(with_b) and not all(with_b)
    assert [event.host_wait for event in events] == [wait if each else None for each in with_b]
    after = [plan.is_ahead for plan in executor.launches[1:]]
    assert after == [not (each and wait) for each in with_b[:-1]]


@pytest.mark.parametrize("when", ["launch", "collect"])
def test_a_step_that_fails_takes_its_own_requests_alone(when: str) -> None:
    executor = Device()
    engine = LLMEngine(executor)
    engine.submit(call("a", prompt=[1, 2, 3], max_tokens=9))
    for _ in range(3):
        engine.step()
    executor.fails[4] = when
    assert run(engine)["a"][1] is FinishReason.ERROR
    engine.submit(call("b", prompt=[4, 5], max_tokens=9))
    assert run(engine)["b"] == (expected([4, 5], 9), FinishReason.LENGTH)
    assert [event.error is not None for event in engine.recorder.events()].count(True) == 1


def test_what_ended_while_its_step_ran_is_counted_once() -> None:
    stop = expected([5, 6], 9)[3]
    config = EngineConfig.from_flat({"model": "fake", "device": "cpu"})
    engine = LLMEngine(Device(), config=config)
    engine.submit(call("a", prompt=[5, 6], max_tokens=9, stop_token_ids=[stop]))
    engine.submit(call("b", prompt=[7, 8, 9], max_tokens=12))
    engine.submit(call("c", prompt=[1, 2, 3], max_tokens=12))
    for step in range(30):
        if step == 3:
            engine.abort("c")
        if engine.has_work():
            engine.step()
    events = engine.recorder.events()
    finished = [each.request_id for event in events for each in event.finished]
    assert sorted(finished) == ["a", "b", "c"]
    drawn = dict.fromkeys("abc", 0)
    for event in events:
        for item in event.scheduled:
            drawn[item.request_id] += item.num_new_tokens
    assert (drawn["a"], drawn["b"]) == (len(expected([5, 6], 9, stop=stop)), 12)


def test_speculation_is_waited_for_at_every_step() -> None:
    """What guesses reads the tokens of each step, of those too in which nothing is guessed."""
    executor = Device(num_drafts=2)
    engine = LLMEngine(executor)
    engine.scheduler.depth = FixedDepth(2)
    engine.submit(call("a", prompt=[1, 2, 3], max_tokens=9))
    assert run(engine)["a"][0] == expected([1, 2, 3], 9)
    assert {event.host_wait for event in engine.recorder.events()} == {HostWait.DRAFTS}
    assert not any(plan.is_ahead for plan in executor.launches)


def test_a_client_that_goes_leaves_nothing_that_runs() -> None:
    executor = Device()
    engine = LLMEngine(executor)
    engine.submit(call("a", prompt=[1, 2, 3], max_tokens=9))
    for _ in range(3):
        engine.step()
    assert engine.has_work()
    engine.forget_client()
    assert not engine.has_work() and not executor._results
    engine.submit(call("a", prompt=[4, 5], max_tokens=5))
    before = len(engine.recorder.events())
    assert run(engine)["a"] == (expected([4, 5], 5), FinishReason.LENGTH)
    events = engine.recorder.events()[before:]
    assert [each.request_id for event in events for each in event.finished] == ["a"]
    assert all(event.duration >= 0 for event in events)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_traffic_gets_what_it_would_get_alone(data: st.DataObject) -> None:
    """Stops, aborts, preemption and failures between a launch and its collection."""
    options = {
        "max_num_batched_tokens": data.draw(st.sampled_from([4, 9, 64])),
        "max_num_seqs": data.draw(st.sampled_from([2, 5])),
        "enable_prefix_caching": data.draw(st.booleans()),
        "policy": data.draw(st.sampled_from(["fcfs", "priority", "fair"])),
    }
    executor = Device(num_blocks=data.draw(st.sampled_from([9, 12, 40])), max_model_len=32)
    for step in data.draw(st.sets(st.integers(0, 30), max_size=2)):
        executor.fails[step] = data.draw(st.sampled_from(["launch", "collect"]))
    flat = {"model": "fake", "device": "cpu", **options}
    engine = LLMEngine(executor, config=EngineConfig.from_flat(flat))
    calls, aborts = dict[int, list[Any]](), dict[int, list[str]]()
    wanted: dict[str, list[int]] = {}
    for number in range(data.draw(st.integers(1, 7))):
        prompt = [(number % 3 * 13 + i * 5) % 49 + 1 for i in range(data.draw(st.integers(1, 20)))]
        count, stop = data.draw(st.integers(1, 12)), data.draw(st.sampled_from([None, 7, 20]))
        extra: dict[str, Any] = data.draw(
            st.sampled_from([{}, {}, {"logprobs": 0}, {"presence_penalty": 0.1}])
        )
        stops = {} if stop is None else {"stop_token_ids": [stop]}
        one = call(str(number), prompt=prompt, max_tokens=count, **stops, **extra)
        calls.setdefault(data.draw(st.integers(0, 8)), []).append(one)
        wanted[str(number)] = expected(prompt, count, stop=stop)
        if data.draw(st.integers(0, 4)) == 0:
            aborts.setdefault(data.draw(st.integers(0, 20)), []).append(str(number))
    answers: dict[str, list[int]] = {}
    reasons: dict[str, FinishReason] = {}
    for step in range(600):
        for one in calls.get(step, ()):
            engine.submit(one)
        for name in aborts.get(step, ()):
            engine.abort(name)
        if not engine.has_work() and step > max(calls):
            break
        for output in engine.step() if engine.has_work() else ():
            answers.setdefault(output.request_id, []).extend(output.token_ids)
            assert output.request_id not in reasons, "a token after the last"
            if output.finish_reason is not None:
                reasons[output.request_id] = output.finish_reason
        engine.scheduler.kv.check_integrity()
    assert not engine.has_work()
    assert engine.scheduler.kv.pool.num_free == executor.info.num_blocks
    aborted = {name for names in aborts.values() for name in names}
    for name, tokens in wanted.items():
        own = answers.get(name, [])
        if name in aborted or reasons[name] is FinishReason.ERROR:
            assert own == tokens[: len(own)], name
        else:
            assert own == tokens, name
