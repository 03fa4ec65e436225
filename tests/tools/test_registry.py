"""Protects: a tool family is one file and a line in the registry; nothing else switches by name."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.text.tiny_tokenizers import byte_level
from twostroke.text.tokenizer import Tokenizer
from twostroke.tools.base import ToolFamily
from twostroke.tools.reasoning import reasoning_of_template
from twostroke.tools.registry import FAMILIES, FAMILY_OF_NAME, family_of_template
from twostroke.tools.rules import Rules

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src" / "twostroke"


def texts_in(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def test_no_other_file_knows_a_family_by_name() -> None:
    names = set(FAMILY_OF_NAME) - {"openai"}  # that is an API, too
    elsewhere = {
        f"{path.relative_to(SOURCE)}: {name}"
        for folder in ("cli", "constraints", "core", "server", "text")
        for path in (SOURCE / folder).rglob("*.py")
        for name in names & texts_in(path)
    }
    assert not elsewhere


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_family_is_the_file_of_its_name(family: ToolFamily) -> None:
    """``openai`` is vLLM's name for the harmony format."""
    file = "harmony" if family.name == "openai" else family.name
    texts = texts_in(SOURCE / "tools" / f"{file}.py")
    assert {family.name, *family.aliases, *family.special_texts} <= texts


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_family_tells_calls_from_text_in_one_way(family: ToolFamily) -> None:
    """An answer has calls behind a trigger, is calls, or is made of messages."""
    ways = (family.trigger != "", family.whole is not None, family.messages is not None)
    assert sum(ways) == 1
    frame = family.frame(Rules(Tokenizer(byte_level())))
    assert frame.opening.startswith(family.trigger) or not frame.opening


def test_no_name_means_two_families() -> None:
    names = [name for family in FAMILIES for name in (family.name, *family.aliases)]
    assert len(names) == len(set(names)) == len(FAMILY_OF_NAME)


def test_the_reference_names_every_family() -> None:
    words = (ROOT / "docs" / "reference" / "openai-api.md").read_text().split()
    assert set(FAMILY_OF_NAME) <= {word.strip("(),") for word in words}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_template_of_the_family_is_recognised(family: ToolFamily) -> None:
    for mark in family.marks:
        assert family_of_template(f"{{{{ messages }}}} {mark}") is family


@pytest.mark.parametrize(
    ("marks", "name"),
    [
        ("<tool_call> <function=f>", "qwen3_coder"),
        ("<tool_call> <|python_tag|> func_name1(params_name1=", "hermes"),
        ("<|python_tag|> func_name1(params_name1=", "pythonic"),
        ("<|python_tag|> [TOOL_CALLS] <function=", "mistral"),
        ("[TOOL_CALLS] <tool_call> <|channel|>", "openai"),
    ],
)
def test_the_more_special_family_is_recognised(marks: str, name: str) -> None:
    assert family_of_template(marks) is FAMILY_OF_NAME[name]


def test_only_a_family_of_messages_has_thoughts() -> None:
    """The form of thoughts is asked of the family, not known by which family it is."""
    assert [family.name for family in FAMILIES if family.has_thoughts] == ["openai"]
    for family in FAMILIES:
        found = reasoning_of_template(family.marks[0])
        assert (found == family.name) is family.has_thoughts
