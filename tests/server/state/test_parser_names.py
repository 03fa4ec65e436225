"""Protects: vLLM's names of parsers are taken, and mean the forms that are read here."""

from __future__ import annotations

from typing import get_args

import pytest

from tests.server.scripted import ScriptedEngine
from twostroke.server.options import ReasoningParser, ServerOptions, ToolCallParser
from twostroke.server.state.served_model import ServedModel
from twostroke.text.answer_parsing.families import (
    REASONING_ALIASES,
    REASONING_PARSERS,
    TOOL_CALL_ALIASES,
    TOOL_CALL_PARSERS,
)


def served(**options: str) -> ServedModel:
    settings = ServerOptions(**options)  # type: ignore[arg-type]
    return ServedModel(ScriptedEngine().loaded_model(), ("m",), settings)


@pytest.mark.parametrize("name", get_args(ToolCallParser))
def test_each_name_of_a_tool_call_parser_means_a_form(name: str) -> None:
    parser = served(tool_call_parser=name).tool_call_parser
    assert parser in (TOOL_CALL_PARSERS if name not in ("auto", "none") else (None,))


@pytest.mark.parametrize("name", get_args(ReasoningParser))
def test_each_name_of_a_reasoning_parser_means_a_form(name: str) -> None:
    parser = served(reasoning_parser=name).reasoning_parser
    assert parser in (REASONING_PARSERS if name not in ("auto", "none") else (None,))


def test_the_options_list_every_name() -> None:
    own = {"auto", "none"}
    assert set(get_args(ToolCallParser)) == own | set(TOOL_CALL_PARSERS) | TOOL_CALL_ALIASES.keys()
    assert set(get_args(ReasoningParser)) == (
        own | set(REASONING_PARSERS) | REASONING_ALIASES.keys()
    )
    names = {"hermes", "llama3_json", "mistral", "qwen3_coder", "qwen3_xml", "deepseek_v31"}
    assert names <= set(get_args(ToolCallParser))
    assert {"qwen3", "deepseek_r1", "openai_gptoss"} <= set(get_args(ReasoningParser))
