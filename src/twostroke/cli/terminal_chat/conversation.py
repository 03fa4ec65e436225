"""A conversation in the terminal: what it remembers, and what each line does to it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twostroke.cli.session import TokenCounts, not_utf8, refuse_surrogates
from twostroke.cli.terminal import paint, print_error
from twostroke.cli.terminal_chat.commands import Command, help_text, read_command, with_setting
from twostroke.core.errors import InvalidRequestError, RequestTooLargeError, TwostrokeError

if TYPE_CHECKING:
    import asyncio

    from twostroke.cli.session import Session
    from twostroke.cli.terminal_chat.answer_view import AnswerView
    from twostroke.cli.terminal_chat.line_input import LineInput


class TerminalConversation:
    """Reads lines, streams answers, and remembers both.

    Args:
        lines: Where messages and commands come from.
        make_view: Makes what shows one answer.
        system: System prompt, kept through ``/reset``.
        settings: How to sample, under the API's names.
        interactive: At a terminal: a failed or interrupted answer does not end the conversation.
    """

    def __init__(
        self,
        session: Session,
        lines: LineInput,
        make_view: Callable[[], AnswerView],
        system: str | None,
        settings: Mapping[str, Any],
        *,
        interactive: bool,
    ) -> None:
        self._session = session
        self._lines = lines
        self._make_view = make_view
        self._interactive = interactive
        self._system = system
        self._settings = dict(settings)
        self._messages: list[dict[str, str]] = []
        self._handlers: dict[str, Callable[[str], None]] = {
            "/help": lambda _: note(help_text()),
            "/system": self._set_system,
            "/set": self._set_parameter,
            "/save": self._save,
            "/reset": lambda _: self._reset(),
        }

    def run(self, runner: asyncio.Runner) -> None:
        """Chat until ``/exit`` or the end of input."""
        if self._interactive:
            note("/help lists the commands, Ctrl-D leaves, Ctrl-C stops an answer")
        while (line := self._read()) is not None:
            try:
                command = read_command(line)
                if command is not None and command.name == "/exit":
                    return
                if command is None and line.strip():
                    self._answer(line.strip(), runner)
                elif command is not None:
                    self._carry_out(command, runner)
            except TwostrokeError as error:
                if not self._interactive:
                    raise
                print_error(error.message, error.hint)

    def _read(self) -> str | None:
        try:
            line = self._lines.read()
            refuse_surrogates(line)
            return line
        except EOFError:
            if self._interactive:
                print(file=sys.stderr)
            return None
        except UnicodeDecodeError as error:
            raise not_utf8() from error
        except KeyboardInterrupt:
            if not self._interactive:
                raise
            return ""

    # ---- commands --------------------------------------------------------------------------------

    def _carry_out(self, command: Command, runner: asyncio.Runner) -> None:
        if command.name == "/retry":
            self._retry(runner)
        else:
            self._handlers[command.name](command.argument)

    def _reset(self) -> None:
        self._messages = []
        note("forgotten")

    def _set_system(self, text: str) -> None:
        if text:
            self._system = None if text == "-" else text
        note(f"system prompt: {self._system}" if self._system else "no system prompt")

    def _set_parameter(self, argument: str) -> None:
        if argument:
            self._settings = with_setting(self._settings, argument)
        chosen = [f"{name} {json.dumps(value)}" for name, value in self._settings.items()]
        note("\n".join(chosen) or "every parameter has its default")

    def _retry(self, runner: asyncio.Runner) -> None:
        """Ask the last question again; its former answer comes back if there is no new one."""
        if not self._messages:
            raise InvalidRequestError("there is no message to answer again", hint="write one first")
        former = self._messages[-2:]
        del self._messages[-2:]
        try:
            self._answer(former[0]["content"], runner)
        except TwostrokeError:
            self._messages += former
            raise

    def _save(self, name: str) -> None:
        path = Path(name).expanduser()
        messages = self._with_system()
        if path.suffix == ".json":
            text = json.dumps({"messages": messages}, ensure_ascii=False, indent=2) + "\n"
        else:
            text = "\n".join(f"## {m['role'].title()}\n\n{m['content']}\n" for m in messages)
        try:
            # "x": a mistyped name must not cost another file.
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            raise InvalidRequestError(
                f"{path} is there already", hint="choose another name"
            ) from None
        except OSError as error:
            raise InvalidRequestError(
                f"cannot write {path}: {error.strerror}", hint="choose another folder or name"
            ) from error
        note(f"{len(messages)} messages written to {path}")

    # ---- answers ---------------------------------------------------------------------------------

    def _with_system(self) -> list[dict[str, str]]:
        opening = [{"role": "system", "content": self._system}] if self._system else []
        return opening + self._messages

    def _answer(self, question: str, runner: asyncio.Runner) -> None:
        """One exchange; a stopped answer is kept as far as it got, a failed one is taken back."""
        self._messages.append({"role": "user", "content": question})
        pieces: list[str] = []
        try:
            self._forget(self._session.surplus(self._with_system(), self._settings))
            while True:
                try:
                    runner.run(self._stream(pieces))
                    break
                except RequestTooLargeError:
                    if pieces or not self._forget(1):
                        raise
        except KeyboardInterrupt:
            if not self._interactive:
                raise
            note("(stopped)")
        except TwostrokeError:
            self._messages.pop()
            raise
        self._messages.append({"role": "assistant", "content": "".join(pieces)})

    def _forget(self, turns: int) -> bool:
        """Drop this many of the oldest turns, if they are there, and say so."""
        turns = min(turns, (len(self._messages) - 1) // 2)
        del self._messages[: 2 * turns]
        if turns:
            which = "oldest turn is" if turns == 1 else f"{turns} oldest turns are"
            note(f"(the context is full: the {which} forgotten)")
        return turns > 0

    async def _stream(self, pieces: list[str]) -> None:
        view, start = self._make_view(), time.perf_counter()
        first: float | None = None
        counts: TokenCounts | None = None
        ended = False
        try:
            async for piece in self._session.chat(self._with_system(), self._settings):
                if piece.text:
                    first = time.perf_counter() if first is None else first
                    pieces.append(piece.text)
                    view.write(piece.text)
                counts = piece.counts or counts
            ended = True
        finally:
            view.close(ended=ended)
        if self._interactive and first is not None:
            note(describe_speed(first - start, time.perf_counter() - first, counts) + "\n")


def describe_speed(ttft: float, decoding: float, counts: TokenCounts | None) -> str:
    """The line below an answer: ``TTFT 35 ms, 57 tokens at 412 tokens/s, 128 of 140 cached``.

    Args:
        ttft: Seconds until the first text.
        decoding: Seconds from then to the end.
    """
    parts = [f"TTFT {ttft * 1000:.0f} ms" if ttft < 1 else f"TTFT {ttft:.1f} s"]
    if counts is not None:
        answer = f"{counts.completion} token{'' if counts.completion == 1 else 's'}"
        if counts.completion > 1 and decoding > 0:
            answer += f" at {(counts.completion - 1) / decoding:.0f} tokens/s"
        parts.append(answer)
        cached = f", {counts.cached} of them cached" if counts.cached else ""
        parts.append(f"prompt {counts.prompt} tokens{cached}")
    return " · ".join(parts)


def note(text: str) -> None:
    """What is no part of an answer: on standard error, dim."""
    print(paint(text, "2"), file=sys.stderr)
