"""What people see: errors as one line and a hint, on stderr, in colour only where it is welcome."""

from __future__ import annotations

import os
import sys
from typing import TextIO


def print_error(message: str, hint: str | None = None) -> None:
    """``error: ...``, a blank line, ``hint: ...``."""
    print(f"{paint('error', '1;31')}: {message}", file=sys.stderr)
    if hint:
        print(f"\n{paint('hint', '1;36')}: {hint}", file=sys.stderr)


def paint(text: str, code: str, stream: TextIO | None = None) -> str:
    """``text`` in an ANSI style, unless NO_COLOR is set or ``stream`` is no terminal."""
    if os.environ.get("NO_COLOR") or not (stream or sys.stderr).isatty():
        return text
    return f"\033[{code}m{text}\033[0m"
