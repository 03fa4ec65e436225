"""Protects: `chat --show-drafts` colours what was guessed, and never writes guesses without it."""

from __future__ import annotations

from io import StringIO

import pytest

from tests.text.tiny_tokenizers import byte_level
from twostroke.cli.draft_colours import show_drafts
from twostroke.cli.main import run
from twostroke.core.output import RequestOutput
from twostroke.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer(byte_level())


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def written(stream: StringIO, text: str, accepted: str, rejected: str) -> str:
    drafts = [*TOKENIZER.encode(accepted), *TOKENIZER.encode(rejected)]
    output = RequestOutput("a", 0, TOKENIZER.encode(text), 1, 0, text=text)
    output.draft_token_ids = drafts
    output.num_accepted_drafts = len(TOKENIZER.encode(accepted))
    show_drafts(output, TOKENIZER, stream)
    return stream.getvalue()


def test_accepted_drafts_are_green_and_rejected_ones_struck(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = "\033[32mab\033[0m\033[9;31mxy\033[0mc"
    assert written(Terminal(), "abc", "ab", "xy") == coloured
    assert written(Terminal(), "abc", "", "") == "abc"


def test_without_colours_only_the_answer_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    assert written(StringIO(), "abc", "ab", "xy") == "abc"
    monkeypatch.setenv("NO_COLOR", "1")
    assert written(Terminal(), "abc", "ab", "xy") == "abc"


def test_there_must_be_drafts_to_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["chat", "--show-drafts"]) == 1
    assert "--show-drafts needs --speculation" in capsys.readouterr().err
