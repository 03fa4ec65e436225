"""Protects: what is taken from the page's scripts before they are sent changes nothing."""

from __future__ import annotations

import re

import pytest

from twostroke.inspector.sent_text import without_margins
from twostroke.inspector.static_files import FOLDER, known_files

OWN = sorted(name for name in known_files() if name.endswith(".js") and "vendor" not in name)


def in_template(text: str) -> list[int | None]:
    """Where the template literal begins within which each line does; ``None``: in none.

    A small scanner: strings, comments, templates and what is between their braces. Regular
    expressions are read as code; the files have none with a backtick or a quote alone.
    """
    stack: list[tuple[str, int]] = []
    lines: list[int | None] = [None]
    index = 0
    while index < len(text):
        char, pair = text[index], text[index : index + 2]
        within = bool(stack) and stack[-1][0] == "`"
        step = 1
        if within:
            if char == "\\":
                step = 2
            elif char == "`":
                stack.pop()
            elif pair == "${":
                stack.append(("{", index))
                step = 2
        elif pair == "//":
            step = len(text[index:].split("\n", 1)[0])
        elif pair == "/*":
            step = text.index("*/", index) + 2 - index
        elif char in "\"'":
            end = index + 1
            while text[end] not in (char, "\n"):
                end += 2 if text[end] == "\\" else 1
            step = end + 1 - index if text[end] == char else 1
        elif char == "`" or char == "{":
            stack.append((char, index))
        elif char == "}":
            assert stack.pop()[0] == "{"
        for passed in text[index : index + step]:
            if passed == "\n":
                lines.append(stack[-1][1] if stack and stack[-1][0] == "`" else None)
        index += step
    assert not stack
    return lines


@pytest.mark.parametrize("name", OWN)
def test_no_template_has_a_line_that_looks_like_a_comment(name: str) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8")
    lines = text.split("\n")
    for number, (line, within) in enumerate(zip(lines, in_template(text), strict=True)):
        if within is not None:
            assert not line.strip().startswith(("//", "/*")), f"{name}:{number + 1}"


@pytest.mark.parametrize("name", OWN)
def test_templates_of_several_lines_are_markup_and_indent_nothing_that_is_kept(name: str) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8")
    for start in {start for start in in_template(text) if start is not None}:
        assert text[:start].endswith("html"), f"{name}: {text[start : start + 60]!r}"
    for kept in re.findall(r"<pre\b[^>]*>([^<]*)<", text):
        assert not re.search(r"\n[ \t]+\S", kept), f"{name}: {kept!r}"


def test_lines_of_comments_go_and_all_else_stays() -> None:
    text = (
        "// A.\n/** B.\n * C */\nconst a = 1; // D\n  /* E */ f();\n"
        'const url = "https://x"; /* G\n*/ g();\n  // H\nh();\n'
    )
    sent = 'const a = 1; // D\n/* E */ f();\nconst url = "https://x"; /* G\n*/ g();\nh();\n'
    assert without_margins(text) == sent


def test_the_scanner_sees_templates() -> None:
    text = 'a(`x\n// no\n${b({c: "`"},\n`y\n`)}\n`);\nd();\n'
    assert in_template(text) == [None, 2, 2, None, 25, 2, None, None]
