"""How an answer is shown while it streams: as plain text, or drawn as Markdown."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
# Redraws a second; the terminal is slower than the model.
REDRAWS = 12


class AnswerView(Protocol):
    """Shows one answer."""

    def write(self, text: str) -> None:
        """Show what the answer has gained."""

    def close(self, *, ended: bool) -> None:
        """Leave the cursor at the beginning of a line below the answer. Called once.

        Args:
            ended: ``False`` if the answer failed or was stopped.
        """


class PlainView:
    """Implements ``AnswerView``: the text itself, to standard output, a line for each answer."""

    def write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def close(self, *, ended: bool) -> None:
        if ended:
            print()


class WrittenElsewhere:
    """Implements ``AnswerView`` for an answer whose text the session itself writes."""

    def write(self, text: str) -> None:
        pass

    def close(self, *, ended: bool) -> None:
        if ended:
            print()


class WrappedView:
    """Implements ``AnswerView``: the text, with a new line before a word that would be cut.

    A word is written when it is complete, so that it never jumps.

    Args:
        width: Columns of the terminal.
    """

    def __init__(self, width: int) -> None:
        self._width = max(width, 2)
        self._column = 0
        self._word = ""

    def write(self, text: str) -> None:
        for part in re.split(r"(\s)", text):
            if part == "\n":
                self._end_word()
                self._emit("\n")
            elif part.isspace():
                self._end_word()
                if self._column < self._width:
                    self._emit(part)
            else:
                self._word += part
        sys.stdout.flush()

    def close(self, *, ended: bool) -> None:
        self._end_word()
        print()

    def _end_word(self) -> None:
        from rich.cells import cell_len

        word, self._word = self._word, ""
        if word and self._column and self._column + cell_len(word) > self._width:
            self._emit("\n")
        self._emit(word)

    def _emit(self, text: str) -> None:
        from rich.cells import cell_len

        sys.stdout.write(text)
        self._column = 0 if text == "\n" else self._column + cell_len(text)


class MarkdownView:
    """Implements ``AnswerView``: each finished block is printed; the last is redrawn as it grows.

    So what has scrolled away is never drawn again, whatever the length of the answer. Of a block
    that is taller than the terminal the end is shown until it is finished.
    """

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._console = console
        self._text = ""
        self._num_printed = 0
        self._live = Live(
            console=console, transient=True, refresh_per_second=REDRAWS, vertical_overflow="crop"
        )
        self._live.start()

    def write(self, text: str) -> None:
        self._text += text
        finished, self._text = split_finished(self._text)
        if finished.strip():
            self._print(finished)
        self._live.update(_Tail(self._text, self._console.height - 1, bool(self._num_printed)))

    def close(self, *, ended: bool) -> None:
        self._live.update("")
        self._live.stop()
        if self._text.strip():
            self._print(self._text)

    def _print(self, text: str) -> None:
        from rich.markdown import Markdown

        if self._num_printed:
            self._console.print()
        self._console.print(Markdown(text))
        self._num_printed += 1


class _Tail:
    """The last lines of a text drawn as Markdown, as many as the terminal shows."""

    def __init__(self, text: str, height: int, below_others: bool) -> None:
        self._text = text
        self._height = max(height, 1)
        self._below_others = below_others

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.markdown import Markdown
        from rich.segment import Segment, Segments

        if not self._text.strip():
            return
        lines = console.render_lines(Markdown(self._text), options.update(height=None), pad=False)
        if self._below_others:
            lines.insert(0, [])
        for line in lines[-self._height :]:
            yield Segments(line)
            yield Segment.line()


def split_finished(text: str) -> tuple[str, str]:
    """A Markdown text cut into the blocks that nothing can change any more, and the rest.

    A block ends at an empty line outside a code fence. A list goes on after an empty line, and so
    does what is indented: there the cut is made before the next block that is neither.
    """
    cut, position, fence, was_empty = 0, 0, "", False
    for line in text.splitlines(keepends=True):
        if not line.endswith("\n"):
            break
        mark = _FENCE.match(line)
        if fence:
            if mark and mark[1].startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
        elif not line.strip():
            was_empty = True
            position += len(line)
            continue
        else:
            if was_empty and not _continues_list(line):
                cut = position
            fence = mark[1] if mark else ""
        was_empty = False
        position += len(line)
    return text[:cut], text[cut:]


def _continues_list(line: str) -> bool:
    return bool(re.match(r"\s|[-*+]\s|\d{1,9}[.)]\s", line))
