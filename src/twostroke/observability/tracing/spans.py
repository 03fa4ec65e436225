"""Spans of a trace that has ended: one of the request, and below it one of each stage.

The only module here that imports OpenTelemetry, and only the exporter's thread imports it. Spans
are made afterwards, from notes, and not by the library's tracer while a request runs: that would
cost each request some twenty objects with locks, on the threads that serve. Tail sampling has made
its choice before.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping

from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags, TraceState
from opentelemetry.trace.status import Status, StatusCode

from twostroke.core.request import FinishReason
from twostroke.core.step import Reason
from twostroke.observability.tracing import names
from twostroke.observability.tracing.attempts import Attempt, Outcome
from twostroke.observability.tracing.request_attributes import engine_attributes
from twostroke.observability.tracing.timelines import Timeline
from twostroke.observability.tracing.trace import AttributeValue, Note, RequestTrace

# The conventions' words for what a route does.
OPERATIONS = {
    "/chat/completions": "chat",
    "/messages": "chat",
    "/responses": "chat",
    "/completions": "text_completion",
    "/embeddings": "embeddings",
}
CLIENT_LEFT = "the client left"
MAX_LOADS = 64  # engines of which a route tells
Attributes = Mapping[str, AttributeValue]


class SpanMaker:
    """Makes spans; attributes of the resource come from the environment, too (``OTEL_...``).

    Args:
        model_name: The model's name in the API.
    """

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        name = os.environ.get("OTEL_SERVICE_NAME", "twostroke")
        self._resource = Resource.create({SERVICE_NAME: name})
        self._scope = InstrumentationScope("twostroke")

    def spans(self, trace: RequestTrace) -> list[ReadableSpan]:
        """The request's span first."""
        timelines = trace.samples()
        # Notes have the monotonic clock, as the engine has; spans want the time of day.
        offset = time.time() - time.monotonic()
        family = _Family(trace, self._resource, self._scope, offset)
        spans = [self._root(trace, timelines, family)]
        began = trace.began
        for stage in trace.stages:
            spans.append(family.child(stage.name, began, stage.time, stage.attributes))
            began = stage.time
        for number, attempt in enumerate(trace.attempts):
            spans += family.attempt_spans(attempt, number)
        for timeline in trace.timelines:
            spans += family.engine_spans(timeline)
        if trace.answer_began is not None:
            name = names.STREAM if trace.attributes.get(names.REQUEST_STREAM) else names.ANSWER
            spans.append(family.child(name, trace.answer_began, trace.ended))
        return spans

    def _root(
        self, trace: RequestTrace, timelines: list[Timeline], family: _Family
    ) -> ReadableSpan:
        path = str(trace.attributes.get(names.URL_PATH, ""))
        operation = next((word for end, word in OPERATIONS.items() if path.endswith(end)), None)
        model_name = trace.attempts[0].model if trace.attempts else self._model_name
        attributes: dict[str, AttributeValue] = dict(trace.attributes)
        name = f"POST {path}"
        if operation is not None:
            name = f"{operation} {model_name}"
            attributes[names.OPERATION_NAME] = operation
            attributes[names.PROVIDER_NAME] = "twostroke"
            attributes[names.REQUEST_MODEL] = model_name
        if timelines:
            attributes[names.RESPONSE_MODEL] = model_name
            attributes[names.RESPONSE_ID] = attributes[names.VLLM_REQUEST_ID]
            attributes |= engine_attributes(trace, timelines)
        events = [Note(names.RECEIVED, trace.began, {}), *trace.events]
        for timeline in timelines:
            events += engine_events(timeline)
        events += lost_engines(trace.attempts)
        status = Status(StatusCode.UNSET)
        message = next((t.message for t in timelines if t.finish_reason is FinishReason.ERROR), "")
        if trace.attempts and trace.attempts[-1].has_failed:  # none went on with it
            message = message or trace.attempts[-1].message
        if trace.status >= 500 or message:
            status = Status(StatusCode.ERROR, message or None)
        return family.root(name, attributes, sorted(events, key=lambda note: note.time), status)


