"""Fields of a request: what is refused, by which name; what is ignored; hostile values."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.responses import response_create_params
from pydantic import ValidationError

from tests.server.http_calls import any_engine, client_for, post
from tests.server.responses.responding import FLAT_WEATHER, THINKING_HERMES, engine_that_says
from tests.server.running import ROOT
from tests.server.scripted import Script, ScriptedEngine
from twostroke.server.foreign_fields import ADVISORY
from twostroke.server.openai.field_limits import MAX_MESSAGE_PARTS, MAX_MESSAGES
from twostroke.server.responses.request import ResponsesRequest

CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
MESSAGE: dict[str, Any] = {"role": "user", "content": "x"}
SURROGATE = "\ud800"


async def refusal(engine: ScriptedEngine | None = None, **fields: Any) -> dict[str, Any]:
    answer = await post(engine or any_engine(), "responses", {"input": "x", **fields})
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"input": None}, "input"),
    ({"input": []}, "input"),
    ({"input": [5]}, "input[0]"),
    ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0]"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].id"),
    ({"input": [{"type": "item_reference", "id": None}]}, "input[0].id"),
    ({"input": [{"type": ["x"], "id": "x"}]}, "input[0]"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        "input[0].content[0].type",
    ),
    (
        {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
        "input[0].content[0].text",
    ),
    ({"input": [{**CALL, "arguments": "{"}]}, "input[0].arguments"),
    ({"input": [{**CALL, "arguments": "[]"}]}, "input[0].arguments"),
    ({"input": [{**CALL, "name": None}]}, "input[0].name"),
    ({"input": [MESSAGE, {**CALL, "call_id": None}]}, "input[1].call_id"),
    ({"input": [CALL] * 129}, "input"),
    ({"input": [MESSAGE] * (MAX_MESSAGES + 1)}, "input"),
    ({"input": SURROGATE}, "input"),
    ({"input": [{**MESSAGE, "id": SURROGATE}]}, "input[0].id"),
    ({"input": [{**MESSAGE, "id": "x" * 257}]}, "input[0].id"),
    ({"instructions": SURROGATE}, "instructions"),
    ({"previous_response_id": SURROGATE}, "previous_response_id"),
    ({"previous_response_id": "resp_" + "x" * 300}, "previous_response_id"),
    ({"metadata": {"k": SURROGATE}}, "metadata"),
    ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
    ({"metadata": {"k" * 65: ""}}, "metadata"),
    ({"metadata": {"k": "v" * 513}}, "metadata"),
    ({"metadata": {"k": 1}}, "metadata.k"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": "1"}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"include": ["everything"]}, "include[0]"),
    ({"truncation": "maybe"}, "truncation"),
    ({"reasoning": {"effort": "a b"}}, "reasoning.effort"),
    ({"reasoning": {"depth": 1}}, "reasoning.depth"),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
    (
        {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "vase"}}}},
        "text.format.schema",
    ),
    (
        {"text": {"format": {"type": "json_schema", "schema": {"title": SURROGATE}}}},
        "text.format",
    ),
    (
        {"text": {"format": {"type": "json_schema", "name": SURROGATE, "schema": {}}}},
        "text.format",
    ),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"background": True, "store": False}, "background"),
    ({"stream_options": {"include_obfuscation": False}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options"),
    ({"conversation": {"id": 1}}, "conversation.id"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt"),
    ({"n": 2}, "n"),
    ({"messages": []}, "messages"),
    ({"priority": 3}, "priority"),
    ({"user": SURROGATE}, "user"),
    ({"stop": ""}, "stop"),
    ({"seed": 2**64}, "seed"),
    ({"tools": [{"type": "apply_patch"}]}, "tools[0].type"),
    ({"tools": [FLAT_WEATHER, FLAT_WEATHER]}, "tools[1].name"),
    ({"tools": [{**FLAT_WEATHER, "name": "a b"}]}, "tools[0].name"),
    ({"tools": [{**FLAT_WEATHER, "description": SURROGATE}]}, "tools[0]"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [FLAT_WEATHER], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
    (
        {
            "tools": [FLAT_WEATHER],
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": SURROGATE}],
            },
        },
        "tool_choice",
    ),
    ({"tools": [FLAT_WEATHER], "top_logprobs": 1}, "top_logprobs"),
    ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED)
async def test_what_is_refused_is_named(fields: dict[str, Any], param: str) -> None:
    engine = engine_that_says("hi", template=THINKING_HERMES.replace("<think>", ""))
    error = await refusal(engine, **fields)
    named = error["param"]
    assert named == param or (named or "").startswith(f"{param}."), error
    assert "messages" not in error["message"] or "messages" in fields
    assert not engine.submitted


async def test_too_long_says_so_in_the_words_that_clients_match() -> None:
    for engine in (ScriptedEngine(), ScriptedEngine(Script(max_model_len=50))):
        error = await refusal(engine, input="x" * 2_000_000)
        assert error["code"] == "context_length_exceeded" and error["param"] == "input"


async def test_every_field_of_openais_is_known() -> None:
    """Served, or refused by name, or ignored and named; none is an unknown field."""
    for name in response_create_params.ResponseCreateParamsBase.__annotations__:
        answer = await post(any_engine(), "responses", {"input": "x", name: 0.5})
        assert "unknown field" not in answer.text, name
        null = await post(any_engine(), "responses", {name: None, "input": "x"})
        assert null.status_code == 200, null.text


async def test_what_changes_no_guarantee_is_named() -> None:
    body = {
        "input": [{**MESSAGE, "phase": None, "cache_control": {}}],
        **dict.fromkeys(ResponsesRequest.ignorable(), 1),
        "text": {"verbosity": "low"},
        "reasoning": {"effort": "low", "summary": "auto"},
    }
    answer = await post(any_engine(), "responses", body)
    assert answer.status_code == 200, answer.text
    named = answer.headers["x-ignored-fields"].split(", ")
    assert set(named) == {
        *ResponsesRequest.ignorable(),
        "input[].cache_control",
        "text.verbosity",
        "reasoning.summary",
        "reasoning.effort",  # this template does not read it
    }


async def test_the_response_shows_what_was_asked() -> None:
    fields: dict[str, Any] = {
        "tools": [FLAT_WEATHER],
        "tool_choice": "none",
        "parallel_tool_calls": False,
        "truncation": "auto",
        "top_p": 0.5,
        "reasoning": {"effort": "high"},
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "user": "u",
        "metadata": {"a": "b"},
    }
    answer = (await post(engine_that_says("hi"), "responses", {"input": "x", **fields})).json()
    for name, value in fields.items():
        assert answer[name] == ({**value, "summary": None} if name == "reasoning" else value)


def test_the_page_names_every_field() -> None:
    page = (ROOT / "docs" / "reference" / "responses-api.md").read_text()
    rows = page[page.index("## Fields") : page.index("## The store")].splitlines()
    words: dict[str, list[str]] = {"work": [], "likewise": [], "ignored": [], "refused": []}
    for row in rows:
        names, _, what = row.removeprefix("| ").partition(" | ")
        for word, fields in words.items():
            if what.startswith(word):
                fields += [name.partition(".")[0] for name in re.findall(r"`([^`]+)`", names)]
    served = {*words["work"], *words["likewise"]}
    assert {*ResponsesRequest.model_fields} - {"stream_options"} <= served
    assert {*ResponsesRequest.refused} <= {*words["refused"]}
    # The others are no fields of this API, and ignored as in chat.
    assert {*ResponsesRequest.ignorable()} - {*ADVISORY} <= {*words["ignored"]}


async def test_nonsense_costs_little() -> None:
    """One complaint is made of it, however much of it there is."""
    many = 20_000
    bodies: list[dict[str, Any]] = [
        {"input": [0] * many},
        {"input": [{}] * many},
        {"input": [{"role": "user", "content": [{}] * many}]},
        {"input": [{"type": "reasoning", "summary": [{}] * many}]},
        {"input": "x", "include": ["x"] * many},
        {"input": "x", "tools": [{}] * many},
        {"input": "x", **{f"field {i}": 0 for i in range(many)}},
    ]
    for body in bodies:
        began = time.perf_counter()
        with pytest.raises(ValidationError) as caught:
            ResponsesRequest.model_validate(body)
        assert len(caught.value.errors()) <= 12
        assert time.perf_counter() - began < 0.5


async def test_many_parts_over_many_items_are_refused() -> None:
    parts = [{"type": "input_text", "text": ""}] * 100
    items = [{"role": "user", "content": parts}] * (MAX_MESSAGE_PARTS // 100 + 1)
    assert (await refusal(input=items))["param"] == "input"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "role", "content", "text", "id", "call_id", "output", "summary"]
            )
            | st.text(max_size=3),
            children,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(
    item=JSON,
    kind=st.sampled_from(["message", "function_call", "function_call_output", "reasoning", None]),
)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
async def test_any_item_is_served_or_refused(item: Any, kind: str | None) -> None:
    if isinstance(item, dict) and kind is not None:
        item = {"role": "user", "content": "x", "call_id": "c", "output": "", **item, "type": kind}
    body = json.dumps({"input": [MESSAGE, item], "max_output_tokens": 2})
    answer = await post(ScriptedEngine(Script(max_model_len=4000)), "responses", body)
    assert answer.status_code in (200, 400), answer.text


async def test_ids_of_any_form_find_nothing() -> None:
    async with client_for(ScriptedEngine()) as client:
        for name in ("resp_x", "%00", "..", "%ff", "x" * 3000, "'; DROP TABLE responses; --"):
            for method, end in (("GET", ""), ("DELETE", ""), ("POST", "/cancel")):
                answer = await client.request(method, f"/v1/responses/{name}{end}")
                assert answer.status_code in (404, 405), (name, answer.text)
