"""Conversations longer than any prompt are refused for it, by all that they bring, in any dialect.

Templates show the thoughts and calls of an assistant alone; those of others count for the bound.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.dialogues import CHAT
from tests.server.http_calls import client_for
from tests.server.scripted import Script, ScriptedEngine

LONG = "ab " * 400_000  # more bytes than are encoded at all
SURROGATE = "\ud800"
FUNCTION = {"type": "function", "function": {"name": "f", "arguments": LONG}}
THINKING = {"type": "thinking", "thinking": LONG, "signature": ""}
USE = {"type": "tool_use", "id": "1", "name": "f", "input": {"a": LONG}}
CHATS = ["/v1/chat/completions", "/tokenize", "/v1/cache/prefixes"]
MESSAGES = ["/v1/messages", "/v1/messages/count_tokens"]


async def refusal(path: str, *messages: dict[str, Any], **fields: Any) -> str:
    """Why a conversation is refused."""
    engine = ScriptedEngine(Script(max_model_len=3000), template=CHAT)
    body = {"messages": messages, **fields}
    if path == "/v1/messages":
        body["max_tokens"] = 5
    async with client_for(engine) as client:
        headers = {"content-type": "application/json"}
        response = await client.post(path, content=json.dumps(body), headers=headers)
    assert response.status_code == 400 and not engine.submitted, response.text
    error = response.json()["error"]
    return str(error["message"] if isinstance(error, dict) else error)


@pytest.mark.parametrize("path", CHATS)
@pytest.mark.parametrize("hidden", [{"reasoning_content": LONG}, {"tool_calls": [FUNCTION]}])
async def test_chats(path: str, hidden: dict[str, Any]) -> None:
    message = await refusal(path, {"role": "user", "content": "x", **hidden})
    assert "messages holds 12000" in message and "are encoded" in message


@pytest.mark.parametrize("path", MESSAGES)
@pytest.mark.parametrize("hidden", [THINKING, USE])
async def test_messages(path: str, hidden: dict[str, Any]) -> None:
    content = [{"type": "text", "text": "x"}, hidden]
    message = await refusal(path, {"role": "user", "content": content})
    assert message.startswith("prompt is too long: ") and "messages holds 12000" in message


@pytest.mark.parametrize("path", [*CHATS, "/api/chat"])
async def test_length_comes_before_unicode(path: str) -> None:
    """To look through what is too long anyway would be work for nothing."""
    assert "are encoded" in await refusal(path, {"role": "user", "content": LONG + SURROGATE})


async def test_room_for_the_answer_comes_before_unicode_and_ids() -> None:
    twice = [{"text": "a", "id": 1}, {"text": "b", "id": 1}]
    fields = {"documents": twice, "max_tokens": 5000}
    path, broken = CHATS[0], {"role": "user", "content": SURROGATE}
    assert "max_tokens is 5000" in await refusal(path, broken, **fields)
    del fields["max_tokens"]
    assert "messages[0].content" in await refusal(path, broken, **fields)
    assert "documents[1].id" in await refusal(path, {"role": "user", "content": "x"}, **fields)


async def test_messages_are_too_long_before_any_tool_is_compiled() -> None:
    """Clients shorten a conversation by these words; a compilation would be for nothing."""
    tool = {"name": "f", "input_schema": {"type": "object", "properties": {"a": {"$ref": "#/no"}}}}
    content = "ab " * 2000  # encoded, and longer than the context
    message = {"role": "user", "content": content}
    said = await refusal("/v1/messages", message, tools=[tool], tool_choice={"type": "any"})
    assert said.startswith("prompt is too long: ")
