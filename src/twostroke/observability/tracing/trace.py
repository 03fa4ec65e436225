"""The trace of one HTTP request while it lasts: notes with times, of which spans are made later.

A note costs a microsecond. Whoever handles a request finds its trace in its ASGI scope; a request
that is not traced has one that takes no notes, so that no caller has to ask.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

from twostroke.observability.tracing.attempts import Attempt, ChosenEngine, joined_timelines
from twostroke.observability.tracing.timelines import Timeline

SCOPE_KEY = "twostroke.trace"
# A call may have 256 prompts of 128 samples. This many spans are kept.
MAX_TIMELINES = 16
MAX_ATTEMPTS = 64
MAX_EVENTS = 64

AttributeValue = str | bool | int | float | list[str]
# https://www.w3.org/TR/trace-context/: version, trace, parent, flags; later versions may have more.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_MAX_TRACESTATE = 512


class ParentContext(NamedTuple):
    """The caller's span, as its headers name it; ids are hexadecimal."""

    trace_id: str
    span_id: str
    sampled: bool
    trace_state: str = ""


class Note(NamedTuple):
    """Something that happened, or (a stage) ended; ``time`` as ``time.monotonic`` has it."""

    name: str
    time: float
    attributes: Mapping[str, AttributeValue]


class Trace:
    """A trace that records nothing, for untraced requests; for the event loop's thread only."""

    is_recorded = False
    trace_id = ""
    span_id = ""

    def event(self, name: str, attributes: Mapping[str, AttributeValue] | None = None) -> None:
        """Something happened just now."""

    def stage(self, name: str, attributes: Mapping[str, AttributeValue] | None = None) -> None:
        """A stage ended just now; it began where the one before ended."""

    def follow(self, request_id: str, tenant: str = "") -> None:
        """The engine will get a call of this id: its way through the engine belongs here."""

    def part_began(self) -> Callable[[object], None]:
        """The engine has taken a call; what is returned is to be called once it is through."""
        return _nothing


class RequestTrace(Trace):
    """Implements ``Trace``, ``AttemptKeeper``, and for an engine's thread ``TimelineKeeper``.

    Args:
        parent: The caller's span, if it named one.
        followed: Where the engine looks for the traces of calls.
        on_end: Called once, when HTTP and all parts in the engine have ended.
        is_exported: A collector gets it; without that it has no ids, and ``traceparent`` none.
        on_follow: Called with each id that the engine gets.

    Attributes:
        attributes: Attributes of the request's span.
        status: The answer's status; 499 where the client left before it began.
        first_byte: When the first byte of the answer's body had been written.
        last_byte: When the last byte of it had been written.
        request_ids: What the engine got, on behalf of ``tenant``.
        attempts: Parts of engines in other processes, in the order in which they began.
        choice: Why a router chose the engine of the next attempt.
        has_ended: Whether HTTP has.
    """

    is_recorded = True

    def __init__(
        self,
        parent: ParentContext | None,
        followed: MutableMapping[str, Any],
        on_end: Callable[[RequestTrace], None],
        *,
        is_exported: bool = True,
        on_follow: Callable[[RequestTrace, str], None] | None = None,
    ) -> None:
        self.parent = parent
        if is_exported:
            self.trace_id = os.urandom(16).hex() if parent is None else parent.trace_id
            self.span_id = os.urandom(8).hex()
        self.began = time.monotonic()
        self.ended = self.began
        self.answer_began: float | None = None
        self.first_byte: float | None = None
        self.last_byte: float | None = None
        self.has_ended = False
        self.tenant = ""
        self.request_ids: list[str] = []
        self.status = 499
        self.attributes: dict[str, AttributeValue] = {}
        self.events: list[Note] = []
        self.stages: list[Note] = []
        self.timelines: list[Timeline] = []
        self.num_timelines = 0
        self.attempts: list[Attempt] = []
        self.choice: ChosenEngine | None = None
        self._sample_ids: set[str] = set()  # those of attempts
        self._followed = followed
        self._on_follow = on_follow
        self._num_open = 1  # HTTP itself
        self._on_end = on_end

    def event(self, name: str, attributes: Mapping[str, AttributeValue] | None = None) -> None:
        if len(self.events) < MAX_EVENTS:
            self.events.append(Note(name, time.monotonic(), attributes or {}))

    def stage(self, name: str, attributes: Mapping[str, AttributeValue] | None = None) -> None:
        if len(self.stages) < MAX_EVENTS:
            self.stages.append(Note(name, time.monotonic(), attributes or {}))

    def follow(self, request_id: str, tenant: str = "") -> None:
        self.tenant = tenant
        self.request_ids.append(request_id)
        self._followed[request_id] = self
        if self._on_follow is not None:
            self._on_follow(self, request_id)

    def wrote(self) -> None:
        """Some of the answer's body has just been written."""
        self.last_byte = time.monotonic()
        if self.first_byte is None:
            self.first_byte = self.last_byte

    def part_began(self) -> Callable[[object], None]:
        self._num_open += 1
        return self._part_ended

    def keep(self, timeline: Timeline) -> bool:
        self.num_timelines += 1
        if len(self.timelines) >= MAX_TIMELINES:
            return False
        self.timelines.append(timeline)
        return True

    def open_attempt(
        self, engine: str, model: str, time: float, sample_ids: Sequence[str], *, resumed: bool
    ) -> tuple[Attempt, Sequence[str]] | None:
        choice, self.choice = self.choice, None
        if not resumed:
            self.num_timelines += len(sample_ids)
            room = max(0, MAX_TIMELINES - len(self._sample_ids))
            self._sample_ids.update(sample_ids[:room])
        followed = [each for each in sample_ids if each in self._sample_ids]
        if not followed or len(self.attempts) >= MAX_ATTEMPTS:
            return None
        attempt = Attempt(engine, model, time, choice)
        self.attempts.append(attempt)
        return attempt, followed

    def samples(self) -> list[Timeline]:
        """One timeline for each sample that is followed, wherever it was computed."""
        return joined_timelines(self.attempts) if self.attempts else [*self.timelines]

    def close(self, status: int) -> None:
        """The answer has left, or its client."""
        self.status = status
        self.has_ended = True
        self.ended = time.monotonic()
        self._part_ended(None)

    def _part_ended(self, _: object) -> None:
        self._num_open -= 1
        if self._num_open:
            return
        for request_id in self.request_ids:
            self._followed.pop(request_id, None)
        self._on_end(self)


NOT_TRACED = Trace()


def trace_of(scope: MutableMapping[str, Any]) -> Trace:
    """The trace of the request of this ASGI scope."""
    trace: Trace = scope.get(SCOPE_KEY, NOT_TRACED)
    return trace


def parent_context(headers: Iterable[tuple[bytes, bytes]]) -> ParentContext | None:
    """The caller's span by W3C's ``traceparent`` and ``tracestate``; what is malformed is none."""
    parents: list[str] = []
    states: list[str] = []
    for name, value in headers:
        if name == b"traceparent":
            parents.append(value.decode("latin-1").strip())
        elif name == b"tracestate":
            states.append(value.decode("latin-1").strip())
    match = _TRACEPARENT.fullmatch(parents[0]) if len(parents) == 1 else None
    if match is None or (match[4] and parents[0].startswith("00")):
        return None
    trace_id, span_id, flags = match[1], match[2], int(match[3], 16)
    if not int(trace_id, 16) or not int(span_id, 16):
        return None
    state = ",".join(states)
    return ParentContext(
        trace_id, span_id, bool(flags & 1), state if len(state) <= _MAX_TRACESTATE else ""
    )


def _nothing(_: object) -> None:
    pass
