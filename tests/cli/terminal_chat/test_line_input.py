"""Protects: how messages are typed: editing, history, pasted lines."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from twostroke.cli.terminal_chat.line_input import EditedLines, history_file

UP, ALT_ENTER = "\x1b[A", "\x1b\r"


def type_lines(keys: list[str], history: Path | None = None) -> list[str]:
    """The lines read; each entry of ``keys`` is typed when a line is asked for."""
    with create_pipe_input() as keyboard:
        lines = EditedLines(history, keyboard, DummyOutput())
        read = []
        for entry in keys:
            keyboard.send_text(entry)
            read.append(lines.read())
        return read


def test_pasted_lines_are_one_message() -> None:
    pasted = "\x1b[200~first\nsecond\x1b[201~"
    assert type_lines([f"{pasted} end\r"]) == ["first\nsecond end"]


def test_alt_enter_starts_a_new_line() -> None:
    assert type_lines([f"one{ALT_ENTER}two\r"]) == ["one\ntwo"]


def test_the_arrow_brings_back_former_lines() -> None:
    assert type_lines(["hello\r", f"{UP} again\r"]) == ["hello", "hello again"]


def test_history_lasts_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "state" / "chat_history"
    type_lines(["secret\r"], path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert type_lines([f"{UP}\r"], path) == ["secret"]


def test_a_disk_that_refuses_costs_only_the_history(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert type_lines(["hi\r"], tmp_path / "file" / "history") == ["hi"]


def test_ctrl_d_ends_and_ctrl_c_interrupts() -> None:
    with pytest.raises(EOFError):
        type_lines(["\x04"])
    with pytest.raises(KeyboardInterrupt):
        type_lines(["half a line\x03"])


def test_where_the_history_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/elsewhere")
    assert history_file() == Path("/elsewhere/twostroke/chat_history")
