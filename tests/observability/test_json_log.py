"""Log lines as JSON: one schema, one line each, whatever is in them."""

from __future__ import annotations

import logging
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twostroke.observability.json_log import FIELDS, REQUEST_ID, JsonFormatter, LogLine


def make_line(message: str, *arguments: object, **extra: object) -> LogLine:
    record = logging.LogRecord("twostroke.x", logging.WARNING, "x.py", 1, message, arguments, None)
    record.__dict__.update(extra)
    return read(JsonFormatter().format(record))


def read(text: str) -> LogLine:
    assert "\n" not in text
    return msgspec.json.decode(text, type=LogLine)


def test_a_line() -> None:
    line = make_line("took %d s", 3, **{REQUEST_ID: "cmpl-1", FIELDS: {"seconds": 3.5}})
    assert line.message == "took 3 s" and line.level == "warning" and line.logger == "twostroke.x"
    assert (line.request_id, line.fields, line.error) == ("cmpl-1", {"seconds": 3.5}, None)
    assert line.time.endswith("Z") and len(line.time) == len("2026-01-01T00:00:00.000Z")


def test_an_error_has_its_stack() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        error = sys.exc_info()
    line = make_line("failed", exc_info=error)
    assert line.error is not None
    assert (line.error.type, line.error.message) == ("ValueError", "two\nlines")
    assert "test_an_error_has_its_stack" in line.error.stack


@given(st.text(st.characters(codec=None)))
def test_no_text_breaks_the_line(text: str) -> None:
    assert make_line("%s", text).message == text.encode("utf-8", "backslashreplace").decode()


@pytest.mark.parametrize("text", ["\ud800", 'a"\n{"level": "error"}'])
def test_nothing_can_be_forged(text: str) -> None:
    line = make_line("%s", text, **{FIELDS: {"labels": {"user": text}}})
    assert line.level == "warning" and line.fields["labels"]["user"] == line.message
