"""Protects: long parts of time in few rows, whose sums are those of the steps."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import cast

import httpx
import pytest

from tests.inspector.compare.test_routes import inspecting
from tests.inspector.recorded import events, recording
from twostroke.engine.clients.base import EngineClient
from twostroke.inspector.live import LiveSource
from twostroke.inspector.recording import Recording
from twostroke.observability.events import StepEvent
from twostroke.observability.frames.columns import encode_steps
from twostroke.observability.frames.merged_rows import merge_rows


@pytest.fixture(scope="module")
def source() -> Iterator[Recording]:
    opened = Recording(recording())
    assert opened.wait_until_read(60)
    yield opened
    opened.close()


def test_merged_rows_keep_sums_and_ends() -> None:
    first, second = (encode_steps(events()[a:b]).steps for a, b in ((0, 100), (100, 250)))
    merged = merge_rows([first, second], 7)
    assert len(merged.step) == 7
    assert sum(merged.tokens) == sum(event.num_tokens for event in events()[:250])
    assert sum(merged.span) == 250
    last = events()[249]
    assert merged.time[-1] + merged.duration[-1] == pytest.approx(last.time + last.duration)
    assert merged.running[-1] == last.num_running
    assert merge_rows([first], 100) == first


def test_a_recording_in_few_rows_has_all_its_tokens_and_requests(source: Recording) -> None:
    last = events()[-1]
    whole = asyncio.run(source.overview(0.0, last.time + last.duration, 50))
    assert len(whole.steps.step) <= 50
    assert sum(whole.steps.tokens) == sum(event.num_tokens for event in events())
    ends = {item.request_id for event in events() for item in event.finished}
    assert {request.request_id for request in whole.requests} == ends
    arrivals = [request.arrival for request in whole.requests]
    assert arrivals == sorted(arrivals)


def test_a_part_has_the_requests_that_were_there(source: Recording) -> None:
    part = asyncio.run(source.overview(1.0, 2.0, 50))
    assert part.steps.time[0] <= 1.0
    assert part.steps.time[-1] <= 2.0
    assert all(request.arrival <= 2.0 for request in part.requests)
    assert all(request.finish is None or request.finish >= 1.0 for request in part.requests)
    assert 0 < len(part.requests) <= 60


def test_a_live_engine_has_one_too() -> None:
    class Client:
        def events(self, since: int = -1) -> list[StepEvent]:
            return events()[since + 1 : 300]

    live = LiveSource(lambda: cast(EngineClient, Client()), lambda: "name", lambda: False)
    whole = asyncio.run(live.overview(0.0, events()[299].time, 9))
    assert 0 < len(whole.steps.step) <= 9
    assert sum(whole.steps.tokens) == sum(event.num_tokens for event in events()[:300])
    assert {r.request_id for r in whole.requests} == {
        share.request_id for event in events()[:300] for share in event.scheduled
    }


@pytest.mark.parametrize(
    ("query", "param"),
    [("begin=2&end=1", "end"), ("begin=nan&end=1", "begin"), ("end=1", "begin")],
)
def test_bad_parameters_are_named(query: str, param: str) -> None:
    with inspecting() as compare:
        url = compare.replace("/compare", f"/overview?{query}")
        answer = httpx.get(url)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
