"""Calls and forms that a message demands: a real engine on a tiny model, Anthropic's client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import jsonschema
import pytest

from tests.server.running import running_server
from tests.server.tiny import tiny_engine

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Basel"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: Any = [{"name": "get_weather", "input_schema": SCHEMA}]
BODY: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 150,
    "messages": [{"role": "user", "content": "hi"}],
}


@pytest.fixture(scope="module")
def api() -> Iterator[anthropic.Anthropic]:
    options: dict[str, Any] = {"served_model_name": ("tiny",), "tool_call_parser": "hermes"}
    with (
        tiny_engine() as engine,
        running_server(engine, **options) as url,
        anthropic.Anthropic(base_url=url, api_key="x", max_retries=0) as api,
    ):
        yield api


@pytest.mark.parametrize("name", [None, "get_weather"])
def test_a_demanded_tool_is_called_with_right_input(
    api: anthropic.Anthropic, name: str | None
) -> None:
    choice: Any = {"type": "any", "disable_parallel_tool_use": True}
    if name is not None:
        choice = {"type": "tool", "name": name}
    message = api.messages.create(**BODY, tools=TOOLS, tool_choice=choice)
    assert message.stop_reason == "tool_use"
    (block,) = message.content
    assert block.type == "tool_use"
    jsonschema.validate(block.input, SCHEMA)


def test_an_answer_by_schema(api: anthropic.Anthropic) -> None:
    output: Any = {"format": {"type": "json_schema", "schema": SCHEMA}}
    message = api.messages.create(**BODY, output_config=output)
    (block,) = message.content
    assert block.type == "text"
    jsonschema.validate(json.loads(block.text), SCHEMA)


def test_what_cannot_be_enforced_is_named(api: anthropic.Anthropic) -> None:
    schema = {"type": "object", "properties": {"a": {"not": {"type": "null"}}}}
    tools: Any = [{"name": "f", "strict": True, "input_schema": schema}]
    with pytest.raises(anthropic.BadRequestError, match="'not' is not supported"):
        api.messages.create(**BODY, tools=tools)
