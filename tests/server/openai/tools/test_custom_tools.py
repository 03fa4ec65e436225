"""Custom tools (their input is a text, by an expression if need be) and ``allowed_tools``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.server.openai.tools.test_tools import WEATHER, ask, engine_that_says
from tests.server.running import running_server
from tests.server.scripted import ScriptedEngine
from tests.server.tiny import tiny_engine
from twostroke.server.openai.tools.custom_tools import CustomCalls, CustomFields, CustomInput
from twostroke.text.answer_parsing.parts import CallArguments, CallStarted

CODE: dict[str, Any] = {"type": "custom", "custom": {"name": "run", "description": "Runs code."}}
NOW: dict[str, Any] = {"type": "function", "function": {"name": "now"}}
TEXT = 'print("Zürich")\n# \U0001f600'


def with_regex(regex: str) -> dict[str, Any]:
    grammar = {"syntax": "regex", "definition": regex}
    form = {"type": "grammar", "grammar": grammar}
    return {"type": "custom", "custom": {"name": "run", "format": form}}


def call(text: str) -> str:
    arguments = json.dumps({"input": text})
    return f'<tool_call>\n{{"name": "run", "arguments": {arguments}}}\n</tool_call>'


@pytest.fixture
def engine() -> ScriptedEngine:
    return engine_that_says(*call(TEXT))  # character by character


@pytest.fixture
def client(engine: ScriptedEngine) -> Iterator[openai.OpenAI]:
    with (
        running_server(engine) as url,
        openai.OpenAI(base_url=url + "/v1", api_key="x", max_retries=0) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def tiny() -> Iterator[openai.OpenAI]:
    options: dict[str, Any] = {"served_model_name": ("tiny",), "tool_call_parser": "hermes"}
    with (
        tiny_engine() as engine,
        running_server(engine, **options) as url,
        openai.OpenAI(base_url=url + "/v1", api_key="x", max_retries=0) as client,
    ):
        yield client


def test_a_call_of_a_custom_tool_has_its_input_as_text(client: openai.OpenAI) -> None:
    choice = ask(client, tools=[CODE, WEATHER]).choices[0]
    (made,) = choice.message.tool_calls
    assert (made.type, made.custom.name, made.custom.input) == ("custom", "run", TEXT)
    assert choice.finish_reason == "tool_calls"
    chunks = list(ask(client, tools=[CODE, WEATHER], stream=True))
    deltas = [delta for chunk in chunks for delta in chunk.choices[0].delta.tool_calls or ()]
    pieces = [delta.model_dump(exclude_none=True) for delta in deltas]
    assert pieces[0]["type"] == "custom" and pieces[0]["custom"]["name"] == "run"
    assert "".join(piece["custom"]["input"] for piece in pieces) == TEXT and len(pieces) > 5


def test_a_former_call_goes_to_the_template_as_a_function(
    client: openai.OpenAI, engine: ScriptedEngine
) -> None:
    made = {"id": "a", "type": "custom", "custom": {"name": "run", "input": "1"}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "a", "content": "2"},
    ]
    ask(client, messages=messages, tools=[CODE])
    prompt = engine.tokenizer.decode(engine.submitted[0].prompt_token_ids)
    assert '"name": "run", "description": "Runs code."' in prompt
    assert "assistant: [run ]" in prompt and "tool: 2" in prompt


def test_an_input_keeps_to_its_expression(tiny: openai.OpenAI) -> None:
    choice = {"type": "custom", "custom": {"name": "run"}}
    for seed in range(4):
        fields = {"tools": [with_regex(r'[0-9]{1,3}\+"x"'), NOW], "tool_choice": choice}
        message = ask(tiny, model="tiny", seed=seed, max_tokens=150, **fields).choices[0].message
        assert re.fullmatch(r'[0-9]{1,3}\+"x"', message.tool_calls[0].custom.input)


LARK = {"type": "grammar", "grammar": {"syntax": "lark", "definition": 'start: "a"'}}


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"type": "custom"}, "tools[0].custom"),
        ({"type": "custom", "custom": {"name": "a b"}}, "tools[0].custom.name"),
        ({"type": "custom", "custom": {"name": "a", "format": LARK}}, "tools[0].custom.format"),
        (
            {"type": "custom", "custom": {"name": "a", "format": {"type": "grammar"}}},
            "tools[0].custom.format",
        ),
        (with_regex("("), "tools[0].custom.format"),
    ],
)
def test_what_is_no_custom_tool_is_named(
    client: openai.OpenAI, tool: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, tools=[tool])
    assert caught.value.param == param, caught.value


def test_the_tool_at_fault_is_named_among_others(client: openai.OpenAI) -> None:
    sound, broken = with_regex("^[0-9]+$"), with_regex("^[a$")
    broken["custom"]["name"] = "other"
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, tools=[WEATHER, sound, broken])
    assert caught.value.param == "tools[2].custom.format"


def test_inputs_come_in_any_pieces() -> None:
    text = json.dumps({"input": TEXT})
    for size in range(1, len(text)):
        calls = CustomCalls({"run"})
        calls.convert([CallStarted(0, "run")])
        pieces = [text[i : i + size] for i in range(0, len(text), size)]
        parts = [p for piece in pieces for p in calls.convert([CallArguments(0, piece)])]
        assert "".join(p.text for p in parts if isinstance(p, CustomInput)) == TEXT


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def test_only_allowed_tools_are_called(tiny: openai.OpenAI) -> None:
    names = set()
    fields = {"tools": [WEATHER, NOW, CODE], "parallel_tool_calls": False, "max_tokens": 150}
    for seed in range(4):
        choice = allowed("required", "now")
        message = (
            ask(tiny, model="tiny", seed=seed, tool_choice=choice, **fields).choices[0].message
        )
        names |= {made.function.name for made in message.tool_calls}
    assert names == {"now"}


def test_with_the_mode_auto_the_template_gets_the_allowed_tools(
    client: openai.OpenAI, engine: ScriptedEngine
) -> None:
    ask(client, tools=[WEATHER, NOW], tool_choice=allowed("auto", "now"))
    prompt = engine.tokenizer.decode(engine.submitted[0].prompt_token_ids)
    assert '"now"' in prompt and "get_weather" not in prompt
    with pytest.raises(openai.BadRequestError, match="'other'") as caught:
        ask(client, tools=[WEATHER], tool_choice=allowed("auto", "other"))
    assert caught.value.param == "tool_choice"


@pytest.mark.parametrize(
    ("regex", "pattern"),
    [
        (r"^[0-9]+$", r"^(?:[0-9]+)$"),
        (r"[0-9]+\$", r"^(?:[0-9]+\$)$"),
        (r"a\\$", r"^(?:a\\)$"),
        (r"a\\\$", r"^(?:a\\\$)$"),
    ],
)
def test_an_escaped_dollar_is_no_anchor(regex: str, pattern: str) -> None:
    fields = CustomFields.model_validate(with_regex(regex)["custom"])
    assert fields.as_function()["parameters"]["properties"]["input"]["pattern"] == pattern


def test_prices_keep_their_dollar(tiny: openai.OpenAI) -> None:
    choice = {"type": "custom", "custom": {"name": "run"}}
    fields = {"tools": [with_regex(r"[0-9]{1,3}\$")], "tool_choice": choice}
    message = ask(tiny, model="tiny", seed=1, max_tokens=150, **fields).choices[0].message
    assert re.fullmatch(r"[0-9]{1,3}\$", message.tool_calls[0].custom.input)
