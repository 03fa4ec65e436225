"""Protects: a call's trace, from a real server on a tiny model to a collector that decodes it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.fakes import engine_of
from tests.observability.tracing.collector import (
    Collector,
    event_names,
    running_collector,
    values,
)
from tests.server.running import running_server, wait_until
from tests.server.tiny import tiny_engine
from twostroke.engine.clients.thread import AsyncEngine
from twostroke.observability.json_log import JsonFormatter
from twostroke.observability.tracing import names
from twostroke.observability.tracing.tracer import Tracer

CHAT = {"messages": [{"role": "user", "content": "the quick brown fox"}], "max_tokens": 80}
CHAT |= {"ignore_eos": True, "temperature": 0.5, "seed": 3}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Traced(NamedTuple):
    """A server whose calls are traced."""

    url: str
    collector: Collector
    engine: AsyncEngine


@contextmanager
def traced_server(slow_ttft: float | None = None, **scheduler: Any) -> Iterator[Traced]:
    with running_collector() as collector:
        tracer = Tracer(collector.url, "scripted", slow_ttft, batch_seconds=0.02)
        with (
            tiny_engine(observers=[tracer.observer], **scheduler) as engine,
            running_server(engine, tracer=tracer) as url,
        ):
            yield Traced(url, collector, engine)
        tracer.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Traced]:
    with traced_server(max_num_batched_tokens=16) as server:
        yield server


def call(server: Traced, path: str = "/v1/chat/completions", **fields: Any) -> httpx.Response:
    headers = fields.pop("headers", {})
    body = (CHAT if "chat" in path else {}) | fields
    return httpx.post(server.url + path, json=body, headers=headers, timeout=30)


def children(spans: list[Span], name: str) -> list[Span]:
    return [span for span in spans if span.name == name]


def test_a_chat_has_one_trace_with_all_its_stages(server: Traced) -> None:
    answer = call(server)
    assert answer.status_code == 200
    spans = server.collector.trace(answer.headers["traceresponse"])
    root, usage = spans[0], answer.json()["usage"]
    attributes = values(root.attributes)
    assert root.name == "chat scripted"
    assert root.kind == Span.SPAN_KIND_SERVER and not root.parent_span_id
    for name, value in (
        (names.OPERATION_NAME, "chat"),
        (names.RESPONSE_ID, answer.json()["id"]),
        (names.VLLM_REQUEST_ID, answer.json()["id"]),
        (names.USAGE_INPUT_TOKENS, usage["prompt_tokens"]),
        (names.USAGE_OUTPUT_TOKENS, 80),
        (names.REQUEST_MAX_TOKENS, 80),
        (names.REQUEST_TEMPERATURE, 0.5),
        (names.REQUEST_SEED, 3),
        (names.RESPONSE_FINISH_REASONS, ["length"]),
        (names.HTTP_STATUS, 200),
        (names.HTTP_REQUEST_ID, [answer.headers["x-request-id"]]),
        (names.REQUEST_STREAM, False),
    ):
        assert attributes[name] == value, name
    latencies = [
        names.VLLM_TIME_IN_QUEUE,
        names.VLLM_TIME_TO_FIRST_TOKEN,
        names.VLLM_E2E,
    ]
    queue, first, whole = (attributes[name] for name in latencies)
    assert 0 <= queue <= first <= whole <= answer.elapsed.total_seconds()
    assert event_names(root) == [names.RECEIVED, names.FIRST_TOKEN]
    stages = [span.name for span in spans[1:]]
    assert [name for name in stages if name != names.PREFILL] == [
        *(names.READ, names.CONTEXT, names.TOKENISE, names.PREPARE),
        *(names.QUEUE, names.DECODE, names.ANSWER),
    ]
    assert all(span.parent_span_id == root.span_id for span in spans[1:])
    assert all(
        root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        for span in spans
    )
    assert server.collector.paths == {"/v1/traces"}
    assert server.collector.resource["service.name"] == "twostroke"


def test_chunks_are_those_of_the_step_events(server: Traced) -> None:
    """The request's id and the step's number join traces and step events."""
    answer = call(server, cache_salt="chunks")
    spans = server.collector.trace(answer.headers["traceresponse"])
    name = answer.json()["id"]
    chunks = [values(span.attributes) for span in children(spans, names.PREFILL)]
    recorded = [
        (event.step, share.start, share.num_tokens)
        for event in server.engine.events()
        for share in event.scheduled
        if share.request_id == name and share.num_prompt_tokens
    ]
    assert len(recorded) > 1
    assert recorded == [
        (chunk[names.STEP], chunk[names.CHUNK_START], chunk[names.CHUNK_TOKENS]) for chunk in chunks
    ]
    assert {chunk[names.VLLM_REQUEST_ID] for chunk in chunks} == {name}


def test_decoding_is_sampled(server: Traced) -> None:
    """80 tokens are in 79 steps, of which two or three are multiples of 32."""
    spans = server.collector.trace(call(server).headers["traceresponse"])
    (decode,) = children(spans, names.DECODE)
    assert set(event_names(decode)) == {names.PROGRESS} and 2 <= len(decode.events) <= 3
    counts = [values(event.attributes)[names.OUTPUT_TOKENS] for event in decode.events]
    assert counts == sorted(counts) and 0 < counts[0] < counts[-1] <= 80


def test_streams_end_with_their_last_byte(server: Traced) -> None:
    answer = call(server, stream=True, n=2)
    spans = server.collector.trace(answer.headers["traceresponse"])
    (stream,) = children(spans, names.STREAM)
    assert stream.end_time_unix_nano == spans[0].end_time_unix_nano
    assert len(children(spans, names.DECODE)) == 2
    attributes = values(spans[0].attributes)
    assert attributes[names.REQUEST_STREAM] is True
    assert attributes[names.VLLM_NUM_SEQUENCES] == attributes[names.VLLM_REQUEST_N] == 2


def test_a_call_of_many_samples_counts_them_all_or_says_nothing(server: Traced) -> None:
    """The spans of 16 are kept: tokens of these alone would be taken for those of the call."""
    answer = call(server, "/v1/completions", prompt="one", n=20, max_tokens=2, ignore_eos=True)
    assert answer.json()["usage"]["completion_tokens"] == 40
    spans = server.collector.trace(answer.headers["traceresponse"])
    assert len(children(spans, names.DECODE)) == 16
    attributes = values(spans[0].attributes)
    assert attributes[names.VLLM_NUM_SEQUENCES] == attributes[names.VLLM_REQUEST_N] == 20
    assert attributes.get(names.USAGE_OUTPUT_TOKENS, 40) == 40


def test_the_callers_context_goes_on(server: Traced) -> None:
    """W3C Trace Context: same trace, the caller's span as parent, its state unchanged."""
    headers = {"traceparent": PARENT, "tracestate": "vendor=7"}
    answer = call(server, headers=headers)
    assert answer.headers["traceresponse"].startswith("00-0af7651916cd43dd8448eb211c80319c-")
    root = server.collector.trace(answer.headers["traceresponse"])[0]
    assert root.parent_span_id.hex() == "b7ad6b7169203331"
    assert root.trace_state == "vendor=7"


