"""What people see: errors as one line and a hint, on stderr, in colour only where it is welcome."""

from __future__ import annotations

import os
import sys
from typing import TextIO

# Of an error or its hint; the list of known models is the longest that is written on purpose.
MAX_CHARACTERS = 2000


def print_error(message: str, hint: str | None = None) -> None:
    """``error: ...``, a blank line, ``hint: ...``.

    What the user gave is repeated in them: line breaks and other unprintable letters are shown as
    escapes, and the middle of a very long text is left out.
    """
    print(f"{paint('error', '1;31')}: {one_line(message)}", file=sys.stderr)
    if hint:
        print(f"\n{paint('hint', '1;36')}: {one_line(hint)}", file=sys.stderr)


def one_line(text: str) -> str:
    """``text`` as one printable line of at most ``MAX_CHARACTERS``."""
    if len(text) > MAX_CHARACTERS:
        half = MAX_CHARACTERS // 2 - 2
        text = f"{text[:half]} ... {text[-half + 1 :]}"
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def print_note(message: str) -> None:
    """``note: ...``"""
    print(f"note: {message}", file=sys.stderr)


def paint(text: str, code: str, stream: TextIO | None = None) -> str:
    """``text`` in an ANSI style, unless NO_COLOR is set or ``stream`` is no terminal."""
    if os.environ.get("NO_COLOR") or not (stream or sys.stderr).isatty():
        return text
    return f"\033[{code}m{text}\033[0m"
