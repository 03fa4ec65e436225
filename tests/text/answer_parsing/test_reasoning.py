"""Protects: a thought before an answer is told from it, in whatever pieces the text comes."""

from __future__ import annotations

from functools import partial

import pytest

from twostroke.text.answer_parsing.parser import AnswerParser
from twostroke.text.answer_parsing.parts import Content, Reasoning
from twostroke.text.answer_parsing.reasoning import plain_content, thought_then


@pytest.mark.parametrize(
    ("text", "opened", "thought", "answer"),
    [
        ("<think>\nWell.\n</think>\n\nYes.", False, "Well.", "Yes."),
        ("Well.\n\n</think>\n\nYes.", True, "Well.", "Yes."),
        ("Well, never ends", True, "Well, never ends", ""),
        ("  Yes <think> no.", False, "", "  Yes <think> no."),
        ("<think></think>Yes.", False, "", "Yes."),
    ],
)
def test_thoughts(text: str, opened: bool, thought: str, answer: str) -> None:
    for pieces in ([text], list(text)):
        parser = AnswerParser(partial(thought_then, then=plain_content, opened=opened))
        parts = [part for piece in pieces for part in parser.feed(piece)] + parser.finish()
        assert "".join(p.text for p in parts if isinstance(p, Reasoning)) == thought
        assert "".join(p.text for p in parts if isinstance(p, Content)) == answer
