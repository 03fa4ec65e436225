"""How a process answers questions of pages: a line each from stdin, a line each to stdout."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from typing import TypeVar

import msgspec

from twostroke.core.errors import TwostrokeError

Asked = TypeVar("Asked", bound=msgspec.Struct)
NICENESS = 10
IDLE_SECONDS = 60.0  # a process that gets no question for this long ends by itself
ANSWERED, REFUSED = b"answered ", b"refused "  # how each of its lines begins


def answer_lines(kind: type[Asked], answer: Callable[[Asked], object]) -> None:
    """Answer at low priority until questions end, or none comes for a while.

    Args:
        answer: Gives what is sent as JSON; refuses a question by raising ``TwostrokeError``.
    """
    os.nice(NICENESS)
    while select.select([sys.stdin.fileno()], [], [], IDLE_SECONDS)[0]:
        question = sys.stdin.buffer.readline()
        if not question:
            return
        try:
            line = ANSWERED + msgspec.json.encode(answer(msgspec.json.decode(question, type=kind)))
        except TwostrokeError as error:
            line = REFUSED + msgspec.json.encode(error.message)
        sys.stdout.buffer.write(line + b"\n")
        sys.stdout.buffer.flush()
