"""Protects: which lines are commands, and which values parameters take."""

from __future__ import annotations

from typing import Any

import pytest

from twostroke.cli.terminal_chat.commands import (
    COMMANDS,
    Command,
    help_text,
    read_command,
    with_setting,
)
from twostroke.core.errors import InvalidRequestError


def test_text_and_commands() -> None:
    assert read_command("hello /help") is read_command(" /help") is read_command("") is None
    assert read_command("/system  be brief ") == Command("/system", "be brief")
    assert read_command("/system") == Command("/system", "")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/quit", "no command /quit"),
        ("/", "no command /"),
        ("/save", "needs a value"),
        ("/reset now", "takes no argument"),
    ],
)
def test_what_is_refused(line: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        read_command(line)
    assert caught.value.hint


def test_help_names_every_command() -> None:
    assert all(name in help_text() for name in COMMANDS)
    assert max(map(len, help_text().splitlines())) < 80


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("temperature 0.7", {"temperature": 0.7}),
        ("max-tokens 12", {"max_tokens": 12}),
        ("stop the end", {"stop": ["the end"]}),
        ('stop "\\n\\n"', {"stop": ["\n\n"]}),
        ("ignore_eos true", {"ignore_eos": True}),
    ],
)
def test_settings(argument: str, expected: dict[str, Any]) -> None:
    assert with_setting({}, argument) == expected
    name = next(iter(expected))
    assert with_setting(expected, f"{name} default") == {}


@pytest.mark.parametrize(
    "argument",
    [
        "heat 3",
        "temperature",
        "temperature hot",
        "temperature nan",
        "top_p 2",
        "max_tokens 1.5",
        "max_tokens 0",
        "ignore_eos maybe",
    ],
)
def test_settings_that_are_refused(argument: str) -> None:
    with pytest.raises(InvalidRequestError):
        with_setting({"top_k": 3}, argument)
