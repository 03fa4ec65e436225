"""Calls that a request demands: a real engine on a tiny model, which would never write one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import httpx
import jsonschema
import openai
import pytest
from pydantic import BaseModel

from tests.server.dialogues import langchain
from tests.server.http_calls import USER
from tests.server.running import running_server
from tests.server.tiny import tiny_engine

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Basel"]}, "days": {"enum": [1, 2]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now"}},
]
NAMED = {"type": "function", "function": {"name": "get_weather"}}


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Bern", "Basel"]
    days: Literal[1, 2]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    options: dict[str, Any] = {"served_model_name": ("tiny",), "tool_call_parser": "hermes"}
    with tiny_engine() as engine, running_server(engine, **options) as url:
        yield url


def post(url: str, **fields: Any) -> httpx.Response:
    body = {"messages": USER, "tools": TOOLS, "max_tokens": 150, **fields}
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_named_tool_is_called_once_with_right_arguments(
    url: str, seed: int, temperature: float
) -> None:
    response = post(url, tool_choice=NAMED, seed=seed, temperature=temperature)
    choice = response.json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls", choice
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    jsonschema.validate(json.loads(call["function"]["arguments"]), WEATHER)
    assert choice["message"]["content"] is None


@pytest.mark.parametrize("seed", range(4))
def test_a_required_call_is_one_of_the_tools(url: str, seed: int) -> None:
    fields = {"tool_choice": "required", "parallel_tool_calls": False, "seed": seed}
    (call,) = post(url, **fields).json()["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] in ("get_weather", "now")


def test_a_stream_of_a_required_call(url: str) -> None:
    with (
        openai.OpenAI(base_url=url + "/v1", api_key="x", max_retries=0) as client,
        client.chat.completions.stream(
            model="tiny",
            messages=[{"role": "user", "content": "hi"}],
            tools=[openai.pydantic_function_tool(Weather)],
            tool_choice="required",
            parallel_tool_calls=False,
            max_tokens=150,
        ) as stream,
    ):
        final = stream.get_final_completion()
    calls = final.choices[0].message.tool_calls
    assert calls is not None and len(calls) == 1
    call = calls[0]
    assert isinstance(call.function.parsed_arguments, Weather)


def test_langchain_makes_objects_of_calls(url: str) -> None:
    with langchain(url, "tiny", max_completion_tokens=200, temperature=0) as model:
        made = model.with_structured_output(Weather, method="function_calling").invoke("hi")
    assert isinstance(made, Weather)


STRICT: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "f",
        "strict": True,
        "parameters": {"type": "object", "properties": {"a": {"not": {"type": "null"}}}},
    },
}


def test_what_cannot_be_enforced_is_named(url: str) -> None:
    for choice in ("auto", "required"):
        error = post(url, tools=[STRICT], tool_choice=choice).json()["error"]
        assert "'not' is not supported" in error["message"], error
        assert error["param"] == "tools[0].function.parameters"
    lenient = {**STRICT, "function": {**STRICT["function"], "strict": False}}
    assert post(url, tools=[lenient]).status_code == 200


@pytest.mark.parametrize("seed", range(3))
def test_an_answer_is_a_call_or_has_the_form(url: str, seed: int) -> None:
    form: dict[str, Any] = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    schema = {"name": "ok", "schema": form}
    response_format = {"type": "json_schema", "json_schema": schema}
    fields = {"response_format": response_format, "seed": seed, "tools": TOOLS[:1]}
    fields |= {"parallel_tool_calls": False}
    message = post(url, **fields).json()["choices"][0]["message"]
    if calls := message.get("tool_calls"):
        jsonschema.validate(json.loads(calls[0]["function"]["arguments"]), WEATHER)
    else:
        jsonschema.validate(json.loads(message["content"]), form)
    (call,) = post(url, **fields, tool_choice=NAMED).json()["choices"][0]["message"]["tool_calls"]
    jsonschema.validate(json.loads(call["function"]["arguments"]), WEATHER)
    answer = post(url, **fields, tool_choice="none").json()["choices"][0]["message"]["content"]
    jsonschema.validate(json.loads(answer), form)


def test_a_form_that_cannot_be_enforced_beside_tools_is_refused(url: str) -> None:
    schema = {"name": "odd", "schema": {"not": {}}}
    response_format = {"type": "json_schema", "json_schema": schema}
    error = post(url, response_format=response_format).json()["error"]
    assert "'not' is not supported" in error["message"]
    assert error["param"] == "response_format.json_schema.schema"


OPEN: dict[str, Any] = {k: v for k, v in WEATHER.items() if k != "additionalProperties"}
OPEN_TOOL: dict[str, Any] = {"name": "get_weather", "parameters": OPEN}
FORCED: dict[str, dict[str, Any]] = {
    "chat/completions": {
        "messages": USER,
        "tools": [{"type": "function", "function": OPEN_TOOL}],
        "tool_choice": NAMED,
        "max_tokens": 150,
    },
    "responses": {
        "input": "hi",
        "tools": [{"type": "function", **OPEN_TOOL, "strict": False}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_output_tokens": 150,
    },
    "messages": {
        "model": "tiny",
        "messages": USER,
        "tools": [{"name": "get_weather", "input_schema": OPEN}],
        "tool_choice": {"type": "tool", "name": "get_weather"},
        "max_tokens": 150,
    },
}


@pytest.mark.parametrize("route", FORCED)
def test_a_tool_that_forbids_nothing_gets_its_own_keys_alone(url: str, route: str) -> None:
    """A schema without ``additionalProperties`` is closed in every dialect."""
    for place in range(4):
        body = {**FORCED[route], "temperature": 0.5 + place / 4}
        answer = httpx.post(f"{url}/v1/{route}", json=body, timeout=60).json()
        if route == "messages":
            arguments = answer["content"][0]["input"]
        elif route == "responses":
            arguments = json.loads(answer["output"][0]["arguments"])
        else:
            call = answer["choices"][0]["message"]["tool_calls"][0]
            arguments = json.loads(call["function"]["arguments"])
        assert arguments.keys() == {"city", "days"}, arguments


def test_the_switch_opens_tools_again(url: str) -> None:
    """Alone, ``disable_additional_properties`` speaks of tools; without tools it is a 400."""
    fields: dict[str, Any] = {**FORCED["chat/completions"], "temperature": 1}
    fields["structured_outputs"] = {"disable_additional_properties": False}
    keys: set[str] = set()
    for seed in range(8):
        choice = post(url, **fields, seed=seed).json()["choices"][0]
        if choice["finish_reason"] == "length":
            return  # it wrote further keys without end
        keys |= json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]).keys()
    assert keys > {"city", "days"}
    alone = {"tools": None, "tool_choice": None}
    assert post(url, **{**fields, **alone}).json()["error"]["param"] == "structured_outputs"
