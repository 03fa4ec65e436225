"""Answers that may call tools: calls are carried out here, until the model answers in words."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from twostroke.cli.session import AnswerPiece, Message, Session
from twostroke.cli.tool_calling import AskedCall, call_messages

# Answers with calls to one message: a model that goes on calling is stopped.
MAX_ROUNDS = 4
MAX_CALLS = 8  # of one answer
MAX_SHOWN = 160  # characters of a line


class ToolSession:
    """A ``Session`` around another one, with tools.

    Calls and results belong to the turn: later turns see the question and the last answer.

    Args:
        schemas: The tools as OpenAI's API takes them.
        run: Gives the result of a call by the tool's name and its arguments; it never raises.
        note: Shows a line about a call.
    """

    def __init__(
        self,
        session: Session,
        schemas: Sequence[Mapping[str, Any]],
        run: Callable[[str, str], str],
        note: Callable[[str], None],
    ) -> None:
        self._session = session
        self._schemas = list(schemas)
        self._run = run
        self._note = note

    @property
    def chats(self) -> bool:
        return self._session.chats

    def close(self) -> None:
        self._session.close()

    def surplus(self, messages: Sequence[Message], fields: Mapping[str, Any]) -> int:
        return self._session.surplus(messages, fields)

    def complete(self, prompt: str, fields: Mapping[str, Any]) -> AsyncIterator[AnswerPiece]:
        return self._session.complete(prompt, fields)

    async def chat(
        self, messages: Sequence[Message], fields: Mapping[str, Any]
    ) -> AsyncGenerator[AnswerPiece]:
        history = list(messages)
        for _ in range(MAX_ROUNDS):
            text, calls = "", list[AskedCall]()
            answer = self._session.chat(history, {**fields, "tools": self._schemas})
            async with aclosing(answer) as pieces:
                async for piece in pieces:
                    text += piece.text
                    calls += piece.calls
                    yield piece
            if not calls:
                return
            results = [self._result(call) for call in calls[:MAX_CALLS]]
            history += call_messages(text, calls[:MAX_CALLS], results)
        self._note(f"(stopped: {MAX_ROUNDS} answers in a row called tools)")

    def _result(self, call: AskedCall) -> str:
        result = self._run(call.name, call.arguments)
        self._note(f"{describe_call(call)} -> {shortened(result)}")
        return result


def describe_call(call: AskedCall) -> str:
    """A call as a line shows it: ``fits_on(model=llama-3.1-8b, gpu=h100)``."""
    try:
        values = json.loads(call.arguments)
        shown = ", ".join(f"{name}={value}" for name, value in values.items())
    except (ValueError, RecursionError, AttributeError):
        shown = call.arguments
    return shortened(f"{call.name}({shown})")


def shortened(text: str) -> str:
    """One line of what may be any text."""
    line = " ".join(text.split())
    line = "".join(character if character.isprintable() else "?" for character in line)
    return line if len(line) <= MAX_SHOWN else line[: MAX_SHOWN - 3] + "..."