def test_what_the_caller_does_not_sample_is_not_traced(server: Traced) -> None:
    answer = call(server, headers={"traceparent": PARENT[:-1] + "0"})
    assert answer.status_code == 200 and "traceresponse" not in answer.headers


def test_only_calls_are_traced(server: Traced) -> None:
    assert "traceresponse" not in httpx.get(server.url + "/health").headers


@pytest.mark.parametrize(
    ("path", "fields", "name"),
    [
        (
            "/v1/completions",
            {"prompt": ["one", "two"], "max_tokens": 3},
            "text_completion scripted",
        ),
        ("/v1/embeddings", {"input": ["a", "b"]}, "embeddings scripted"),
        ("/v1/responses", {"input": "hello", "max_output_tokens": 3}, "chat scripted"),
        (
            "/v1/messages",
            {"model": "scripted", "messages": CHAT["messages"], "max_tokens": 3},
            "chat scripted",
        ),
        ("/tokenize", {"prompt": "one"}, "POST /tokenize"),
    ],
)
def test_all_dialects_are_traced(
    server: Traced, path: str, fields: dict[str, Any], name: str
) -> None:
    answer = call(server, path, **fields)
    assert answer.status_code == 200, answer.text
    spans = server.collector.trace(answer.headers["traceresponse"])
    assert spans[0].name == name
    num_calls = len(fields.get("prompt", [])) if path == "/v1/completions" else None
    if num_calls is not None:
        assert len(children(spans, names.DECODE)) == num_calls
        assert values(spans[0].attributes)[names.RESPONSE_ID] == answer.json()["id"]


