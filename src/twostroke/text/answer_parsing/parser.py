"""Feeds the text of one answer to its reader and gives out the parts."""

from __future__ import annotations

from twostroke.text.answer_parsing.parts import AnswerPart, CallArguments, CallStarted, Content
from twostroke.text.answer_parsing.source import AnswerSource, MalformedCallError, Reader, Reading


class AnswerParser:
    """Parses one answer as it streams.

    Whatever the model writes, no text is lost and no error is raised: what is not of the family's
    form is content. A call that turns out to be malformed after it has begun stays as it is. White
    space after a call is content only where other text follows it.

    Args:
        read: How the model's family writes answers.

    Attributes:
        num_calls: Tool calls so far.
    """

    def __init__(self, read: Reader) -> None:
        self._source = AnswerSource()
        self._reading: Reading[None] | None = read(self._source)
        self.num_calls = 0
        self._after_call = False
        self._space = ""  # after a call

    def feed(self, text: str) -> list[AnswerPart]:
        """The parts that are certain once ``text`` has come; texts of the same kind are joined."""
        if self._reading is None:
            return self._shown([Content(text)]) if text else []
        self._source.append(text)
        return self._advance()

    def finish(self) -> list[AnswerPart]:
        """What was held back, at the end of the answer."""
        self._source.ended = True
        return [] if self._reading is None else self._advance()

    def _advance(self) -> list[AnswerPart]:
        assert self._reading is not None
        parts: list[AnswerPart] = []
        try:
            for part in self._reading:
                if part is None:
                    return self._shown(_joined(parts))
                if isinstance(part, CallStarted):
                    self.num_calls += 1
                    self._source.forget()
                parts.append(part)
            rest = ""
        except MalformedCallError:
            rest = self._source.take_since_mark()
        self._reading = None
        if rest:
            parts.append(Content(rest))
        return self._shown(_joined(parts))

    def _shown(self, parts: list[AnswerPart]) -> list[AnswerPart]:
        """The parts without white space that only separates calls."""
        shown: list[AnswerPart] = []
        for part in parts:
            if self._after_call and isinstance(part, Content):
                text = self._space + part.text
                if not text.strip():
                    self._space = text
                    continue
                part = Content(text)
            self._after_call, self._space = isinstance(part, CallArguments), ""
            shown.append(part)
        return shown


def _joined(parts: list[AnswerPart]) -> list[AnswerPart]:
    joined: list[AnswerPart] = []
    for part in parts:
        last = joined[-1] if joined else None
        if isinstance(part, CallStarted) or last is None or last[:-1] != part[:-1]:
            joined.append(part)
        elif type(last) is type(part):
            joined[-1] = part._replace(text=last[-1] + part.text)
        else:
            joined.append(part)
    return joined
