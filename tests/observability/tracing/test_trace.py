"""Protects: what is read from a caller's headers, and which traces count as slow."""

from __future__ import annotations

import pytest

from twostroke.core.request import FinishReason
from twostroke.core.sampling_params import SamplingParams
from twostroke.observability.tracing.exporter import is_notable, traces_url
from twostroke.observability.tracing.timelines import Sampling, Timeline
from twostroke.observability.tracing.trace import (
    MAX_TIMELINES,
    NOT_TRACED,
    RequestTrace,
    parent_context,
    trace_of,
)

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def read(*values: str) -> object:
    return parent_context([(b"traceparent", value.encode("latin-1")) for value in values])


@pytest.mark.parametrize(("flags", "sampled"), [("01", True), ("00", False), ("03", True)])
def test_a_parent_is_read(flags: str, sampled: bool) -> None:
    assert read(f"00-{TRACE}-{SPAN}-{flags}") == (TRACE, SPAN, sampled, "")


def test_later_versions_may_have_more() -> None:
    assert read(f"01-{TRACE}-{SPAN}-01-more") == (TRACE, SPAN, True, "")


@pytest.mark.parametrize(
    "value",
    [
        "",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\xff",
    ],
)
def test_what_is_malformed_begins_a_new_trace(value: str) -> None:
    assert read(value) is None


def test_two_parents_are_none() -> None:
    assert read(f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01") is None


def test_states_are_joined_and_bounded() -> None:
    parent = (b"traceparent", f"00-{TRACE}-{SPAN}-01".encode())
    joined = parent_context([parent, (b"tracestate", b"a=1"), (b"tracestate", b"b=2")])
    assert joined is not None and joined.trace_state == "a=1,b=2"
    bounded = parent_context([parent, (b"tracestate", b"a=" + b"1" * 600)])
    assert bounded is not None and bounded.trace_state == ""


def make_trace() -> tuple[RequestTrace, list[RequestTrace]]:
    ended: list[RequestTrace] = []
    return RequestTrace(None, {}, ended.append), ended


def test_a_trace_ends_with_its_last_part() -> None:
    """A client that leaves, or a background response, ends HTTP before the engine."""
    followed: dict[str, RequestTrace] = {}
    ended: list[RequestTrace] = []
    trace = RequestTrace(None, followed, ended.append)
    trace.follow("a")
    part_ended = trace.part_began()
    assert followed == {"a": trace}
    trace.close(200)
    assert not ended
    part_ended(None)
    assert ended == [trace] and not followed


def test_a_call_that_the_engine_refused_is_forgotten() -> None:
    followed: dict[str, RequestTrace] = {}
    trace = RequestTrace(None, followed, lambda _: None)
    trace.follow("refused")
    trace.close(429)
    assert not followed


def timeline(ttft: float | None, message: str = "") -> Timeline:
    made = Timeline("a", 0, 10.0, Sampling.of(SamplingParams()), 3, message=message)
    made.first_token = None if ttft is None else 10.0 + ttft
    made.ended, made.finish_reason = 20.0, FinishReason.LENGTH
    return made


@pytest.mark.parametrize(
    ("ttft", "message", "status", "notable"),
    [
        (0.4, "", 200, False),
        (0.5, "", 200, True),
        (0.1, "it failed", 200, True),
        (0.1, "", 500, True),
        (None, "", 499, True),  # ten seconds without a token
    ],
)
def test_slow_and_failed_calls_are_notable(
    ttft: float | None, message: str, status: int, notable: bool
) -> None:
    trace, _ = make_trace()
    trace.keep(timeline(0.0))
    trace.keep(timeline(ttft, message))
    trace.close(status)
    assert is_notable(trace, 0.5) is notable


def test_notes_are_bounded() -> None:
    trace, _ = make_trace()
    kept = [trace.keep(timeline(0.0)) for _ in range(MAX_TIMELINES + 2)]
    assert kept[-3:] == [True, False, False]
    for _ in range(1000):
        trace.event("again")
        trace.stage("again")
    assert len(trace.events) == len(trace.stages) == 64


def test_without_a_tracer_nothing_is_noted() -> None:
    trace = trace_of({})
    trace.event("one")
    trace.follow("a")
    assert trace is NOT_TRACED and not trace.is_recorded and trace.trace_id == ""


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://a:4318", "http://a:4318/v1/traces"),
        ("http://a:4318/", "http://a:4318/v1/traces"),
        ("https://a/otlp/v1/traces", "https://a/otlp/v1/traces"),
    ],
)
def test_an_address_without_a_path_gets_the_usual_one(endpoint: str, url: str) -> None:
    assert traces_url(endpoint) == url
