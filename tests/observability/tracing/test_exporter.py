"""Protects: no single trace, whatever its caller sent, ends or floods what exports them."""

from __future__ import annotations

import pytest

from tests.observability.tracing.collector import running_collector
from tests.server.running import wait_until
from twostroke.observability.tracing.trace import RequestTrace
from twostroke.observability.tracing.tracer import Tracer

PARENT = (b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")


def test_a_trace_of_which_no_spans_can_be_made_is_lost_alone(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_collector() as collector:
        tracer = Tracer(collector.url, "m", batch_seconds=0.01)
        broken, sound = tracer.begin([]), tracer.begin([])
        assert broken is not None and sound is not None
        broken.began = float("nan")  # as no clock has it
        broken.close(200)
        sound.close(200)
        wait_until(lambda: sound.trace_id in collector.traces(), 10)
        assert broken.trace_id not in collector.traces()
        tracer.close()
    assert [r.getMessage() for r in caplog.records if r.name.startswith("twostroke")] == [
        "a trace was lost, of which no spans could be made"
    ]


def test_what_a_caller_sends_writes_no_lines_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """A malformed ``tracestate``, or text that is no Unicode: clients could fill a disk."""
    with running_collector() as collector:
        tracer = Tracer(collector.url, "m", batch_seconds=0.01)
        trace = tracer.begin([PARENT, (b"tracestate", b"=,!!")])
        assert isinstance(trace, RequestTrace)
        trace.event("error", {"why": "\ud800"})
        trace.close(400)
        wait_until(lambda: trace.trace_id in collector.traces(), 10)
        tracer.close()
    assert [record.getMessage() for record in caplog.records] == []
