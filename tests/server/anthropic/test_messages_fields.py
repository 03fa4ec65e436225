"""Every field that Anthropic's client has works, is ignored and named, or is refused by name."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from anthropic.types.beta.message_create_params import MessageCreateParamsBase as BetaParams
from anthropic.types.message_count_tokens_params import MessageCountTokensParams
from anthropic.types.message_create_params import MessageCreateParamsBase

import twostroke.server.anthropic
from tests.server.anthropic.messages_calls import BODY, USER, WEATHER, engine_that_says
from tests.server.http_calls import post
from tests.server.scripted import Script, ScriptedEngine
from twostroke.core.config import SchedulerConfig
from twostroke.server.anthropic.message_request import CountTokensRequest, MessageRequest
from twostroke.server.generation.request_log import LOGGER

# Fields of the client's functions that it sends as headers, or under another name.
UNENFORCED = {"type": "object", "properties": {"a": {"not": {"type": "null"}}}}
NOT_IN_BODIES = {"betas", "output_format"}
VALUES: dict[str, Any] = {
    "model": "scripted",
    "max_tokens": 5,
    "messages": USER,
    "metadata": {"user_id": "joe"},
    "output_config": {},
    "stop_sequences": ["END"],
    "system": "be brief",
    "thinking": {"type": "disabled"},
    "tool_choice": {"type": "auto"},
    "tools": [WEATHER],
}
READ = MessageRequest.model_fields.keys() - {"thread"}
ROUTES = [
    (path, field)
    for path, names in (
        ("messages", MessageCreateParamsBase.__annotations__.keys() | BetaParams.__annotations__),
        ("messages/count_tokens", MessageCountTokensParams.__annotations__.keys()),
    )
    for field in sorted(names - NOT_IN_BODIES)
]


@pytest.mark.parametrize(("path", "field"), ROUTES)
async def test_a_field_works_or_is_named(path: str, field: str) -> None:
    base = {"messages": USER} if "count" in path else BODY
    body = {**base, field: VALUES.get(field, {"type": "x"})}
    response = await post(engine_that_says("ok"), path, body, served_model_name=("scripted",))
    named = response.headers.get("x-ignored-fields")
    if field in READ:
        assert response.status_code == 200, response.text
        assert named == ("thinking.type" if field == "thinking" else None)
    elif field in MessageRequest.ignored:
        assert (response.status_code, named) == (200, field), response.text
    else:
        assert response.status_code == 400, response.text
        message = response.json()["error"]["message"]
        assert message.startswith(f"{field} is not supported") or field == "thread"


@pytest.mark.parametrize("field", sorted(MessageRequest.model_fields.keys() | {"container"}))
async def test_null_asks_for_nothing(field: str) -> None:
    response = await post(engine_that_says("ok"), "messages", {**BODY, field: None})
    assert (response.status_code == 200) == (field not in ("messages", "max_tokens"))


def test_every_accepted_field_is_read() -> None:
    room = Path(twostroke.server.anthropic.__file__).parent
    source = "".join(path.read_text() for path in room.glob("*.py"))
    for name in MessageRequest.model_fields.keys() - {"temperature", "top_p", "top_k"}:
        assert re.search(rf"\b(body|self)\.{name}\b", source), name
    assert CountTokensRequest.model_fields.keys() < MessageRequest.model_fields.keys()


async def test_the_label_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    engine = engine_that_says("ok")
    with caplog.at_level("INFO", logger=LOGGER):
        await post(engine, "messages", {**BODY, "metadata": {"user_id": "joe\nforged"}})
    (line,) = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    assert line.startswith("msg_") and r"user_id='joe\nforged'" in line
    assert engine.submitted[0].labels == {"user_id": "joe\nforged"}


BLOCK = [{"type": "text", "text": "hi"}]
HOSTILE: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": "5"}, "max_tokens: "),
    ({"max_tokens": -1}, "max_tokens must be"),
    ({"max_tokens": 1.5}, "max_tokens: "),
    ({"temperature": -1}, "temperature must be"),
    ({"temperature": 1e400}, "temperature must be"),
    ({"top_p": 0}, "top_p must be"),
    ({"stop_sequences": [""]}, "stop_sequences must be"),
    ({"stop_sequences": ["x"] * 17}, "stop_sequences holds more than 16"),
    ({"stop_sequences": ["\ud800"]}, "stop_sequences holds a lone surrogate"),
    ({"metadata": {"user_id": "a" * 513}}, "metadata.user_id"),
    ({"metadata": {"user_id": "\ud800"}}, "metadata.user_id holds"),
    ({"system": ["a"]}, "system[0]"),
    ({"system": "\ud800"}, "system holds a lone surrogate"),
    ({"system": [{"type": "image", "text": "a"}]}, "system[0].type"),
    ({"messages": []}, "messages is empty"),
    ({"messages": "hi"}, "messages: "),
    ({"messages": {}}, "messages: "),
    ({"messages": [None]}, "messages[0]: "),
    ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content is missing"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": "\udc00"}]}, "messages[0].content holds a lone"),
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "this server takes text"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "text is missing"),
    (
        {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "b"}]}]},
        "messages[0].content[0].input is missing",
    ),
    (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}
                    ],
                }
            ]
        },
        "messages[0].content[0].content[0].type",
    ),
    ({"messages": [{"role": "user", "content": BLOCK * 8193}]}, "more than 8192 content blocks"),
    ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
    ({"tools": [{"name": "a"}]}, "tools[0].input_schema is missing"),
    ({"tools": [WEATHER, WEATHER]}, "tools[1].name is that of another tool"),
    ({"tools": [{"type": "computer_20250124", "name": "computer"}]}, "tools[0].type: it answers"),
    ({"tools": [{**WEATHER, "defer_loading": True}]}, "tools[0].defer_loading is not supported"),
    (
        {"tools": [{**WEATHER, "strict": True, "input_schema": UNENFORCED}]},
        "'not' is not supported",
    ),
    ({"tools": [{**WEATHER, "description": "\ud800"}]}, "tools[0] holds a lone surrogate"),
    ({"tools": [{**WEATHER, "input_schema": {"a": "x" * 1_000_001}}]}, "tools hold"),
    ({"tool_choice": {"type": "any"}}, "tool_choice needs tools"),
    ({"tool_choice": {"type": "tool"}, "tools": [WEATHER]}, "tool_choice.name is missing"),
    (
        {"tool_choice": {"type": "tool", "name": "\ud800"}, "tools": [WEATHER]},
        "which is not among the tools",
    ),
    ({"tool_choice": "auto"}, "tool_choice: "),
    ({"thinking": {"type": "between_tools"}}, "thinking.type"),
    ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format must have"),
    ({"thread": {"type": "create"}}, "this server holds no conversations"),
    ({"n": 2}, "unknown field 'n'"),
]


@pytest.mark.parametrize(("fields", "message"), HOSTILE, ids=[str(i) for i in range(len(HOSTILE))])
async def test_nonsense_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    engine = engine_that_says("ok")
    response = await post(engine, "messages", json.dumps({**BODY, **fields}))
    assert response.status_code == 400, response.text
    error = response.json()
    assert error["type"] == "error" and error["error"]["type"] == "invalid_request_error"
    assert message in error["error"]["message"]
    assert error["request_id"] == response.headers["request-id"]
    assert not engine.submitted


DEEP: Any = None
for _ in range(300):
    DEEP = {"a": DEEP}


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": [{**BLOCK[0], "citations": DEEP}]}]},
        {"tools": [{**WEATHER, "input_schema": DEEP}]},
        {"metadata": {"user_id": None, "other": DEEP}},
        {"system": []},
        {"messages": [{"role": "assistant", "content": []}]},
        {"messages": [{"role": "user", "content": [{"type": "redacted_thinking"}]}]},
    ],
)
async def test_what_looks_odd_and_harms_nothing_is_answered(fields: dict[str, Any]) -> None:
    engine = ScriptedEngine(Script(max_model_len=9000), template=engine_that_says().template)
    response = await post(engine, "messages", {**BODY, **fields})
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    "turn",
    [
        {"role": "user", "content": ""},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "a"}]},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {}}],
        },
    ],
)
async def test_many_turns_of_one_role_take_no_time(turn: dict[str, Any]) -> None:
    """Joined pair by pair, 8,192 of them held the event loop for half a minute."""
    engine = ScriptedEngine(Script(max_model_len=9000), template="{{ messages | length }}")
    turns = [turn] * 8191 + USER
    began = time.monotonic()
    response = await post(engine, "messages", {**BODY, "messages": turns})
    assert response.status_code == 200, response.text
    assert time.monotonic() - began < 15


async def test_a_deadline_counts_where_the_server_goes_by_deadlines() -> None:
    """A field of ours: Anthropic's own request has none, and its clients send it as an extra."""
    with_deadlines = SchedulerConfig(policy="deadline")
    engine = ScriptedEngine(template=engine_that_says().template, scheduler_config=with_deadlines)
    response = await post(engine, "messages", {**BODY, "deadline_ms": 250})
    assert response.status_code == 200, response.text
    assert [request.ttft_target for request in engine.submitted] == [0.25]
    response = await post(engine_that_says(), "messages", {**BODY, "deadline_ms": 250})
    assert response.status_code == 400
    assert "deadline_ms" in response.json()["error"]["message"]
