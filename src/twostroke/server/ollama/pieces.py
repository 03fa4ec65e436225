"""The parts of an answer as this API sends them: texts as they come, calls whole."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta, Raw, Struct

from twostroke.text.answer_parsing.answer_parts import AnswerParts
from twostroke.text.answer_parsing.parts import (
    AnswerPart,
    CallArguments,
    CallStarted,
    Content,
    Reasoning,
)


class CalledFunction(Struct):
    index: int
    name: str
    arguments: Annotated[Raw, Meta(extra_json_schema={"type": "object"})]


class OllamaToolCall(Struct):
    """A call; its arguments are an object."""

    id: str
    function: CalledFunction


class Piece(NamedTuple):
    """What an answer has gained."""

    content: str
    thinking: str
    calls: list[OllamaToolCall]


class PieceReader:
    """Reads one answer as it comes.

    White space before and between calls is no content. A call that was cut off is left out.

    Args:
        parts: Those of the answer, as its text comes.
        show_thoughts: Whether thoughts are part of the pieces.
    """

    def __init__(self, parts: AnswerParts, *, show_thoughts: bool) -> None:
        self._parts = parts
        self._show_thoughts = show_thoughts
        self._space = ""  # that may be the beginning of a text
        self._in_text = False
        self._name = ""
        self._arguments: list[str] | None = None  # of the call that is not through
        self._num_calls = 0

    def read(self, text: str, *, ended: bool) -> Piece:
        """What a step added.

        Args:
            ended: Whether this is the last of it.
        """
        if not self._parts.parses:
            return Piece(text, "", [])
        return self._gather(self._parts.add(text, ended=ended), ended=ended)

    def _gather(self, parts: Iterable[AnswerPart], *, ended: bool) -> Piece:
        contents: list[str] = []
        thoughts: list[str] = []
        calls: list[OllamaToolCall] = []
        for part in parts:
            match part:
                case CallStarted(_, name):
                    self._end_call(calls)
                    self._name, self._arguments = name, []
                    self._space, self._in_text = "", False
                case CallArguments(_, more) if self._arguments is not None:
                    self._arguments.append(more)
                case Content(text):
                    self._end_call(calls)
                    contents.append(self._begun(text))
                case Reasoning(text):
                    self._in_text = False
                    thoughts.append(text)
        if ended:
            self._end_call(calls)
            if not self._num_calls:
                contents.append(self._space)
        return Piece("".join(contents), "".join(thoughts) if self._show_thoughts else "", calls)

    def _begun(self, text: str) -> str:
        """The text, unless it may yet turn out to be white space before a call."""
        if not self._in_text:
            text, self._space = self._space + text, ""
            if not text.strip():
                self._space = text
                return ""
            self._in_text = True
        return text

    def _end_call(self, calls: list[OllamaToolCall]) -> None:
        arguments, self._arguments = self._arguments, None
        if arguments is None or not _is_object(text := "".join(arguments) or "{}"):
            return
        function = CalledFunction(self._num_calls, self._name, Raw(text.encode()))
        calls.append(OllamaToolCall(f"call_{uuid.uuid4().hex[:24]}", function))
        self._num_calls += 1


def _is_object(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except msgspec.DecodeError:
        return False