def test_a_refusal_says_why(server: Traced) -> None:
    answer = call(server, max_tokens=100_000)
    assert answer.status_code == 400
    root = server.collector.trace(answer.headers["traceresponse"])[0]
    (error,) = [event for event in root.events if event.name == names.ERROR]
    assert values(error.attributes)[names.ERROR_TYPE] == "context_length_exceeded"
    assert values(root.attributes)[names.HTTP_STATUS] == 400


def test_a_client_that_leaves_is_an_abort(server: Traced) -> None:
    before = set(server.collector.traces())
    body = CHAT | {"stream": True, "max_tokens": 150}
    with httpx.stream("POST", server.url + "/v1/chat/completions", json=body) as answer:
        next(answer.iter_lines())
    root = server.collector.trace(answer.headers["traceresponse"])[0]
    assert set(server.collector.traces()) - before
    (abort,) = [event for event in root.events if event.name == names.ABORTED]
    assert values(abort.attributes)[names.REASON] == "the client left"
    assert values(root.attributes)[names.RESPONSE_FINISH_REASONS] == ["abort"]


def test_a_failed_step_is_an_error_with_its_reason(
    server: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = engine_of(server.engine).executor
    monkeypatch.setattr(executor, "launch", lambda plan: 1 / 0)
    answer = call(server)
    monkeypatch.undo()
    assert answer.status_code == 500
    root = server.collector.trace(answer.headers["traceresponse"])[0]
    assert root.status.code == Status.STATUS_CODE_ERROR
    assert "ZeroDivisionError" in root.status.message


def test_preemptions_are_events() -> None:
    """More requests than blocks: some yield theirs, and are computed again."""
    with traced_server(kv_cache_memory=2**16) as server:
        num_slots = server.engine.info.num_blocks * 4
        body = {"prompt": "a", "max_tokens": num_slots // 4, "ignore_eos": True, "n": 8}
        answer = call(server, "/v1/completions", **body)
        assert answer.status_code == 200, answer.text
        spans = server.collector.trace(answer.headers["traceresponse"])
        events = [event for event in spans[0].events if event.name == names.PREEMPTED]
        preempted = [
            entry.request_id for event in server.engine.events() for entry in event.preempted
        ]
        assert preempted
        assert [values(e.attributes)[names.VLLM_REQUEST_ID] for e in events] == preempted
        assert values(events[0].attributes)[names.REASON] == "preempted"
        assert values(spans[0].attributes)[names.PREEMPTIONS] == len(preempted)
        again = {
            values(span.attributes)[names.VLLM_REQUEST_ID]
            for span in children(spans, names.PREFILL)
            if values(span.attributes)[names.CHUNK_START] == 0
        }
        assert set(preempted) <= again


def test_only_slow_calls_and_failures_are_exported() -> None:
    """Tail sampling: nothing of these calls takes an hour."""
    with traced_server(slow_ttft=3600) as server:
        fast = call(server)
        executor = engine_of(server.engine).executor
        with patch.object(executor, "launch", side_effect=RuntimeError("the device is broken")):
            failed = call(server)
        spans = server.collector.trace(failed.headers["traceresponse"])
        assert (
            spans and fast.headers["traceresponse"].split("-")[1] not in server.collector.traces()
        )


def test_a_collector_that_is_down_costs_one_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    with caplog.at_level("INFO"), traced_server() as server:
        server.collector.status = 500
        for _ in range(3):  # in batches of their own, so each is an export that fails
            assert call(server, max_tokens=2).status_code == 200
            time.sleep(0.1)
        wait_until(lambda: server.collector.num_calls >= 2)
        server.collector.status = 200
        answer = call(server, max_tokens=2)
        server.collector.trace(answer.headers["traceresponse"])

        def lines() -> list[str]:
            return [r.getMessage() for r in caplog.records if "traces" in r.getMessage()]

        wait_until(lambda: len(lines()) > 1, 10)
        assert len(lines()) == 2
        assert "takes no traces (" in lines()[0] and "Server Error" in lines()[0]
        assert "takes traces again" in lines()[1]


def test_log_lines_have_the_trace(server: Traced, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "twostroke.requests"):
        answer = call(server, max_tokens=2, headers={"x-request-id": "mine"})
    (record,) = [r for r in caplog.records if r.name == "twostroke.requests"]
    line = json.loads(JsonFormatter().format(record))
    assert answer.headers["x-request-id"] == "mine"
    assert f"00-{line['trace_id']}-{line['span_id']}-01" == answer.headers["traceresponse"]
    assert line["request_id"] == answer.json()["id"]
