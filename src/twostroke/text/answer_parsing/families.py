"""Which form of answers a model has: by its chat template, or by the name of a parser.

The names are vLLM's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from twostroke.text.answer_parsing.harmony import harmony_parts
from twostroke.text.answer_parsing.json_calls import (
    DEEPSEEK_CALL_BEGIN,
    DEEPSEEK_CALL_END,
    DEEPSEEK_CALLS_BEGIN,
    DEEPSEEK_CALLS_END,
    DEEPSEEK_SEPARATOR,
    deepseek_calls,
    hermes_calls,
    llama_json_calls,
    mistral_calls,
)
from twostroke.text.answer_parsing.pythonic_calls import pythonic_calls
from twostroke.text.answer_parsing.reasoning import CLOSING, OPENING
from twostroke.text.answer_parsing.source import AnswerSource, Reading
from twostroke.text.answer_parsing.xml_calls import ToolSchemas, xml_calls

Reader = Callable[[AnswerSource], Reading[None]]

HARMONY = "openai"
# Thoughts between the tags <think> and </think>.
TAGS = "think_tags"
REASONING_PARSERS = (TAGS, HARMONY)
_READERS: Mapping[str, Callable[[ToolSchemas], Reader]] = {
    "hermes": lambda tools: hermes_calls,
    "qwen3_coder": lambda tools: partial(xml_calls, tools=tools),
    "llama3_json": lambda tools: partial(llama_json_calls, names=tools),
    "pythonic": lambda tools: pythonic_calls,
    "mistral": lambda tools: mistral_calls,
    "deepseek_v3": lambda tools: deepseek_calls,
    HARMONY: lambda tools: harmony_parts,
}
TOOL_CALL_PARSERS = tuple(_READERS)
# Further names of vLLM's for forms that are read here.
TOOL_CALL_ALIASES: Mapping[str, str] = {
    "deepseek_v31": "deepseek_v3",
    "granite4": "hermes",
    "llama4_json": "llama3_json",
    "llama4_pythonic": "pythonic",
    "qwen3_xml": "qwen3_coder",
}
REASONING_ALIASES: Mapping[str, str] = {
    "deepseek_r1": TAGS,
    "deepseek_v3": TAGS,
    "glm45": TAGS,
    "holo2": TAGS,
    "kimi_k2": TAGS,
    "minimax_m2": TAGS,
    "nemotron_v3": TAGS,
    "olmo3": TAGS,
    "openai_gptoss": HARMONY,
    "qwen3": TAGS,
    "step3": TAGS,
}
# What a template writes that no other family's template does; the first that occurs decides.
_MARKS = (
    ("<|channel|>", HARMONY),
    (DEEPSEEK_CALLS_BEGIN, "deepseek_v3"),
    ("[TOOL_CALLS]", "mistral"),
    ("<function=", "qwen3_coder"),
    ("<tool_call>", "hermes"),
    ("func_name1(params_name1=", "pythonic"),
    ("<|python_tag|>", "llama3_json"),
    ('{"name": function name, "parameters":', "llama3_json"),
)


# What the forms are made of. Where a tokenizer has them as special tokens, text must keep those.
MARKERS: Mapping[str, tuple[str, ...]] = {
    "hermes": ("<tool_call>", "</tool_call>"),
    "qwen3_coder": ("<tool_call>", "</tool_call>"),
    "llama3_json": ("<|python_tag|>",),
    "pythonic": ("<|python_start|>", "<|python_end|>"),
    "mistral": ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    "deepseek_v3": (
        DEEPSEEK_CALLS_BEGIN,
        DEEPSEEK_CALL_BEGIN,
        DEEPSEEK_SEPARATOR,
        DEEPSEEK_CALL_END,
        DEEPSEEK_CALLS_END,
    ),
    HARMONY: ("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>", "<|call|>"),
    TAGS: (OPENING, CLOSING),
}


def tool_call_reader(name: str, tools: ToolSchemas) -> Reader:
    """How a family's tool calls are read.

    Args:
        name: One of ``TOOL_CALL_PARSERS``.
        tools: The request's tools.
    """
    return _READERS[name](tools)


def tool_call_parser_of(template: str) -> str | None:
    """The parser for models with this chat template; ``None`` if it writes no tool calls."""
    return next((name for mark, name in _MARKS if mark in template), None)


def writes_thoughts(template: str) -> bool:
    """Whether models with this chat template think in tags before they answer."""
    return OPENING in template or CLOSING in template
