"""Protects: what is taken from the page's scripts before they are sent is comments alone."""

from __future__ import annotations

import pytest

from twostroke.inspector.sent_text import without_comments
from twostroke.inspector.static_files import FOLDER, known_files

OWN = sorted(name for name in known_files() if name.endswith(".js") and "vendor" not in name)


def in_template(text: str) -> list[bool]:
    """Whether each line begins within the text of a template literal.

    A small scanner: strings, comments, templates and what is between their braces. Regular
    expressions are read as code; the files have none with a backtick or a quote alone.
    """
    stack: list[str] = []
    lines, index = [False], 0
    while index < len(text):
        char, pair = text[index], text[index : index + 2]
        within = bool(stack) and stack[-1] == "`"
        step = 1
        if within:
            if char == "\\":
                step = 2
            elif char == "`":
                stack.pop()
            elif pair == "${":
                stack.append("{")
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
            stack.append(char)
        elif char == "}":
            assert stack.pop() == "{"
        for passed in text[index : index + step]:
            if passed == "\n":
                lines.append(bool(stack) and stack[-1] == "`")
        index += step
    assert not stack
    return lines


@pytest.mark.parametrize("name", OWN)
def test_no_template_has_a_line_that_looks_like_a_comment(name: str) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8")
    lines = text.split("\n")
    for number, (line, within) in enumerate(zip(lines, in_template(text), strict=True)):
        if within:
            assert not line.strip().startswith(("//", "/*")), f"{name}:{number + 1}"


def test_lines_of_comments_go_and_all_else_stays() -> None:
    text = (
        "// A.\n/** B.\n * C */\nconst a = 1; // D\n  /* E */ f();\n"
        'const url = "https://x"; /* G\n*/ g();\n  // H\nh();\n'
    )
    sent = 'const a = 1; // D\n  /* E */ f();\nconst url = "https://x"; /* G\n*/ g();\nh();\n'
    assert without_comments(text) == sent


def test_the_scanner_sees_templates() -> None:
    text = 'a(`x\n// no\n${b({c: "`"},\n`y\n`)}\n`);\nd();\n'
    assert in_template(text) == [False, True, True, False, True, True, False, False]
