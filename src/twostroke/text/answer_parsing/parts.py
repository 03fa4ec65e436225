"""The parts of an answer, in the order in which a model writes them."""

from __future__ import annotations

from typing import NamedTuple


class Content(NamedTuple):
    """Text for the user."""

    text: str


class Reasoning(NamedTuple):
    """Text of the model's thought."""

    text: str


class CallStarted(NamedTuple):
    """A tool call begins; ``call`` is its number, from 0."""

    call: int
    name: str


class CallArguments(NamedTuple):
    """More of a call's arguments: the texts of a call together are one JSON object."""

    call: int
    text: str


AnswerPart = Content | Reasoning | CallStarted | CallArguments


def is_call_beyond(part: AnswerPart, max_calls: int) -> bool:
    """Whether a part belongs to a call after the first ``max_calls``."""
    return isinstance(part, (CallStarted, CallArguments)) and part.call >= max_calls
