"""Protects: what each family of models writes is read as the same parts, in whatever pieces."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twostroke.text.answer_parsing.parser import AnswerParser
from twostroke.text.answer_parsing.parts import (
    AnswerPart,
    CallArguments,
    CallStarted,
    Content,
    Reasoning,
)
from twostroke.text.answer_parsing.reasoning import thought_then
from twostroke.tools.registry import FAMILIES, FAMILY_OF_NAME, family_of_template

TOOL_CALL_PARSERS = [family.name for family in FAMILIES]
BEGIN, END, SEP = (
    f"<\uff5ctool\u2581{name}\uff5c>" for name in ("calls\u2581begin", "calls\u2581end", "sep")
)
CALL, CALL_END = (f"<\uff5ctool\u2581call\u2581{name}\uff5c>" for name in ("begin", "end"))
TOOLS = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "tags": {"type": "array"},
            "loud": {"type": "boolean"},
        },
    },
    "now": {"type": "object", "properties": {}},
}
WEATHER = {"city": 'Zürich "ZH"', "days": 3, "tags": ["a", {"b": None}], "loud": True}
ARGUMENTS = json.dumps(WEATHER)
# What a model of the family writes: a call of get_weather with WEATHER, then one of now.
TWO_CALLS = {
    "hermes": (
        f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>\n'
        '<tool_call>\n{"arguments": {}, "name": "now"}\n</tool_call>'
    ),
    "qwen3_coder": (
        "<tool_call>\n<function=get_weather>\n<parameter=city>\n"
        'Zürich "ZH"\n</parameter>\n<parameter=days>\n3\n</parameter>\n'
        '<parameter=tags>\n["a", {"b": null}]\n</parameter>\n<parameter=loud>true</parameter>\n'
        "</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>"
    ),
    "llama3_json": (
        f'<|python_tag|>{{"name": "get_weather", "parameters": {ARGUMENTS}}}; {{"name": "now"}}'
    ),
    "pythonic": (
        '[get_weather(city=\'Zürich "ZH"\', days=3, tags=["a", {"b": None}], loud=true), now()]'
    ),
    "mistral": (
        f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {ARGUMENTS}}},'
        ' {"name": "now", "arguments": "{}"}]'
    ),
    "deepseek_v3": (
        f"{BEGIN}{CALL}function{SEP}get_weather\n```json\n{ARGUMENTS}\n```{CALL_END}\n"
        f"{CALL}now{SEP}{{}}{CALL_END}{END}"
    ),
    "openai": (
        "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
        f"{ARGUMENTS}<|call|><|start|>assistant to=functions.now<|channel|>commentary"
        "<|message|>{}<|call|>"
    ),
}
MISTRAL_V11 = f"[TOOL_CALLS]get_weather[ARGS]{ARGUMENTS}[TOOL_CALLS]now[CALL_ID]123[ARGS]{{}}"


def parse(name: str, pieces: Sequence[str]) -> list[AnswerPart]:
    parser = AnswerParser(FAMILY_OF_NAME[name].reader(TOOLS))
    return [part for piece in pieces for part in parser.feed(piece)] + parser.finish()


def calls_of(parts: Sequence[AnswerPart]) -> list[tuple[str, Any]]:
    """Names and arguments, whose pieces must make JSON together."""
    calls: list[tuple[str, str]] = []
    for part in parts:
        if isinstance(part, CallStarted):
            assert part.call == len(calls)
            calls.append((part.name, ""))
        elif isinstance(part, CallArguments):
            name, text = calls[part.call]
            calls[part.call] = (name, text + part.text)
    return [(name, json.loads(text)) for name, text in calls]


def text_of(parts: Sequence[AnswerPart], kind: type = Content) -> str:
    return "".join(part[-1] for part in parts if isinstance(part, kind))


def in_pieces(text: str, sizes: Sequence[int]) -> list[str]:
    pieces, position = [], 0
    for size in sizes:
        pieces.append(text[position : position + size])
        position += size
    return [*pieces, text[position:]]


@pytest.mark.parametrize("name", TOOL_CALL_PARSERS)
@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.integers(0, 30), max_size=40))
def test_two_calls_in_any_pieces(name: str, sizes: list[int]) -> None:
    parts = parse(name, in_pieces(TWO_CALLS[name], sizes))
    assert calls_of(parts) == [("get_weather", WEATHER), ("now", {})]
    assert not text_of(parts).strip()


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.integers(0, 30), max_size=40))
def test_newer_mistral_models(sizes: list[int]) -> None:
    parts = parse("mistral", in_pieces(MISTRAL_V11, sizes))
    assert calls_of(parts) == [("get_weather", WEATHER), ("now", {})]


@pytest.mark.parametrize("name", TOOL_CALL_PARSERS)
def test_arguments_stream_before_the_call_ends(name: str) -> None:
    """Except where nothing is certain before the end: in Python."""
    text = TWO_CALLS[name]
    parser = AnswerParser(FAMILY_OF_NAME[name].reader(TOOLS))
    parts = [part for character in text[: text.index("days")] for part in parser.feed(character)]
    assert ("Z" in text_of(parts, CallArguments)) == (name != "pythonic")


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "mistral", "deepseek_v3"])
def test_content_before_calls_is_not_held_back(name: str) -> None:
    parser = AnswerParser(FAMILY_OF_NAME[name].reader(TOOLS))
    assert parser.feed("I look it up.") == [Content("I look it up.")]
    parts = [*parser.feed(TWO_CALLS[name]), *parser.finish()]
    assert len(calls_of(parts)) == 2


# Pieces of every family's form, so that half-written calls are frequent.
FRAGMENTS = (
    "<tool_call> </tool_call> <function=f> <parameter=a> </parameter> [TOOL_CALLS] [ARGS] { } [ ]"
    ' " "name" : "f" , ; f( ) a=1 \\ <|channel|> <|message|> <|call|> to=functions.f <|python_tag|>'
    ' "arguments" null hello < é'
)
ANYTHING = st.lists(
    st.sampled_from([*FRAGMENTS.split(), " ", "\n", BEGIN, CALL, SEP, CALL_END]), max_size=25
)


@pytest.mark.parametrize("name", TOOL_CALL_PARSERS)
@settings(max_examples=150, deadline=None)
@given(pieces=ANYTHING)
def test_whatever_comes_is_read(name: str, pieces: list[str]) -> None:
    """No error, no endless loop, and the same parts whether the text comes whole or in pieces."""
    whole, split = parse(name, ["".join(pieces)]), parse(name, pieces)
    for kind in (Content, Reasoning, CallStarted, CallArguments):
        assert text_of(whole, kind) == text_of(split, kind)


@pytest.mark.parametrize("name", [name for name in TOOL_CALL_PARSERS if name != "openai"])
@given(text=st.text(st.characters(exclude_characters="<[{"), max_size=60))
def test_plain_text_is_content_and_nothing_is_lost(name: str, text: str) -> None:
    parts = parse(name, list(text))
    assert text_of(parts) == (text.lstrip() if name in ("llama3_json", "pythonic") else text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>{"nome": 3}</tool_call> and more'),
        ("hermes", "<tool_call>not json"),
        ("hermes", '<tool_call>{"name": "f", "arguments": 3}</tool_call>'),
        ("llama3_json", '{"answer": 42}'),
        ("pythonic", "[1, 2, 3]"),
        ("pythonic", "[f(1)]"),
        ("mistral", "[TOOL_CALLS]?"),
        ("qwen3_coder", "<tool_call>nothing"),
        ("openai", "no header at all"),
    ],
)
def test_what_is_no_call_is_content(name: str, text: str) -> None:
    assert parse(name, list(text)) == [Content(character) for character in text] or (
        text_of(parse(name, list(text))) == text
    )
    assert not calls_of(parse(name, [text]))


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "nan", "01", "True"])
@pytest.mark.parametrize("name", ["hermes", "mistral", "openai", "llama3_json", "deepseek_v3"])
def test_words_that_only_python_reads_are_no_json(name: str, word: str) -> None:
    """They were passed on as arguments, on which every client's JSON parser fails."""
    text = TWO_CALLS[name].replace('"days": 3', f'"days": {word}')
    assert text != TWO_CALLS[name]
    for pieces in ([text], list(text)):
        parts = parse(name, pieces)
        assert word not in text_of(parts, CallArguments)
        assert word in text_of(parts)