class _Family:
    """Spans of one trace."""

    def __init__(
        self, trace: RequestTrace, resource: Resource, scope: InstrumentationScope, offset: float
    ) -> None:
        self._trace = trace
        self._resource = resource
        self._scope = scope
        self._offset = offset
        state = "" if trace.parent is None else trace.parent.trace_state
        self._state = TraceState.from_header([state]) if state else TraceState()
        self._trace_id = int(trace.trace_id, 16)
        self._root = self._context(int(trace.span_id, 16))

    def root(
        self, name: str, attributes: Attributes, events: Iterable[Note], status: Status
    ) -> ReadableSpan:
        trace, parent = self._trace, None
        if trace.parent is not None:
            parent = self._context(int(trace.parent.span_id, 16), is_remote=True)
        return ReadableSpan(
            name,
            context=self._root,
            parent=parent,
            resource=self._resource,
            attributes=dict(attributes),
            events=self._events(events),
            kind=SpanKind.SERVER,
            status=status,
            start_time=self._nanoseconds(trace.began),
            end_time=self._nanoseconds(trace.ended),
            instrumentation_scope=self._scope,
        )

    def child(
        self,
        name: str,
        began: float,
        ended: float,
        attributes: Attributes | None = None,
        events: Iterable[Note] = (),
        *,
        parent: SpanContext | None = None,
        status: Status | None = None,
    ) -> ReadableSpan:
        return ReadableSpan(
            name,
            context=self._context(int.from_bytes(os.urandom(8)) or 1),
            parent=parent or self._root,
            resource=self._resource,
            attributes=dict(attributes or {}),
            events=self._events(events),
            status=status or Status(StatusCode.UNSET),
            start_time=self._nanoseconds(began),
            end_time=self._nanoseconds(max(began, ended)),
            instrumentation_scope=self._scope,
        )

    def attempt_spans(self, attempt: Attempt, number: int) -> list[ReadableSpan]:
        """The router's choice, and below the engine's part what it did for each sample."""
        spans, choice, began = [], attempt.choice, attempt.began
        engine: dict[str, AttributeValue] = {names.ENGINE: attempt.engine, names.ATTEMPT: number}
        if choice is not None:
            loads = [f"{each}: {load}" for each, load in choice.loads.items()]
            why: dict[str, AttributeValue] = {
                names.ROUTE_REASON: choice.reason,
                names.ROUTE_PREFIX_TOKENS: choice.prefix_tokens,
                names.ROUTE_LOADS: loads[:MAX_LOADS],
            }
            spans.append(self.child(names.ROUTE, choice.began, began, engine | why))
        status, ended = None, self._trace.ended if attempt.ended is None else attempt.ended
        if attempt.outcome is not None:
            engine[names.OUTCOME] = attempt.outcome.value
        if attempt.has_failed:
            status = Status(StatusCode.ERROR, attempt.message or None)
        part = self.child(names.ENGINE_PART, began, ended, engine, status=status)
        spans.append(part)
        for timeline in attempt.timelines:
            spans += self.engine_spans(timeline, part.get_span_context())
        return spans

    def engine_spans(
        self, timeline: Timeline, parent: SpanContext | None = None
    ) -> list[ReadableSpan]:
        """Queue, each chunk of the prompt, and decode of one sample."""
        sample = {names.VLLM_REQUEST_ID: timeline.request_id}
        ended = self._trace.ended if timeline.ended is None else timeline.ended
        scheduled = timeline.first_scheduled
        waited = [
            Note(names.HELD_BACK, d.time, {names.STEP: d.step, **_reason(d.reason.value, d.by)})
            for d in timeline.delays
            if d.reason is not Reason.PREEMPTED
        ]
        spans = [
            self.child(
                names.QUEUE,
                timeline.arrival,
                ended if scheduled is None else scheduled,
                sample,
                waited,
                parent=parent,
            )
        ]
        for chunk in [*timeline.chunks]:
            attributes: dict[str, AttributeValue] = {
                **sample,
                names.STEP: chunk.step,
                names.CHUNK_START: chunk.start,
                names.CHUNK_TOKENS: chunk.num_tokens,
                names.NUM_RUNNING: chunk.num_running,
            }
            spans.append(
                self.child(names.PREFILL, chunk.began, chunk.ended, attributes, parent=parent)
            )
        if timeline.first_token is not None:
            progress = [
                Note(
                    names.PROGRESS,
                    p.time,
                    {
                        names.STEP: p.step,
                        names.OUTPUT_TOKENS: p.num_output_tokens,
                        names.NUM_RUNNING: p.num_running,
                    },
                )
                for p in [*timeline.progress]
            ]
            attributes = {**sample, names.OUTPUT_TOKENS: timeline.num_output_tokens}
            first = timeline.first_token
            spans.append(
                self.child(names.DECODE, first, ended, attributes, progress, parent=parent)
            )
        return spans

    def _context(self, span_id: int, *, is_remote: bool = False) -> SpanContext:
        flags = TraceFlags(TraceFlags.SAMPLED)
        return SpanContext(self._trace_id, span_id, is_remote, flags, self._state)

    def _events(self, notes: Iterable[Note]) -> list[Event]:
        return [
            Event(note.name, dict(note.attributes), self._nanoseconds(note.time)) for note in notes
        ]

    def _nanoseconds(self, seconds: float) -> int:
        return int((seconds + self._offset) * 1e9)


def engine_events(timeline: Timeline) -> list[Note]:
    """What the request's span says of one sample: first token, preemptions, errors, aborts."""
    sample: dict[str, AttributeValue] = {names.VLLM_REQUEST_ID: timeline.request_id}
    events: list[Note] = []
    if timeline.first_token is not None:
        events.append(Note(names.FIRST_TOKEN, timeline.first_token, sample))
    for delay in [*timeline.delays]:
        if delay.reason is Reason.PREEMPTED:
            why = _reason(delay.reason.value, delay.by)
            attributes = {**sample, names.STEP: delay.step, **why}
            events.append(Note(names.PREEMPTED, delay.time, attributes))
    if timeline.ended is not None and timeline.finish_reason in (
        FinishReason.ABORT,
        FinishReason.ERROR,
    ):
        aborted = timeline.finish_reason is FinishReason.ABORT
        message = timeline.message or (CLIENT_LEFT if aborted else "")
        name = names.ABORTED if aborted else names.ERROR
        events.append(Note(name, timeline.ended, {**sample, names.REASON: message}))
    return events


def lost_engines(attempts: Iterable[Attempt]) -> list[Note]:
    """What the request's span says of engines that ended while they had it."""
    return [
        Note(
            names.ENGINE_LOST,
            each.ended,
            {names.ENGINE: each.engine, names.REASON: each.message},
        )
        for each in attempts
        if each.outcome is Outcome.LOST and each.ended is not None
    ]


def _reason(reason: str, by: str | None) -> dict[str, AttributeValue]:
    return {names.REASON: reason} if by is None else {names.REASON: reason, names.BY: by}
