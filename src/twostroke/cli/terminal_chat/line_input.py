"""Lines from the user: edited at a terminal, with history; or read from a pipe."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from twostroke.cli.terminal_chat.commands import COMMANDS

if TYPE_CHECKING:
    from prompt_toolkit.input import Input
    from prompt_toolkit.output import Output


class LineInput(Protocol):
    """Where a conversation gets its lines from."""

    def read(self) -> str:
        """The next line, or several that were pasted or typed as one message.

        Raises:
            EOFError: There is no further line.
            KeyboardInterrupt: Ctrl-C.
            UnicodeDecodeError: A pipe holds bytes that are not UTF-8.
        """


class PipedLines:
    """Implements ``LineInput``: standard input, a line at a time."""

    def read(self) -> str:
        return input()


class EditedLines:
    """Implements ``LineInput``: a prompt with editing, history and completion of commands.

    Args:
        history: Where lines are kept from one run to the next; ``None`` keeps them in memory.
        keyboard: Instead of the terminal's.
        screen: Instead of the terminal's.
    """

    def __init__(
        self,
        history: Path | None = None,
        keyboard: Input | None = None,
        screen: Output | None = None,
    ) -> None:
        # 0.15 s that only a terminal needs.
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter
        from prompt_toolkit.history import FileHistory, InMemoryHistory
        from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

        keys = KeyBindings()

        @keys.add("escape", "enter")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        stored = history is not None and _made_private(history)
        self._prompt: PromptSession[str] = PromptSession(
            history=FileHistory(str(history)) if stored else InMemoryHistory(),
            completer=WordCompleter(list(COMMANDS), sentence=True),
            complete_while_typing=False,
            key_bindings=keys,
            prompt_continuation="  ",
            enable_open_in_editor=True,
            input=keyboard,
            output=screen,
        )

    def read(self) -> str:
        plain = bool(os.environ.get("NO_COLOR"))
        return self._prompt.prompt([("" if plain else "bold", "> ")])


def history_file() -> Path:
    """Where the lines of chats are kept, as the XDG base directories have it."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "twostroke" / "chat_history"


def _made_private(path: Path) -> bool:
    """Whether the file is there, readable by its owner alone; a disk may refuse it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
    except OSError:
        return False
    return os.access(path, os.R_OK | os.W_OK)
