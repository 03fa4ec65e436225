"""Protects: seconds waited add up to what a request waited, by the reasons that plans gave."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.inspector.recorded import events
from twostroke.core.request import FinishReason
from twostroke.core.step import Reason
from twostroke.inspector.why.waits import NEXT_STEP, PREEMPTED, WAKING, WaitBook
from twostroke.observability.events import (
    FinishedRequest,
    HeldBackRequest,
    PreemptedRequest,
    ScheduledTokens,
    StepEvent,
)


def share(request_id: str, since: float | None = None) -> ScheduledTokens:
    return ScheduledTokens(
        request_id=request_id,
        start=0,
        num_tokens=1,
        num_prompt_tokens=0,
        sampled=True,
        num_new_tokens=1,
        num_blocks=1,
        queued_since=since,
    )


def held(request_id: str, reason: Reason, behind: int = 0) -> HeldBackRequest:
    return HeldBackRequest(request_id=request_id, reason=reason, behind=behind)


def book_of(*steps: StepEvent, keep: int | None = None) -> WaitBook:
    book = WaitBook(keep)
    for step in steps:
        book.add(step)
    return book


FULL, BLOCKS = Reason.MAX_NUM_SEQS, Reason.NO_FREE_BLOCK


def test_a_queue_waits_by_the_reason_of_its_first() -> None:
    book = book_of(
        StepEvent(step=0, time=0.0, duration=1.0, scheduled=[share("a", 0.0)]),
        # b came at 0.25 and c at 0.5, while step 0 ran.
        StepEvent(step=1, time=1.0, duration=1.0, held_back=[held("b", FULL, behind=1)]),
        StepEvent(step=2, time=2.0, duration=1.0, held_back=[held("b", BLOCKS, behind=1)]),
        StepEvent(step=3, time=4.0, duration=1.0, scheduled=[share("b", 0.25), share("c", 0.5)]),
    )
    waits = book.of("b")
    assert waits is not None
    assert waits.queue == {NEXT_STEP: 0.75, "max_num_seqs": 1.0, "no_free_block": 2.0}
    behind = book.of("c")
    assert behind is not None
    assert behind.queue == {NEXT_STEP: 0.5, "max_num_seqs": 1.0, "no_free_block": 2.0}
    (minute,) = book.minutes(0.0, 59.0)
    assert minute.seconds == {NEXT_STEP: 1.25, "max_num_seqs": 2.0, "no_free_block": 4.0}


def test_an_engine_that_rested_wakes_up() -> None:
    """No step is named as the reason of a time in which none ran."""
    book = book_of(
        StepEvent(step=0, time=1.5, duration=1.0, scheduled=[share("a", 1.25)], num_running=1),
        StepEvent(step=1, time=2.75, duration=1.0, scheduled=[share("b", 1.75)]),
        StepEvent(step=2, time=9.0, duration=1.0, scheduled=[share("c", 3.5), share("d", 8.5)]),
        StepEvent(step=7, time=20.0, duration=1.0, scheduled=[share("e", 19.0)]),
    )
    queues = {name: waits.queue for name in "abcde" if (waits := book.of(name))}
    assert queues == {
        "a": {WAKING: 0.25},  # the engine's first step
        "b": {NEXT_STEP: 1.0},  # the pause of a loop that runs is no rest
        "c": {NEXT_STEP: 0.25, WAKING: 5.25},
        "d": {WAKING: 0.5},
        "e": {NEXT_STEP: 1.0},  # the steps before its own are not known
    }


def test_what_ran_and_was_left_out_or_preempted_waits_later() -> None:
    book = book_of(
        StepEvent(step=0, time=0.0, duration=1.0, scheduled=[share("a", 0.0)]),
        StepEvent(step=1, time=1.0, duration=1.0, held_back=[held("a", Reason.TOKEN_BUDGET)]),
        StepEvent(
            step=2,
            time=2.0,
            duration=1.0,
            preempted=[PreemptedRequest(request_id="a", by="b")],
            held_back=[held("a", BLOCKS)],
        ),
        StepEvent(step=3, time=5.0, duration=1.0, scheduled=[share("a")]),
    )
    waits = book.of("a")
    assert waits is not None
    assert waits.queue == {}
    assert waits.later == {"token_budget": 1.0, PREEMPTED: 3.0}
    (lost,) = waits.preemptions
    assert (lost.time, lost.by, lost.seconds) == (2.0, "b", 3.0)


def test_a_part_of_a_prompt_is_no_wait() -> None:
    book = book_of(
        StepEvent(
            step=0,
            time=0.0,
            duration=1.0,
            scheduled=[share("a", 0.0)],
            held_back=[held("a", Reason.PREFILL_CHUNK)],
        ),
        StepEvent(step=1, time=1.0, duration=1.0, scheduled=[share("a")]),
    )
    waits = book.of("a")
    assert waits is not None
    assert (waits.queue, waits.later) == ({}, {})
    assert book.minutes(0.0, 60.0) == []


def test_time_between_steps_that_are_gone_counts_as_far_as_a_step_was_long() -> None:
    book = book_of(
        StepEvent(step=0, time=0.0, duration=1.0, held_back=[held("a", FULL)]),
        StepEvent(step=9, time=50.0, duration=1.0, held_back=[held("a", FULL)]),
    )
    waits = book.of("a")
    assert waits is not None
    assert waits.queue == {"max_num_seqs": 1.0}


def test_a_wait_over_two_minutes_is_counted_in_each() -> None:
    book = book_of(
        StepEvent(step=0, time=59.0, duration=3.0, held_back=[held("a", FULL)]),
        StepEvent(step=1, time=62.0, duration=1.0),
    )
    assert [(m.begin, m.seconds) for m in book.minutes(0.0, 100.0)] == [
        (0.0, {"max_num_seqs": 1.0}),
        (60.0, {"max_num_seqs": 2.0}),
    ]


def test_a_bounded_book_forgets_the_oldest_that_ended() -> None:
    ends = [
        StepEvent(
            step=n,
            time=float(n),
            duration=1.0,
            scheduled=[share(f"r{n}", float(n))],
            finished=[FinishedRequest(request_id=f"r{n}", reason=FinishReason.STOP)],
        )
        for n in range(300)
    ]
    book = book_of(*ends, keep=2)
    assert [n for n in range(300) if book.of(f"r{n}")] == [298, 299]
    assert len(book._times) <= 128


def naive_queue(request_id: str, arrival: float) -> dict[str, float]:
    """Step by step for one request: who is named, or else the first of the queue."""
    seconds: dict[str, float] = {}
    steps = events()
    for before, after in pairwise(steps):
        if any(share.request_id == request_id for share in before.scheduled):
            return seconds
        named = [h for h in before.held_back if h.request_id == request_id]
        ran = {share.request_id for share in before.scheduled}
        first = named or [h for h in before.held_back if h.request_id not in ran]
        begin = before.time
        reason = first[0].reason.value if first else NEXT_STEP
        if before.time < arrival:
            begin, reason = arrival, NEXT_STEP
        if begin < after.time:
            seconds[reason] = seconds.get(reason, 0.0) + after.time - begin
    return seconds


def test_a_real_run_agrees_with_a_naive_count_for_each_request() -> None:
    book = book_of(*events())
    waited = 0.0
    arrivals = {
        share.request_id: (share.queued_since, event.time)
        for event in events()
        for share in event.scheduled
        if share.queued_since is not None
    }
    assert len(arrivals) == 60
    for request_id, (arrival, started) in arrivals.items():
        assert arrival is not None
        waits = book.of(request_id)
        assert waits is not None
        assert sum(waits.queue.values()) == pytest.approx(started - arrival, abs=1e-9)
        assert waits.queue == pytest.approx(naive_queue(request_id, arrival), abs=1e-9)
        waited += waits.queue.get("max_num_seqs", 0.0)
    assert waited > 1.0  # the run has a queue
