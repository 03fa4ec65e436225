"""Tools of a request: namespaces are flattened and found again, what cannot run here is named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.dialogues import events_of
from tests.server.http_calls import any_engine, client_for, post
from tests.server.responses.responding import FLAT_WEATHER, engine_that_says, last_prompt
from tests.server.scripted import ScriptedEngine

WEATHER: dict[str, Any] = FLAT_WEATHER
SWISS: dict[str, Any] = {
    "type": "namespace",
    "name": "mcp__swiss",
    "description": "Of Swiss towns.",
    "tools": [WEATHER, {**WEATHER, "name": "get_snow", "output_schema": {}}],
}
CALL = '<tool_call>{"name": "mcp__swiss__get_weather", "arguments": {"city": "Bern"}}</tool_call>'


async def respond(engine: ScriptedEngine, **fields: Any) -> dict[str, Any]:
    answer = await post(engine, "responses", {"input": "x", **fields})
    assert answer.status_code == 200, answer.text
    response: dict[str, Any] = answer.json()
    return response | {"ignored": answer.headers.get("x-ignored-fields")}


async def refusal(**fields: Any) -> dict[str, Any]:
    answer = await post(any_engine(), "responses", {"input": "x", **fields})
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


async def test_a_call_comes_back_under_both_names() -> None:
    """Codex finds its tools by name and namespace; the model knows one joined name."""
    engine = engine_that_says(CALL)
    response = await respond(engine, tools=[WEATHER, SWISS])
    [call] = response["output"]
    assert (call["namespace"], call["name"]) == ("mcp__swiss", "get_weather")
    told = last_prompt(engine)
    assert '"mcp__swiss__get_weather", "description": "mcp__swiss: Of Swiss towns.' in told
    assert told.count("Of Swiss towns") == 1  # before the first of them alone
    shown = [tool["name"] for tool in response["tools"][1]["tools"]]
    assert shown == ["get_weather", "get_snow"]
    assert response["ignored"] == "tools[].tools[].output_schema"
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
    await respond(engine, input=[call, output], tools=[SWISS])
    assert "[mcp__swiss__get_weather Bern]tool: rain" in last_prompt(engine)


async def test_a_stored_call_keeps_its_namespace() -> None:
    engine = engine_that_says(CALL)
    async with client_for(engine) as client:
        body: dict[str, Any] = {"input": "x", "tools": [SWISS]}
        first = (await client.post("/v1/responses", json=body)).json()
        body |= {"input": "y", "previous_response_id": first["id"]}
        assert (await client.post("/v1/responses", json=body)).status_code == 200
    assert "[mcp__swiss__get_weather Bern]" in last_prompt(engine)


async def test_events_have_both_names() -> None:
    body = {"input": "x", "tools": [SWISS], "stream": True}
    events = events_of((await post(engine_that_says(CALL), "responses", body)).text)
    added = next(e for e in events if e["type"] == "response.output_item.added")
    assert (added["item"]["namespace"], added["item"]["name"]) == ("mcp__swiss", "get_weather")
    done = next(e for e in events if e["type"] == "response.function_call_arguments.done")
    assert done["name"] == "get_weather"


async def test_a_call_of_no_namespace_has_none() -> None:
    plain = CALL.replace("mcp__swiss__", "")
    [call] = (await respond(engine_that_says(plain), tools=[WEATHER]))["output"]
    assert call["name"] == "get_weather" and "namespace" not in call


async def test_choices_of_a_namespace() -> None:
    chosen = {"type": "function", "namespace": "mcp__swiss", "name": "get_snow"}
    engine = engine_that_says("hi")
    await respond(engine, tools=[SWISS], tool_choice={**chosen})
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [chosen]}
    await respond(engine, tools=[SWISS], tool_choice=allowed)
    assert "get_snow" in last_prompt(engine) and "get_weather" not in last_prompt(engine)
    missing = {"type": "function", "name": "get_snow"}
    error = await refusal(tools=[SWISS], tool_choice=missing)
    assert error["param"] == "tool_choice"


@pytest.mark.parametrize(
    "kind", ["web_search", "web_search_2025_08_26", "web_search_preview", "file_search", "mcp"]
)
async def test_what_openai_would_run_is_dropped_and_named(kind: str) -> None:
    tool = {"type": kind, "external_web_access": True}
    engine = engine_that_says("hi")
    response = await respond(engine, tools=[WEATHER, tool])
    assert response["ignored"] == f"tools[].{kind}"
    assert [tool["type"] for tool in response["tools"]] == ["function"]
    assert kind not in last_prompt(engine)
    alone = await respond(engine, tools=[tool])
    assert alone["tools"] == []
    error = await refusal(tools=[WEATHER, tool], tool_choice={"type": kind})
    assert error["param"] == "tool_choice.type"


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([{"type": "custom", "name": "x"}], "tools[0].type"),
        ([WEATHER, {**SWISS, "tools": [WEATHER, {"type": "custom"}]}], "tools[1].tools[1].type"),
        ([WEATHER, {**SWISS, "tools": [{**WEATHER, "name": "a b"}]}], "tools[1].tools[0].name"),
        ([{**SWISS, "name": None}], "tools[0].name"),
        ([{**SWISS, "tools": [WEATHER, WEATHER]}], "tools[0].tools[1].name"),
        ([SWISS, {**WEATHER, "name": "mcp__swiss__get_snow"}], "tools[1].name"),
        ([{**SWISS, "name": "n" * 120}], "tools[0].tools[0].name"),
        (
            [WEATHER, {**SWISS, "tools": [{**WEATHER, "description": "\ud800"}]}],
            "tools[1].tools[0]",
        ),
        ([{"type": "web_search\n"}], "tools[0].type"),
        ([{"type": 5}], "tools[0].type"),
    ],
)
async def test_a_mistake_is_named_by_its_place(tools: list[Any], param: str) -> None:
    error = await refusal(tools=tools)
    assert error["param"] == param
    assert "function.name" not in json.dumps(error)


@pytest.mark.parametrize("kind", ["custom", "local_shell", "computer_use_preview"])
async def test_a_tool_that_is_not_there_gets_the_list_of_those_that_are(kind: str) -> None:
    error = await refusal(tools=[WEATHER, {"type": kind, "name": "x"}])
    assert error["param"] == "tools[1].type" and repr(kind) in error["message"]
    assert "function" in error["message"] and "web_search" in error["message"]


async def test_a_dropped_tool_may_be_among_the_allowed() -> None:
    """Clients list all of their tools there, those that OpenAI would run as well."""
    hosted = {"type": "web_search"}
    allowed = [{"type": "function", "name": "get_weather"}, hosted]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": allowed}
    other = {**WEATHER, "name": "get_snow"}
    engine = engine_that_says("hi")
    response = await respond(engine, tools=[WEATHER, other, hosted], tool_choice=choice)
    assert response["ignored"] == "tools[].web_search, tool_choice.tools[].web_search"
    assert "get_weather" in last_prompt(engine) and "get_snow" not in last_prompt(engine)
    only = {**choice, "tools": [hosted]}
    await respond(engine, tools=[WEATHER, hosted], tool_choice=only)
    assert "get_weather" not in last_prompt(engine)
