"""Protects: what is replayed is what was recorded: arrivals, lengths, neighbours, step times."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.inspector.recorded import events, recording
from twostroke.core.errors import InvalidRequestError
from twostroke.inspector.compare import collect as module
from twostroke.inspector.compare.collect import collect, make_job
from twostroke.inspector.compare.messages import Against, Question
from twostroke.inspector.recording import Recording
from twostroke.questions.replay import ReplayJob


@pytest.fixture(scope="module")
def source() -> Iterator[Recording]:
    opened = Recording(recording(), configuration={"max_num_seqs": 12})
    assert opened.wait_until_read(60)
    yield opened
    opened.close()


def job(
    source: Recording,
    begin: float,
    end: float,
    against: Against = "static",
    tokens: int | None = None,
) -> tuple[ReplayJob, int, list[str]]:
    question = Question(begin, end, against, tokens)
    return make_job(source, question, asyncio.run(collect(source, begin, end)))


def test_a_range_has_its_requests_and_those_beside_them(source: Recording) -> None:
    found, left_out, notes = job(source, 2.0, 3.0)
    starts = {item.request_id: item for event in events() for item in event.started}
    outputs: dict[str, int] = {}
    ends: dict[str, float] = {}
    for event in events():
        for share in event.scheduled:
            outputs[share.request_id] = outputs.get(share.request_id, 0) + share.num_new_tokens
        ends |= {item.request_id: event.time + event.duration for item in event.finished}
    inside = {n for n, s in starts.items() if s.arrival_time <= 3.0 and ends[n] >= 2.0}
    assert {r.request_id for r in found.requests if r.in_range} == inside
    assert (left_out, notes) == (0, [])
    for request in found.requests:
        start = starts[request.request_id]
        assert request.arrival == start.arrival_time
        assert request.prompt == start.num_prompt_tokens
        assert request.output == outputs[request.request_id]
        assert request.finish == pytest.approx(ends[request.request_id], abs=2e-6)
    beside = [r for r in found.requests if not r.in_range]
    since = min(r.arrival for r in found.requests if r.in_range)
    assert all((r.finish or 0) >= since for r in beside)


def test_steps_have_their_shapes_and_what_passes_until_the_next(source: Recording) -> None:
    collected = asyncio.run(collect(source, source.describe().first_time, 1.0))
    first = events()[0]
    (shape,) = [step for step in collected.steps if step.prefill][:1]
    assert sum(new for new, _ in shape.prefill) == first.num_tokens
    assert shape.seconds == pytest.approx(first.duration, abs=2e-6)
    assert all(step.decode_context >= step.decode_requests for step in collected.steps)


def test_the_other_side_differs_only_where_it_is_asked_to(source: Recording) -> None:
    found, _, _ = job(source, 2.0, 3.0, "static")
    assert (found.recorded.batching, found.other.batching) == ("continuous", "static")
    assert found.other.max_num_batched_tokens == found.recorded.max_num_batched_tokens == 8192
    assert found.recorded.max_num_seqs == found.other.max_num_seqs == 12
    assert job(source, 2.0, 3.0, "chunk", 64)[0].other.max_prefill_chunk == 64
    assert job(source, 2.0, 3.0, "budget", 128)[0].other.max_num_batched_tokens == 128
    whole = job(source, 2.0, 3.0, "whole")[0]
    longest = max(request.prompt for request in whole.requests)
    assert whole.other.max_num_batched_tokens >= longest + 12


def test_a_recording_without_its_settings_says_what_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bare = Recording(recording())
    found, _, notes = job(bare, 2.0, 3.0)
    bare.close()
    assert found.recorded.max_num_seqs == 12  # requests were seen to wait for a place
    assert notes == []


def test_too_much_and_nothing_are_refused(
    source: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidRequestError, match="no request in this range") as refusal:
        job(source, -50.0, -40.0)
    assert refusal.value.param == "begin"
    monkeypatch.setattr(module, "MAX_REQUESTS", 3)
    with pytest.raises(InvalidRequestError, match="at most 3 and") as refusal:
        job(source, 2.0, 3.0)
    assert refusal.value.param == "end"
