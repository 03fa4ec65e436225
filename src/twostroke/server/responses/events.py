"""The events of a streamed response, each of a type of its own, numbered from 0."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from twostroke.server.openai.logprobs import ChatTokenLogprob
from twostroke.server.responses.objects import (
    OutputItem,
    OutputText,
    ReasoningText,
    ResponseObject,
)

_ENCODER = msgspec.json.Encoder()


class Event(Struct, kw_only=True, tag_field="type"):
    """The base of all events; they are numbered when they are sent."""

    sequence_number: int = 0


class _WithResponse(Event, kw_only=True):
    response: ResponseObject


class ResponseCreated(_WithResponse, tag="response.created"):
    pass


class ResponseQueued(_WithResponse, tag="response.queued"):
    pass


class ResponseInProgress(_WithResponse, tag="response.in_progress"):
    pass


class ResponseCompleted(_WithResponse, tag="response.completed"):
    pass


class ResponseIncomplete(_WithResponse, tag="response.incomplete"):
    pass


class ResponseFailed(_WithResponse, tag="response.failed"):
    pass


class OutputItemAdded(Event, kw_only=True, tag="response.output_item.added"):
    output_index: int
    item: OutputItem


class OutputItemDone(Event, kw_only=True, tag="response.output_item.done"):
    output_index: int
    item: OutputItem


class _WithinItem(Event, kw_only=True):
    item_id: str
    output_index: int


class _WithinPart(_WithinItem, kw_only=True):
    content_index: int = 0


class ContentPartAdded(_WithinPart, kw_only=True, tag="response.content_part.added"):
    part: OutputText | ReasoningText


class ContentPartDone(_WithinPart, kw_only=True, tag="response.content_part.done"):
    part: OutputText | ReasoningText


class OutputTextDelta(_WithinPart, kw_only=True, tag="response.output_text.delta"):
    delta: str
    logprobs: list[ChatTokenLogprob]


class OutputTextDone(_WithinPart, kw_only=True, tag="response.output_text.done"):
    text: str
    logprobs: list[ChatTokenLogprob]


class ReasoningTextDelta(_WithinPart, kw_only=True, tag="response.reasoning_text.delta"):
    delta: str


class ReasoningTextDone(_WithinPart, kw_only=True, tag="response.reasoning_text.done"):
    text: str


class CallArgumentsDelta(_WithinItem, kw_only=True, tag="response.function_call_arguments.delta"):
    delta: str


class CallArgumentsDone(_WithinItem, kw_only=True, tag="response.function_call_arguments.done"):
    name: str
    arguments: str


EVENTS: tuple[type[Event], ...] = (
    ResponseCreated,
    ResponseQueued,
    ResponseInProgress,
    ResponseCompleted,
    ResponseIncomplete,
    ResponseFailed,
    OutputItemAdded,
    OutputItemDone,
    ContentPartAdded,
    ContentPartDone,
    OutputTextDelta,
    OutputTextDone,
    ReasoningTextDelta,
    ReasoningTextDone,
    CallArgumentsDelta,
    CallArgumentsDone,
)


def event_type(event: type[Event]) -> str:
    """The name that an event has in its ``type`` field."""
    return str(event.__struct_config__.tag)


def encode_event(event: Event) -> bytes:
    """A server-sent event; its name is the type once more."""
    name = event_type(type(event)).encode()
    return b"event: " + name + b"\ndata: " + _ENCODER.encode(event) + b"\n\n"
