"""Step events: built from plan and result, and written and read without loss."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.observability.runs import make_request, make_run, make_step, observe
from twostroke.core.errors import RequestFailedError
from twostroke.core.request import FinishReason
from twostroke.core.step import Decision, Reason
from twostroke.observability.events import (
    FinishedRequest,
    HeldBackRequest,
    PreemptedRequest,
    ScheduledTokens,
    SchedulerStats,
    StepEvent,
)


def test_shares_are_split_into_prompt_and_output() -> None:
    first, second, *_ = make_run()
    (chunk,) = first.scheduled
    assert (chunk.start, chunk.num_tokens, chunk.num_prompt_tokens, chunk.sampled) == (
        0,
        4,
        4,
        False,
    )
    assert chunk.queued_since == 0.5
    assert chunk.num_blocks == 2
    last_chunk, other = second.scheduled
    assert (last_chunk.num_prompt_tokens, last_chunk.sampled, last_chunk.queued_since) == (
        2,
        True,
        None,
    )
    assert (other.num_prompt_tokens, other.queued_since) == (2, 0.6)
    recomputed = make_run()[3].scheduled[1]
    assert (recomputed.num_tokens, recomputed.num_prompt_tokens) == (3, 2)
    assert make_run()[4].scheduled[0].num_prompt_tokens == 0


def test_decisions_are_sorted_into_preempted_and_held_back() -> None:
    run = make_run()
    assert run[2].preempted == [PreemptedRequest(request_id="b", by="a")]
    assert run[2].held_back == []
    assert run[0].held_back == [HeldBackRequest(request_id="b", reason=Reason.TOKEN_BUDGET)]
    assert run[3].finished == [FinishedRequest(request_id="a", reason=FinishReason.STOP)]


def test_times_budget_and_timings() -> None:
    event = make_run()[1]
    assert event.time == 1.1
    assert event.duration == pytest.approx(0.1)
    assert (event.num_tokens, event.token_budget, event.num_prompt_tokens) == (4, 8, 4)
    assert event.timings == {"forward": 0.05, "schedule": 0.001}


def test_cache_numbers() -> None:
    stats = SchedulerStats(total_blocks=8, free_blocks=6, allocated_slots=32, used_slots=24)
    event = observe(3, 0.0, [], stats=stats, prefix=(30, 16)).event
    assert (event.prefix_queries, event.prefix_hits) == (30, 16)
    assert event.kv_waste == 0.25
    empty = observe(0, 0.0, [], stats=SchedulerStats()).event
    assert (empty.kv_waste, empty.error) == (0.0, None)


def test_only_a_failed_pass_has_an_error() -> None:
    error = RequestFailedError("the forward pass failed: boom")
    assert make_step(
        0, 0.0, [(make_request("a"), 0, 6, 0), (make_request("b"), 0, 6, 0)], error=error
    ).error == str(error)
    plan_of_two = make_step(0, 0.0, [(make_request("a"), 0, 6, 1)])
    assert plan_of_two.error is None


tokens = st.builds(
    ScheduledTokens,
    request_id=st.text(max_size=5),
    start=st.integers(0, 99),
    num_tokens=st.integers(1, 9),
    num_prompt_tokens=st.integers(0, 9),
    sampled=st.booleans(),
    num_new_tokens=st.integers(0, 3),
    num_blocks=st.integers(0, 9),
    queued_since=st.none() | st.floats(0, 1e6),
)
step_events = st.builds(
    StepEvent,
    step=st.integers(0, 2**40),
    time=st.floats(0, 1e9),
    duration=st.floats(0, 1e3),
    scheduled=st.lists(tokens, max_size=3),
    held_back=st.lists(
        st.builds(
            HeldBackRequest,
            request_id=st.just("x"),
            reason=st.sampled_from(Reason),
            behind=st.integers(0, 9),
        ),
        max_size=2,
    ),
    finished=st.lists(
        st.builds(FinishedRequest, request_id=st.just("x"), reason=st.sampled_from(FinishReason)),
        max_size=2,
    ),
    timings=st.dictionaries(st.text(max_size=5), st.floats(0, 10), max_size=3),
    error=st.none() | st.text(max_size=9),
)


@given(event=step_events)
def test_round_trips(event: StepEvent) -> None:
    assert StepEvent.from_dict(event.to_dict()) == event
    assert StepEvent.from_dict(json.loads(event.to_json())) == event
    assert msgspec.json.decode(event.to_json(), type=StepEvent) == event


def test_reading_ignores_new_fields_and_refuses_wrong_ones() -> None:
    values = make_run()[0].to_dict()
    assert StepEvent.from_dict({**values, "from_the_future": 1}).step == 0
    with pytest.raises(msgspec.ValidationError):
        StepEvent.from_dict({**values, "step": "zero"})


def test_decisions_about_unscheduled_requests_need_no_request() -> None:
    decision = Decision("q", Reason.NO_FREE_BLOCK, behind=4)
    event = make_step(1, 2.0, [], decisions=[decision], stats=SchedulerStats(num_waiting=5))
    assert event.held_back[0].behind == 4
    assert event.num_waiting == 5
