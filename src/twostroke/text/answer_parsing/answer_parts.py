"""The parts of one answer as its text comes: the stream from which every dialect writes."""

from __future__ import annotations

from twostroke.text.answer_parsing.parser import AnswerParser
from twostroke.text.answer_parsing.parts import AnswerPart, Content, is_call_beyond
from twostroke.text.answer_parsing.source import Reader


class AnswerParts:
    """Reads one answer.

    Args:
        read: How the model's family writes answers; ``None``: all of it is content.
        max_calls: Calls after these are left out; ``None``: there are never too many.
    """

    def __init__(self, read: Reader | None, max_calls: int | None = None) -> None:
        self._parser = None if read is None else AnswerParser(read)
        self._max_calls = max_calls

    def add(self, text: str, *, ended: bool) -> list[AnswerPart]:
        """The parts that are certain once ``text`` has come.

        Args:
            ended: Whether this is the last of it.
        """
        if self._parser is None:
            return [Content(text)] if text else []
        parts = self._parser.feed(text)
        if ended:
            parts += self._parser.finish()
        if self._max_calls is None:
            return parts
        return [part for part in parts if not is_call_beyond(part, self._max_calls)]

    @property
    def parses(self) -> bool:
        """Whether there may be other parts than content."""
        return self._parser is not None

    @property
    def has_calls(self) -> bool:
        """Whether the answer has called a tool so far."""
        return self._parser is not None and self._parser.num_calls > 0
