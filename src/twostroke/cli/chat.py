"""``twostroke chat``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from twostroke.cli.flags import (
    CacheFlags,
    ModelFlags,
    SamplingFlags,
    SamplingOptions,
    SpeculationFlags,
    TemplateFlags,
    engine_config,
)
from twostroke.core.config import EngineConfig
from twostroke.core.errors import ConfigError, InvalidRequestError

if TYPE_CHECKING:
    from twostroke.cli.session import Session
    from twostroke.cli.terminal_chat.answer_view import AnswerView


def chat(
    model: str | None = None,
    /,
    *,
    url: str | None = None,
    system: str | None = None,
    plain: Annotated[bool, Parameter(negative=())] = False,
    history: bool = True,
    show_drafts: Annotated[bool, Parameter(negative=())] = False,
    tools: Literal["demo"] | None = None,
    sampling: SamplingFlags | None = None,
    model_options: ModelFlags | None = None,
    template: TemplateFlags | None = None,
    cache: CacheFlags | None = None,
    speculation: SpeculationFlags | None = None,
) -> None:
    """Talk to MODEL in the terminal, in this process or on a server.

    When the model's context is full, the oldest turns are forgotten, and a line says so.

    /help lists the commands: a system prompt, sampling parameters, another answer, saving. Ctrl-D
    leaves, Ctrl-C stops an answer.

    Args:
        model: `pilot` (embedded, the default), a local folder or GGUF file, or a Hugging Face Hub
            id; the same as --model.
        url: Talk to the OpenAI-compatible server there instead of loading a model (key from
            OPENAI_API_KEY).
        system: System prompt.
        plain: Show answers as the model writes them, not drawn as Markdown.
        history: Keep the lines typed, for the arrow keys in later chats, in
            ~/.local/state/twostroke/chat_history (or under XDG_STATE_HOME).
        show_drafts: Colour what was guessed ahead (--speculation): green if it was right, red and
            struck through if not. Answers are not drawn then.
        tools: `demo` lets the model call tools that compute the size of a KV cache, the speed of
            decode, and whether a model fits on a device. Calls run in this process; each is shown
            with its result.
    """
    from twostroke.cli.session import open_session, refuse_surrogates

    config = engine_config(model, model_options, cache, speculation=speculation, template=template)
    sampling = sampling or SamplingOptions()
    refuse_surrogates(system, *sampling.stop)
    _check_drafts(config, show_drafts)
    loads = any(flags is not None for flags in (cache, speculation, template))
    session = open_session(config, url, named=model is not None, loads=loads)
    try:
        _check_chats(session, config.model.model)
        _converse(
            session,
            system,
            sampling.as_fields(),
            plain=plain,
            history=history,
            show_drafts=show_drafts,
            tools=tools == "demo",
        )
    finally:
        session.close()


def _check_drafts(config: EngineConfig, show_drafts: bool) -> None:
    if show_drafts and config.speculation.resolve() is None:
        hint = "give --speculation suffix, and no --url"
        raise ConfigError("--show-drafts needs --speculation", hint=hint)


def _check_chats(session: Session, model: str) -> None:
    if not session.chats:
        hint = 'use `twostroke generate --raw "prompt"`'
        raise InvalidRequestError(f"{model} has no chat template", hint=hint)


def _converse(
    session: Session,
    system: str | None,
    fields: dict[str, Any],
    *,
    plain: bool,
    history: bool,
    show_drafts: bool,
    tools: bool,
) -> None:
    """Lines in and answers out, until the user leaves; for the arguments see ``chat``."""
    import asyncio

    from twostroke.cli.session import LocalSession
    from twostroke.cli.terminal_chat.answer_view import WrittenElsewhere
    from twostroke.cli.terminal_chat.conversation import TerminalConversation
    from twostroke.cli.terminal_chat.line_input import EditedLines, PipedLines, history_file

    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    lines = EditedLines(history_file() if history else None) if interactive else PipedLines()
    make_view = _choose_view(drawn=interactive and not plain)
    if show_drafts:
        assert isinstance(session, LocalSession)  # --speculation with --url has been refused
        session.write_drafts(sys.stdout)
        make_view = WrittenElsewhere
    if tools:
        session = _with_demo_tools(session)
    conversation = TerminalConversation(
        session, lines, make_view, system, fields, interactive=interactive
    )
    with asyncio.Runner() as runner:
        conversation.run(runner)


def _with_demo_tools(session: Session) -> Session:
    from twostroke.cli.terminal_chat.conversation import note
    from twostroke.cli.terminal_chat.demo_tools import demo_tool_schemas, run_tool
    from twostroke.cli.terminal_chat.tool_session import ToolSession

    return ToolSession(session, demo_tool_schemas(), run_tool, note)


def _choose_view(*, drawn: bool) -> Callable[[], AnswerView]:
    """How answers are shown: drawn, wrapped at a terminal's edge, or as they are in a pipe."""
    from twostroke.cli.terminal_chat.answer_view import MarkdownView, PlainView, WrappedView

    if drawn:
        from rich.console import Console

        console = Console()
        return lambda: MarkdownView(console)
    if sys.stdout.isatty():
        import shutil

        return lambda: WrappedView(shutil.get_terminal_size().columns)
    return PlainView
