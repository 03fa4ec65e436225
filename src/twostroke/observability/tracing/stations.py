"""The stations of a call over HTTP, before and after the engine: what its trace noted, as a record.

A trace has one kind of notes and two readers: spans for a collector, and these stations for the
inspector and for recordings. No text of a prompt or an answer is in them.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from twostroke.observability.tracing import names
from twostroke.observability.tracing.trace import AttributeValue, Note, RequestTrace

SCHEMA = 1
# Events between two stages that are stations of their own; the others happen in the engine.
_MARKS = frozenset({names.AUTHENTICATED, names.LIMITED})


class Station(msgspec.Struct, frozen=True):
    """A station ends at ``end``; it began where the one before it ended."""

    name: str
    end: float


class ContextUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a chat's prompt comes from, and what was left out of it.

    Attributes:
        unit: ``tokens`` where documents or a budget came along, so that its parts were counted;
            else ``characters``, as the client sent them.
        budget: The most that the prompt might have had; 0 if nobody set a bound.
        template: What the chat template added.
        cut_tokens: Tokens cut off at the start, by ``truncate_prompt_tokens``.
    """

    unit: str
    system: int = 0
    documents: int = 0
    history: int = 0
    message: int = 0
    template: int = 0
    budget: int = 0
    cut_documents: int = 0
    cut_history: int = 0
    cut_turns: int = 0
    cut_tokens: int = 0


class CallStations(msgspec.Struct, frozen=True, kw_only=True):
    """One call; times in seconds on the engine's clock.

    Attributes:
        request_ids: What the engine was asked, one for each prompt.
        path: Its route.
        status: The answer's status; 499 where the client left before it began, 0 while it lasts.
        streamed: Whether the answer is a stream of events.
        received: When the head of the request had been read.
        stations: In order; the first begins at ``received``.
        first_byte: When the first byte of the answer's body had been written.
        last_byte: When the last one had been.
        ended: None while it lasts.
        num_prompt_tokens: Tokens of all prompts, as they were encoded.
    """

    request_ids: list[str]
    tenant: str = ""
    path: str = ""
    status: int = 0
    streamed: bool = False
    received: float
    stations: list[Station] = []
    first_byte: float | None = None
    last_byte: float | None = None
    ended: float | None = None
    num_prompt_tokens: int = 0
    context: ContextUse | None = None


class CallLine(msgspec.Struct, frozen=True):
    """A call's line in a recording, between the lines of steps."""

    call: CallStations
    schema: int = SCHEMA


def stations_of(trace: RequestTrace) -> CallStations:
    """What a trace has noted so far; call it on the event loop's thread."""
    marks = [note for note in trace.events if note.name in _MARKS]
    notes = sorted([*trace.stages, *marks], key=lambda note: note.time)
    has_ended = trace.has_ended
    return CallStations(
        request_ids=list(trace.request_ids),
        tenant=trace.tenant,
        path=str(trace.attributes.get(names.URL_PATH, "")),
        status=trace.status if has_ended else 0,
        streamed=bool(trace.attributes.get(names.REQUEST_STREAM)),
        received=round(trace.began, 6),
        stations=[Station(note.name, round(note.time, 6)) for note in notes],
        first_byte=_rounded(trace.first_byte),
        last_byte=_rounded(trace.last_byte),
        ended=round(trace.ended, 6) if has_ended else None,
        num_prompt_tokens=_num_prompt_tokens(trace),
        context=_context(trace),
    )


def _rounded(time: float | None) -> float | None:
    return None if time is None else round(time, 6)


def _num_prompt_tokens(trace: RequestTrace) -> int:
    notes = [*trace.stages, *trace.events]
    return sum(
        _integer(note.attributes, names.NUM_TOKENS)
        for note in notes
        if note.name in (names.TOKENISE, names.TOKENISED)
    )


def _context(trace: RequestTrace) -> ContextUse | None:
    found = _first(trace.stages, names.CONTEXT)
    if found is None or names.CONTEXT_UNIT not in found.attributes:
        return None
    cut = _first(trace.events, names.TRUNCATED)
    counts = {
        field: _integer(found.attributes, name) for field, name in names.CONTEXT_PARTS.items()
    }
    return ContextUse(
        str(found.attributes[names.CONTEXT_UNIT]),
        **counts,
        cut_tokens=0 if cut is None else _integer(cut.attributes, names.NUM_TOKENS),
    )


def _first(notes: list[Note], name: str) -> Note | None:
    return next((note for note in notes if note.name == name), None)


def _integer(attributes: Mapping[str, AttributeValue], name: str) -> int:
    value = attributes.get(name, 0)
    return value if isinstance(value, int) else 0