def test_arguments_in_a_string_are_json_too() -> None:
    text = '<tool_call>{"name": "f", "arguments": "{\\"a\\": NaN}"}</tool_call>'
    assert text_of(parse("hermes", [text])) == text


def test_a_cut_header_of_harmony_is_not_shown() -> None:
    """An answer cut by ``max_tokens`` showed the marks of the header it was cut in."""
    tokens = ["<|channel|>", "analysis", "<|message|>", "Hm.", "<|end|>", "<|start|>", "assistant"]
    tokens += [" to=", "functions.now", "<|channel|>", "comment", "ary", " <|constrain|>", "json"]
    for count in range(len(tokens) + 1):
        parts = parse("openai", tokens[:count])
        assert parts == ([Reasoning("Hm.")] if count > 3 else [])
    assert parse("openai", [" to=", "functions.now"]) == []


def test_deep_and_long_calls_end_as_content() -> None:
    deep = '<tool_call>{"arguments": ' + '{"a":' * 5000 + "1" + "}" * 5000 + "}</tool_call>"
    assert text_of(parse("hermes", [deep])) == deep
    assert text_of(parse("pythonic", ["[f(a=" + "(" * 5000])).startswith("[f(a=")


def test_deep_arguments_within_a_string_are_no_error() -> None:
    """Python's limit of recursion ended the answer."""
    text = '<tool_call>{"name":"f","arguments":"' + "[" * 20_000 + '"}'
    assert text_of(parse("hermes", [text])) == text


