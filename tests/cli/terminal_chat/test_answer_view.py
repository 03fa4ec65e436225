"""Protects: that a streamed answer looks as the whole would, and loses nothing."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.markdown import Markdown

from twostroke.cli.terminal_chat.answer_view import MarkdownView, WrappedView, split_finished

ANSWER = """# Prefill

Reads the **whole** prompt at once.

1. It is limited by arithmetic.

2. Decode is not.

   It reads all weights.

```python
def step():

    return 1
```

| a | b |
|---|---|
| 1 | 2 |

The end.
"""
PIECES = st.lists(
    st.sampled_from(["\n", "\n\n", "```\n", "~~~\n", "- item\n", "1. x\n", "    code\n", "text"]),
    max_size=20,
)


def drawn(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def lines_of(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_a_streamed_answer_looks_like_the_whole(size: int) -> None:
    """On a console that is no terminal nothing is redrawn: what is printed is what stays."""
    whole, streamed = (Console(file=io.StringIO(), width=60) for _ in range(2))
    whole.print(Markdown(ANSWER))
    view = MarkdownView(streamed)
    for start in range(0, len(ANSWER), size):
        view.write(ANSWER[start : start + size])
    view.close(ended=True)
    assert lines_of(drawn(streamed)) == lines_of(drawn(whole))


def test_blocks_are_finished_where_nothing_can_change_them() -> None:
    assert split_finished("one\n\ntwo") == ("", "one\n\ntwo")
    assert split_finished("one\n\ntwo\n") == ("one\n\n", "two\n")
    assert split_finished("- a\n\n- b\n\nend\n") == ("- a\n\n- b\n\n", "end\n")
    assert split_finished("```\na\n\nb\n") == ("", "```\na\n\nb\n")
    assert split_finished("```\na\n\n```\n\nend\n") == ("```\na\n\n```\n\n", "end\n")


@given(PIECES)
def test_nothing_is_lost_or_taken_back(pieces: list[str]) -> None:
    """A cut that was made stays one, whatever follows."""
    text, whole = "", ""
    for piece in pieces:
        whole += piece
        finished, text = split_finished(text + piece)
        expected, rest = split_finished(whole)
        assert whole.endswith(text) and (finished == "" or expected.endswith(finished))
        assert rest == text


def test_words_are_not_cut_at_the_edge(capsys: pytest.CaptureFixture[str]) -> None:
    view = WrappedView(10)
    for piece in ("the qu", "ick bro", "wn fox\nju", "mps 你好你好 extraordinarily", "  x"):
        view.write(piece)
    view.close(ended=True)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == ["the quick", "brown fox", "jumps", "你好你好", "extraordinarily", "x"]
