"""An answer's text as parsers read it: forward only, and waiting where more must come first.

A parser is a generator. It yields the parts it has found, and ``None`` where it needs more text. So
it is written as if the whole text were there, and works on any pieces of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

from twostroke.text.answer_parsing.parts import AnswerPart

T = TypeVar("T")
Reading = Generator[AnswerPart | None, None, T]
# Reads an answer in the form of a family.
Reader = Callable[["AnswerSource"], Reading[None]]
PartOfText = Callable[[str], AnswerPart]

_STRING_BODY = re.compile(r'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_NUMBER_OR_WORD = re.compile(r"[-+.\w]+")
_SPACE = re.compile(r"\s*")
_SPACE_THERE = re.compile(r"\s+")
# A name or a value that parsers hold back whole may not be longer.
MAX_HELD_CHARS = 1_000_000
MAX_WORD_CHARS = 5_000
MAX_DEPTH = 64


class MalformedCallError(Exception):
    """The text is not of the form that the model's family has for tool calls."""


def strict_json(text: str) -> Any:
    """The value of a JSON text, without the NaN and Infinity that Python reads besides (RFC 8259).

    Raises:
        ValueError: It is no JSON.
    """
    return json.loads(text, parse_constant=_refuse)


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


class AnswerSource:
    """The text of an answer that has come and is not read.

    Attributes:
        ended: No more text will come.
    """

    def __init__(self) -> None:
        self._text = ""
        self._position = 0
        self._mark: int | None = 0
        self.ended = False

    def append(self, text: str) -> None:
        start = self._position if self._mark is None else self._mark
        self._text = self._text[start:] + text
        self._position -= start
        self._mark = None if self._mark is None else 0

    def take_since_mark(self) -> str:
        """All text from the mark on, read or not; without a mark, what is not read."""
        start = self._position if self._mark is None else self._mark
        self._position = len(self._text)
        self._mark = None
        return self._text[start:]

    def keep(self, num_read: int = 0) -> None:
        """Set the mark ``num_read`` characters back, to keep what is read from there on."""
        self._mark = self._position - num_read

    def keep_more(self) -> None:
        """Set the mark here, unless it is set already."""
        if self._mark is None:
            self._mark = self._position

    def return_to_mark(self) -> None:
        """Unread all that was read since the mark."""
        assert self._mark is not None
        self._position = self._mark

    def forget(self) -> None:
        """Remove the mark."""
        self._mark = None

    def back(self, count: int) -> None:
        """Unread the last ``count`` characters that were taken since the parser last waited."""
        self._position -= count

    def take(self, count: int) -> str:
        """The next ``count`` characters, which must be there."""
        start, self._position = self._position, self._position + count
        return self._text[start : self._position]

    def at_end(self) -> Reading[bool]:
        """Whether nothing is left to read; waits where that is not known."""
        while self._position == len(self._text) and not self.ended:
            yield None
        return self._position == len(self._text)

    def skip_space(self) -> Reading[None]:
        """Read over white space."""
        while not (yield from self.at_end()):
            match = _SPACE.match(self._text, self._position)
            assert match is not None
            self._position = match.end()
            if self._position < len(self._text):
                return

    def next_is(self, *literals: str) -> Reading[str | None]:
        """The first of ``literals`` that comes next, which is not read; else ``None``."""
        while True:
            rest = self._text[self._position : self._position + max(map(len, literals))]
            for literal in literals:
                if rest.startswith(literal):
                    return literal
            if self.ended or not any(literal.startswith(rest) for literal in literals):
                return None
            yield None

    def read(self, literal: str) -> Reading[None]:
        """Read ``literal``.

        Raises:
            MalformedCallError: Something else comes next.
        """
        if (yield from self.next_is(literal)) is None:
            raise MalformedCallError(f"{literal!r} is missing")
        self._position += len(literal)

    def until(self, markers: Sequence[str], part: PartOfText) -> Reading[str | None]:
        """Yield what comes before the first of ``markers``, as soon as it is certain.

        Returns:
            The marker, which is read, and kept: what follows it may turn out to be malformed.
            ``None`` at the end of the answer.
        """
        pattern = re.compile("|".join(re.escape(marker) for marker in markers))
        while True:
            match = pattern.search(self._text, self._position)
            safe = match.start() if match else self._certain_end(markers)
            if safe > self._position:
                self.forget()
                yield part(self.take(safe - self._position))
            if match:
                self._position = match.end()
                self.keep(len(match[0]))
                return match[0]
            if self.ended:
                return None
            yield None

    def rest(self, part: PartOfText) -> Reading[None]:
        """Yield all that comes."""
        while not (yield from self.at_end()):
            yield part(self.take(len(self._text) - self._position))

    def text_until(self, *markers: str) -> Reading[tuple[str, str]]:
        """The text before the first of ``markers``, held back until it is whole, and the marker.

        Raises:
            MalformedCallError: None of them comes.
        """
        pattern = re.compile("|".join(re.escape(marker) for marker in markers))
        longest = max(map(len, markers))
        num_searched = 0
        while (match := pattern.search(self._text, self._position + num_searched)) is None:
            num_held = len(self._text) - self._position
            if self.ended or num_held > MAX_HELD_CHARS:
                raise MalformedCallError(f"{markers[0]!r} is missing")
            # A marker may have begun at the end.
            num_searched = max(0, num_held - longest + 1)
            yield None
        text = self.take(match.start() - self._position)
        self._position = match.end()
        return text, match[0]

    def _certain_end(self, markers: Sequence[str]) -> int:
        """Up to where the text holds no beginning of a marker."""
        end = len(self._text)
        if self.ended:
            return end
        longest = max(map(len, markers)) - 1
        for start in range(max(self._position, end - longest), end):
            tail = self._text[start:]
            if any(marker.startswith(tail) for marker in markers):
                return start
        return end

    # ---- JSON ------------------------------------------------------------------------------------

    def json_string(self) -> Reading[str]:
        """A JSON string, decoded."""
        return str(json.loads((yield from self.json_value())))

    def json_value(self, part: PartOfText | None = None) -> Reading[str]:
        """The text of the JSON value that comes next, after white space.

        Args:
            part: Makes parts of the value's text, which are yielded as it comes.

        Raises:
            MalformedCallError: It is no JSON, or nested too deeply, or the answer ends within it.
        """
        yield from self.skip_space()
        pieces: list[str] = []
        depth, size = 0, 0
        while True:
            if (yield from self.at_end()):
                raise MalformedCallError("the answer ends within a JSON value")
            token = yield from self._json_token(part)
            pieces.append(token)
            size += len(token)
            if part is None and size > MAX_HELD_CHARS:
                raise MalformedCallError("a JSON value is too long")
            depth += (token in ("{", "[")) - (token in ("}", "]"))
            if depth > MAX_DEPTH:
                raise MalformedCallError("a JSON value is nested too deeply")
            if depth <= 0 and not token.isspace():
                break
        text = "".join(pieces)
        try:
            strict_json(text)
        except ValueError as error:
            raise MalformedCallError(f"not valid JSON: {error}") from error
        return text

    def _json_token(self, part: PartOfText | None) -> Reading[str]:
        """The next token of JSON: a mark, white space, a whole string, number or word."""
        first = self._text[self._position]
        if first == '"':
            return (yield from self._json_string_token(part))
        if first in "{}[],:":
            token = self.take(1)
        elif match := _SPACE_THERE.match(self._text, self._position):
            token = self.take(match.end() - self._position)
        else:
            token = yield from self._json_word()
        if part is not None:
            yield part(token)
        return token

    def _json_word(self) -> Reading[str]:
        while True:
            match = _NUMBER_OR_WORD.match(self._text, self._position)
            if match is None or match.end() - self._position > MAX_WORD_CHARS:
                raise MalformedCallError("neither a JSON number nor a word of JSON")
            if match.end() < len(self._text) or self.ended:
                break
            yield None
        try:
            strict_json(match[0])
        except ValueError as error:
            raise MalformedCallError(f"{match[0]!r} is no word of JSON") from error
        return self.take(len(match[0]))

    def _json_string_token(self, part: PartOfText | None) -> Reading[str]:
        """A string with its quotes. Its parts are yielded as they come, escapes whole."""
        pieces = [self.take(1)]
        size = 1
        while True:
            match = _STRING_BODY.match(self._text, self._position)
            assert match is not None
            closed = self._text.startswith('"', match.end())
            pieces.append(self.take(match.end() + closed - self._position))
            size += len(pieces[-1])
            if part is not None and (piece := pieces[-1] if len(pieces) > 2 else "".join(pieces)):
                yield part(piece)
            if closed:
                return "".join(pieces)
            if self.ended or size > MAX_HELD_CHARS:
                raise MalformedCallError("a JSON string has no end")
            yield None
