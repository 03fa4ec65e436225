"""Protects: an error is one printable line, however much and whatever the user gave."""

from __future__ import annotations

import pytest

from twostroke.cli.terminal import MAX_CHARACTERS, one_line, print_error


def test_unprintable_letters_are_shown_as_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    print_error("no folder a\nb\x1b[2J\udcff \N{SNOWMAN}", "give\tanother")
    assert capsys.readouterr().err == (
        "error: no folder a\\nb\\x1b[2J\\udcff \N{SNOWMAN}\n\nhint: give\\tanother\n"
    )


def test_the_middle_of_a_long_text_is_left_out() -> None:
    text = one_line("begin" + "x" * 10**6 + "end")
    assert len(text) <= MAX_CHARACTERS and text.startswith("begin") and text.endswith("end")
    assert one_line("y" * MAX_CHARACTERS) == "y" * MAX_CHARACTERS
