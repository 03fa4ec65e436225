"""Traces of calls whose engines are other processes: workers of a router, engines of a server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.observability.tracing.collector import (
    Collector,
    event_names,
    running_collector,
    values,
)
from tests.server.engines.test_route import address_of
from tests.server.running import ServerProcess, running_process, wait_until
from twostroke.observability.tracing import names

ENGINE = ("--kv-cache-memory", "64MiB")
CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "What is the KV cache?"}],
    "max_tokens": 300,
    "ignore_eos": True,
    "seed": 11,
    "temperature": 0.9,
}
STAGES = [names.QUEUE, names.PREFILL, names.DECODE]


class Traced(NamedTuple):
    """What answers, its workers by the name of their engines, and where traces go."""

    server: ServerProcess
    workers: dict[str, ServerProcess]
    collector: Collector

    def trace(self, answer: httpx.Response) -> Trace:
        return Trace(self.collector.trace(answer.headers["traceresponse"]))


class Trace:
    """The spans of one call."""

    def __init__(self, spans: list[Span]) -> None:
        self.spans = spans
        self.root = spans[0]
        self.parts = self.named(names.ENGINE_PART)

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    def below(self, parent: Span) -> list[Span]:
        return [span for span in self.spans if span.parent_span_id == parent.span_id]


def options(collector: Collector) -> list[str]:
    return ["--port", "0", "--otlp-traces-endpoint", collector.url]


@pytest.fixture(scope="module")
def routed() -> Iterator[Traced]:
    command = ["-m", "twostroke", "worker", "--listen", "127.0.0.1:0", *ENGINE]
    with (
        running_collector() as collector,
        running_process(*command) as first,
        running_process(*command) as second,
    ):
        addresses = {address_of(each): each for each in (first, second)}
        flags = [f"--worker={address}" for address in addresses]
        workers = {port_of(address): each for address, each in addresses.items()}
        command = ["-m", "twostroke", "route", *flags, *options(collector)]
        with running_process(*command, "--router", "least-loaded") as router:
            url_of(router)
            wait_until(lambda: num_up(router) == 2, why=lambda: router.stderr)
            yield Traced(router, workers, collector)


def port_of(engine: str) -> str:
    """An engine's name begins with that of its machine."""
    return engine.rpartition(":")[2]


def url_of(server: ServerProcess) -> str:
    """Where it answers; the banner names the collector before that."""
    server.url()
    found = re.search(r"API +(\S+)/v1 ", server.stderr)
    assert found is not None, server.stderr
    return found[1]


def num_up(server: ServerProcess) -> int:
    text = httpx.get(url_of(server) + "/metrics", timeout=30).text
    return len(re.findall(r"^twostroke:engine_up\{.*\} 1\.0$", text, re.MULTILINE))


def chat(server: ServerProcess, **fields: Any) -> httpx.Response:
    url = url_of(server) + "/v1/chat/completions"
    return httpx.post(url, json=CHAT | fields, timeout=60)


def times_nest(trace: Trace) -> bool:
    """Whether all spans lie within the request's, by the clock of the front end."""
    return all(
        trace.root.start_time_unix_nano <= span.start_time_unix_nano
        and span.start_time_unix_nano <= span.end_time_unix_nano
        and span.end_time_unix_nano <= trace.root.end_time_unix_nano
        for span in trace.spans
    )