def test_a_long_value_is_searched_once() -> None:
    """With each piece the search began anew: 19 s of processor time for this one."""
    tools = {"f": {"properties": {"a": {"type": "object"}}}}
    text = "<tool_call>\n<function=f><parameter=a>" + "\n<" * 60_000
    parser = AnswerParser(FAMILY_OF_NAME["qwen3_coder"].reader(tools))
    began = time.thread_time()
    for start in range(0, len(text), 4):
        parser.feed(text[start : start + 4])
    assert time.thread_time() - began < 4
    parser.feed("/parameter></function>")
    assert parser.num_calls == 1 and parser.finish() == []


def test_harmony_has_thought_preamble_and_answer() -> None:
    text = (
        "<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant<|channel|>commentary"
        "<|message|>I look.<|end|><|start|>assistant<|channel|>final<|message|>42.<|return|>"
    )
    for pieces in ([text], list(text)):
        parts = parse("openai", pieces)
        assert text_of(parts, Reasoning) == "Let me see."
        assert text_of(parts, Content) == "I look.42."


def test_calls_come_after_the_thought() -> None:
    reader = partial(thought_then, then=FAMILY_OF_NAME["hermes"].reader(TOOLS), opened=False)
    parser = AnswerParser(reader)
    parts = parser.feed("<think>a <tool_call> is due</think>\n" + TWO_CALLS["hermes"])
    assert text_of(parts, Reasoning) == "a <tool_call> is due"
    assert len(calls_of(parts)) == parser.num_calls == 2


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("... <tool_call> ...", "hermes"),
        ("<tool_call>\n<function=example>", "qwen3_coder"),
        ("{{ '[TOOL_CALLS]' }}", "mistral"),
        (f"{{{{ '{BEGIN}' }}}}", "deepseek_v3"),
        ("<|start|>assistant<|channel|>", "openai"),
        ("<|python_tag|>", "llama3_json"),
        ("[func_name1(params_name1=params_value1)]", "pythonic"),
        ("{{ messages }}", None),
    ],
)
def test_the_template_says_which(template: str, name: str | None) -> None:
    family = family_of_template(template)
    assert (family and family.name) == name


@pytest.mark.parametrize("schema", [{"properties": None}, {"properties": []}, {}])
@pytest.mark.parametrize("written", ["NaN", "1e999", "-Infinity", "x"])
def test_arguments_in_xml_are_json_whatever_the_schema_is(schema: Any, written: str) -> None:
    """Schemas of tools that are not strict are not checked."""
    text = f"<tool_call><function=f><parameter=a>{written}</parameter></function></tool_call>"
    for tools in ({"f": schema}, {"f": {"properties": {"a": {"enum": 5}}}}):
        parser = AnswerParser(FAMILY_OF_NAME["qwen3_coder"].reader(tools))
        parts = parser.feed(text) + parser.finish()
        arguments = "".join(part.text for part in parts if isinstance(part, CallArguments))
        assert json.loads(arguments) == {"a": written}
