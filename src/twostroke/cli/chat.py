"""``twostroke chat``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from twostroke.cli.flags import (
    CacheFlags,
    ModelFlags,
    SamplingFlags,
    SamplingOptions,
    engine_config,
)
from twostroke.cli.terminal import paint, print_error
from twostroke.core.errors import InvalidRequestError, RequestTooLargeError, TwostrokeError

if TYPE_CHECKING:
    import asyncio

    from twostroke.cli.session import Session

HELP = "/reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer"


def chat(
    model: str | None = None,
    /,
    *,
    url: str | None = None,
    system: str | None = None,
    sampling: SamplingFlags | None = None,
    model_options: ModelFlags | None = None,
    cache: CacheFlags | None = None,
) -> None:
    """Talk to MODEL in the terminal, in this process or on a server.

    When the model's context is full, the oldest turns are forgotten, and a line says so.

    /reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer.

    Args:
        model: `pilot` (embedded, the default), a local folder, or a Hugging Face Hub id; the same
            as --model.
        url: Talk to the OpenAI-compatible server there instead of loading a model (key from
            OPENAI_API_KEY).
        system: System prompt.
    """
    import asyncio

    from twostroke.cli.session import check_unicode, open_session

    config = engine_config(model, model_options, cache)
    sampling = sampling or SamplingOptions()
    check_unicode(system, *sampling.stop)
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    session = open_session(config, url, named=model is not None, loads=cache is not None)
    try:
        if not session.chats:
            hint = 'use `twostroke generate --raw "prompt"`'
            raise InvalidRequestError(f"{config.model.model} has no chat template", hint=hint)
        with asyncio.Runner() as runner:
            Conversation(session, system, sampling.as_fields(), interactive=interactive).run(runner)
    finally:
        session.close()


class Conversation:
    """Reads lines, streams answers, and remembers both.

    Args:
        system: System prompt, kept through ``/reset``.
        fields: How to sample, under the API's names.
        interactive: At a terminal: a failed or interrupted answer does not end the conversation.
    """

    def __init__(
        self, session: Session, system: str | None, fields: Mapping[str, Any], *, interactive: bool
    ) -> None:
        self._session = session
        self._interactive = interactive
        self._opening = [{"role": "system", "content": system}] if system else []
        self._fields = fields
        self._messages = list(self._opening)

    def run(self, runner: asyncio.Runner) -> None:
        """Until ``/exit`` or the end of input."""
        if self._interactive:
            import readline  # noqa: F401 - gives input() editing and history

            print(HELP, file=sys.stderr)
        while (line := self._read()) is not None:
            if line == "/exit":
                return
            if line == "/help":
                print(HELP, file=sys.stderr)
                continue
            if line == "/reset":
                self._messages = list(self._opening)
                print("forgotten", file=sys.stderr)
            elif line:
                self._turn(line, runner)

    def _read(self) -> str | None:
        from twostroke.cli.session import check_unicode, not_utf8

        try:
            # The prompt is no data: written to a pipe it would end up in it.
            line = input(prompt_text() if self._interactive else "").strip()
            check_unicode(line)
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
            print(file=sys.stderr)
            return ""

    def _turn(self, line: str, runner: asyncio.Runner) -> None:
        """One exchange; a stopped answer is kept as far as it got, a failed one is taken back."""
        self._messages.append({"role": "user", "content": line})
        pieces: list[str] = []
        try:
            self._forget(self._session.surplus(self._messages, self._fields))
            while True:
                try:
                    runner.run(self._answer(pieces))
                    break
                except RequestTooLargeError:
                    if pieces or not self._forget(1):
                        raise
        except KeyboardInterrupt:
            if not self._interactive:
                raise
            print(paint("\n(stopped)", "2"), file=sys.stderr)
        except TwostrokeError as error:
            if not self._interactive:
                raise
            self._messages.pop()
            print_error(error.message, error.hint)
            return
        self._messages.append({"role": "assistant", "content": "".join(pieces)})

    def _forget(self, turns: int) -> bool:
        """Drop so many of the oldest turns, if they are there, and say so."""
        begin = len(self._opening)
        turns = min(turns, (len(self._messages) - 1 - begin) // 2)
        del self._messages[begin : begin + 2 * turns]
        if turns:
            which = "oldest turn is" if turns == 1 else f"{turns} oldest turns are"
            print(paint(f"(the context is full: the {which} forgotten)", "2"), file=sys.stderr)
        return turns > 0

    async def _answer(self, pieces: list[str]) -> None:
        stream = self._session.chat(self._messages, self._fields)
        async for piece in stream:
            pieces.append(piece)
            sys.stdout.write(piece)
            sys.stdout.flush()
        print()


def prompt_text() -> str:
    """``> ``, whose style readline must not count as characters."""
    start, _, end = paint("> ", "1", sys.stdout).partition("> ")
    return f"\001{start}\002> \001{end}\002" if start else "> "
