"""Protects: vLLM's names of parsers are taken, and mean the forms that are read here."""

from __future__ import annotations

from typing import get_args

import pytest

from tests.server.scripted import ScriptedEngine
from twostroke.server.options import ReasoningParser, ServerOptions, ToolCallParser
from twostroke.server.state.served_model import ServedModel
from twostroke.tools.harmony import HARMONY
from twostroke.tools.reasoning import TAGS
from twostroke.tools.registry import FAMILIES


def served(**options: str) -> ServedModel:
    settings = ServerOptions(**options)  # type: ignore[arg-type]
    return ServedModel(ScriptedEngine().loaded_model(), ("m",), settings)


@pytest.mark.parametrize("name", get_args(ToolCallParser))
def test_each_name_of_a_tool_call_parser_means_a_form(name: str) -> None:
    family = served(tool_call_parser=name).tool_family
    assert family in (FAMILIES if name not in ("auto", "none") else (None,))


@pytest.mark.parametrize("name", get_args(ReasoningParser))
def test_each_name_of_a_reasoning_parser_means_a_form(name: str) -> None:
    parser = served(reasoning_parser=name).reasoning_parser
    assert parser in ((TAGS, HARMONY.name) if name not in ("auto", "none") else (None,))


def test_the_options_list_every_name() -> None:
    calls = "auto none hermes qwen3_coder llama3_json pythonic mistral deepseek_v3 openai "
    calls += "deepseek_v31 granite4 llama4_json llama4_pythonic qwen3_xml"
    thoughts = "auto none think_tags openai deepseek_r1 deepseek_v3 glm45 holo2 kimi_k2 "
    thoughts += "minimax_m2 nemotron_v3 olmo3 openai_gptoss qwen3 step3"
    assert get_args(ToolCallParser) == tuple(calls.split())
    assert get_args(ReasoningParser) == tuple(thoughts.split())