def test_a_routers_trace_says_which_worker_and_why(routed: Traced) -> None:
    """Then what the worker did, by the names and attributes of one process."""
    answer = chat(routed.server, n=2)
    assert answer.status_code == 200, answer.text
    trace, usage = routed.trace(answer), answer.json()["usage"]
    (route,), (part,) = trace.named(names.ROUTE), trace.parts
    why, own = values(route.attributes), values(part.attributes)
    assert why[names.ENGINE] == own[names.ENGINE]
    assert port_of(own[names.ENGINE]) in routed.workers
    assert why[names.ROUTE_REASON] == "least_loaded"
    loads = [load.split(":")[-2:] for load in why[names.ROUTE_LOADS]]
    assert loads == [[port, " 0"] for port in routed.workers]
    assert own[names.OUTCOME] == "ended" and own[names.ATTEMPT] == 0
    below = trace.below(part)
    assert {span.name for span in below} == set(STAGES)
    assert len([span for span in below if span.name == names.DECODE]) == 2
    assert all(names.VLLM_REQUEST_ID in values(span.attributes) for span in below)
    root = values(trace.root.attributes)
    assert root[names.USAGE_INPUT_TOKENS] == usage["prompt_tokens"]
    assert root[names.USAGE_OUTPUT_TOKENS] == usage["completion_tokens"] == 600
    assert root[names.REQUEST_SEED] == 11 and root[names.VLLM_NUM_SEQUENCES] == 2
    assert root[names.RESPONSE_FINISH_REASONS] == ["length", "length"]
    queued, first, whole = (
        root[name]
        for name in (names.VLLM_TIME_IN_QUEUE, names.VLLM_TIME_TO_FIRST_TOKEN, names.VLLM_E2E)
    )
    assert 0 <= queued <= first <= whole <= answer.elapsed.total_seconds()
    assert times_nest(trace)


def test_a_call_that_failed_over_shows_both_attempts(routed: Traced) -> None:
    """And what the worker that was killed had done until then."""
    killed, url = "", url_of(routed.server)
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    num_lines = 0
    with httpx.stream(
        "POST", f"{url}/v1/chat/completions", json=CHAT | stream, timeout=60
    ) as answer:
        for line in answer.iter_lines():
            num_lines += line.startswith("data")
            if num_lines == 20 and not killed:
                text = httpx.get(f"{url}/metrics", timeout=30).text
                busy = re.search(r'num_requests_running\{engine="([^"]*)".*\} [1-9]', text)
                assert busy is not None
                killed = port_of(busy[1])
                routed.workers[killed].process.kill()
    trace = routed.trace(answer)
    assert trace.root.status.code != Status.STATUS_CODE_ERROR
    first, second = trace.parts
    one, two = values(first.attributes), values(second.attributes)
    assert (port_of(one[names.ENGINE]), one[names.OUTCOME]) == (killed, "lost")
    assert first.status.code == Status.STATUS_CODE_ERROR and killed in first.status.message
    assert {port_of(two[names.ENGINE]), killed} == set(routed.workers)
    assert two[names.OUTCOME] == "ended"
    assert [values(each.attributes)[names.ROUTE_REASON] for each in trace.named(names.ROUTE)] == [
        "least_loaded",
        "failover",
    ]
    for part in trace.parts:
        assert {span.name for span in trace.below(part)} == set(STAGES)
    decoded = [values(span.attributes)[names.OUTPUT_TOKENS] for span in trace.named(names.DECODE)]
    assert all(decoded) and sum(decoded) == 300
    assert values(trace.root.attributes)[names.USAGE_OUTPUT_TOKENS] == 300
    assert names.ENGINE_LOST in event_names(trace.root)
    assert first.end_time_unix_nano <= second.start_time_unix_nano and times_nest(trace)


def test_a_prompt_computed_apart_is_two_parts() -> None:
    """The engine that computes the prompt, and the one that writes the answer."""
    flags = ["--data-parallel-size", "2", "--prefill-engines", "1", "--prefill-min-tokens", "8"]
    with running_collector() as collector:
        command = ["-m", "twostroke", "serve", *flags, *ENGINE, *options(collector)]
        with running_process(*command) as server:
            answer = chat(server)
            trace = Traced(server, {}, collector).trace(answer)
    attributes = [values(each.attributes) for each in trace.parts]
    assert [(each[names.ENGINE], each[names.OUTCOME]) for each in attributes] == [
        ("1", "handed_on"),
        ("0", "ended"),
    ]
    assert [values(each.attributes)[names.ROUTE_REASON] for each in trace.named(names.ROUTE)][
        1
    ] == "handed_on"
    assert values(trace.root.attributes)[names.USAGE_OUTPUT_TOKENS] == 300
