"""Protects: what is kept of calls is bounded, found by request, and handed to a recording once."""

from __future__ import annotations

import json
from pathlib import Path

from tests.observability.runs import make_request
from twostroke.observability.events import StepEvent
from twostroke.observability.recorder import Recorder, read_jsonl
from twostroke.observability.tracing import names
from twostroke.observability.tracing.call_book import MAX_ENDED, MAX_OF_ONE_CALL, CallBook
from twostroke.observability.tracing.tracer import Tracer


def end_call(tracer: Tracer, *request_ids: str, status: int = 200) -> None:
    trace = tracer.begin([])
    trace.event(names.AUTHENTICATED, {names.TENANT: "alice"})
    trace.stage(names.READ)
    trace.event(names.LIMITED)
    trace.stage(names.TOKENISE, {names.NUM_TOKENS: 7})
    for request_id in request_ids:
        trace.follow(request_id, "alice")
    trace.wrote()
    trace.wrote()
    trace.close(status)


def test_stations_are_in_order_and_begin_with_the_request() -> None:
    tracer = Tracer()
    end_call(tracer, "a", "b")
    call = tracer.calls.find("a")
    assert call is not None and call == tracer.calls.find("b") == tracer.calls.find("a#3")
    assert [s.name for s in call.stations] == ["authenticated", "read", "limited", "tokenise"]
    assert call.first_byte is not None and call.last_byte is not None
    times = [call.received, *(s.end for s in call.stations), call.first_byte, call.last_byte]
    assert times == sorted(times)
    assert (call.tenant, call.status, call.num_prompt_tokens) == ("alice", 200, 7)
    assert call.ended is not None and call.context is None


def test_an_open_call_is_shown_as_far_as_it_is() -> None:
    tracer = Tracer()
    trace = tracer.begin([])
    trace.stage(names.READ)
    trace.follow("a")
    call = tracer.calls.find("a")
    assert call is not None
    assert (call.status, call.ended, call.first_byte) == (0, None, None)
    assert tracer.calls.find("b") is None


def test_without_a_collector_there_are_no_ids_and_no_timelines() -> None:
    """What the engine would note for spans costs it time; nobody reads it here."""
    tracer = Tracer()
    trace = tracer.begin([(b"traceparent", b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01")])
    trace.follow("a")
    tracer.observer.on_add([make_request("a")])
    assert (trace.trace_id, trace.span_id, trace.timelines) == ("", "", [])


def test_what_is_kept_is_bounded() -> None:
    tracer = Tracer(calls=CallBook(keep_unwritten=True))
    end_call(tracer, *(f"many-{i}" for i in range(200)))
    assert tracer.calls.find(f"many-{MAX_OF_ONE_CALL - 1}") is not None
    assert tracer.calls.find(f"many-{MAX_OF_ONE_CALL}") is None
    for number in range(MAX_ENDED):
        end_call(tracer, f"r{number}")
    assert tracer.calls.find("many-0") is None
    assert tracer.calls.find("r0") is not None
    end_call(tracer)  # refused before it had an id
    assert len(tracer.calls.take()) == 1 + MAX_ENDED
    assert tracer.calls.take() == []


def test_a_recording_has_a_line_for_each_call_and_readers_of_steps_pass_over_it(
    tmp_path: Path,
) -> None:
    tracer, path = Tracer(calls=CallBook(keep_unwritten=True)), tmp_path / "steps.jsonl"
    recorder = Recorder(8, path, tracer.calls.take)
    recorder.add(StepEvent(step=0, time=1.0, duration=0.1))
    end_call(tracer, "a")
    recorder.add(StepEvent(step=1, time=1.2, duration=0.1))
    end_call(tracer, "b")  # after the last step
    recorder.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [next(iter(line)) for line in lines] == ["step", "call", "step", "call"]
    assert lines[1]["schema"] == 1
    assert [line["call"]["request_ids"] for line in lines[1::2]] == [["a"], ["b"]]
    assert [event.step for event in read_jsonl(path)] == [0, 1]
