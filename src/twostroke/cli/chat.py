"""``twostroke chat``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from twostroke.cli.flags import CacheFlags, ModelFlags, SamplingFlags, SamplingOptions, engine_config
from twostroke.cli.terminal import paint, print_error
from twostroke.config import ModelOptions
from twostroke.errors import ConfigError, InvalidRequestError, TwostrokeError

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

    /reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer.

    Args:
        model: `pilot` (embedded, the default), a local folder, or a Hugging Face Hub id; the same as --model.
        url: Talk to the OpenAI-compatible server there instead of loading a model (key from OPENAI_API_KEY).
        system: System prompt.
    """
    import asyncio

    from twostroke.cli.session import LocalSession, RemoteSession

    config = engine_config(model, model_options, cache)
    fields = (sampling or SamplingOptions()).as_fields()
    session: Session
    if url is not None:
        if cache is not None or replace(config.model, model="pilot", seed=None) != ModelOptions():
            raise ConfigError("flags of the engine mean nothing with --url", hint="give them to the server there")
        given = model is not None or config.model.model != ModelOptions().model
        session = RemoteSession(url, config.model.model if given else None)
        if config.model.seed is not None:
            fields["seed"] = config.model.seed
    else:
        session = LocalSession.load(config)
        if not session.chats:
            hint = 'use `twostroke generate --raw "prompt"`'
            raise InvalidRequestError(f"{config.model.model} has no chat template", hint=hint)
    with asyncio.Runner() as runner:
        Conversation(session, system, fields).run(runner)


class Conversation:
    """Reads lines, streams answers, and remembers both.

    Args:
        system: System prompt, kept through ``/reset``.
        fields: How to sample, under the API's names.
    """

    def __init__(self, session: Session, system: str | None, fields: Mapping[str, Any]) -> None:
        self._session = session
        self._opening = [{"role": "system", "content": system}] if system else []
        self._fields = fields
        self._messages = list(self._opening)

    def run(self, runner: asyncio.Runner) -> None:
        """Until ``/exit`` or the end of input."""
        interactive = sys.stdin.isatty()
        if interactive:
            import readline  # noqa: F401 - gives input() editing and history

            print(HELP, file=sys.stderr)
        while (line := self._read(interactive)) is not None:
            if line == "/exit":
                return
            if line == "/reset":
                self._messages = list(self._opening)
                print("forgotten", file=sys.stderr)
            elif line:
                self._turn(line, runner)

    def _read(self, interactive: bool) -> str | None:
        try:
            # The prompt is no data: written to a pipe it would end up in it.
            return input(paint("> ", "1", sys.stdout) if interactive else "").strip()
        except EOFError:
            if interactive:
                print(file=sys.stderr)
            return None
        except KeyboardInterrupt:
            print(file=sys.stderr)
            return ""

    def _turn(self, line: str, runner: asyncio.Runner) -> None:
        """One exchange; a stopped answer is kept as far as it got, a failed one is taken back."""
        self._messages.append({"role": "user", "content": line})
        pieces: list[str] = []
        try:
            runner.run(self._answer(pieces))
        except KeyboardInterrupt:
            print(paint("\n(stopped)", "2"), file=sys.stderr)
        except TwostrokeError as error:
            self._messages.pop()
            print_error(error.message, error.hint)
            return
        self._messages.append({"role": "assistant", "content": "".join(pieces)})

    async def _answer(self, pieces: list[str]) -> None:
        stream = self._session.chat(self._messages, self._fields)
        async for piece in stream:
            pieces.append(piece)
            sys.stdout.write(piece)
            sys.stdout.flush()
        print()
