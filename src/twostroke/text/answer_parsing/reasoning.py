"""The thought before an answer: ``<think>...</think>``, then what another reader parses."""

from __future__ import annotations

from twostroke.text.answer_parsing.parts import Content, Reasoning
from twostroke.text.answer_parsing.source import AnswerSource, Reader, Reading

OPENING, CLOSING = "<think>", "</think>"
# Line feeds before the closing tag belong to it.
_CLOSINGS = ("\n\n" + CLOSING, "\n" + CLOSING, CLOSING)


def plain_content(source: AnswerSource) -> Reading[None]:
    """All text is content."""
    yield from source.rest(Content)


def thought_then(source: AnswerSource, then: Reader, *, opened: bool) -> Reading[None]:
    """A thought, if there is one, and then what ``then`` makes of the rest.

    Args:
        opened: The prompt ends with the opening tag, so that the answer begins within the thought.
    """
    if not opened:
        # White space before the tag is no content; before anything else it is.
        source.keep()
        yield from source.skip_space()
        if (yield from source.next_is(OPENING)) is None:
            source.return_to_mark()
            yield from then(source)
            return
        yield from source.read(OPENING)
    yield from source.skip_space()
    yield from source.until(_CLOSINGS, Reasoning)
    yield from source.skip_space()
    source.keep()
    yield from then(source)
