"""Nonsense costs the server little: one complaint is made of it, however much of it there is."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from tests.server.http_calls import USER, any_engine, post
from twostroke.server.openai.chat_request import ChatCompletionRequest
from twostroke.server.openai.field_limits import MAX_MESSAGE_PARTS, MAX_MESSAGES
from twostroke.server.openai.text_completions.request import CompletionRequest
from twostroke.server.openai.tokenization import DetokenizeRequest, TokenizeRequest

MANY = 20_000
CHAT, TEXT = {"messages": USER}, {"prompt": "the dog"}
PART = {"type": "text", "text": ""}


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (ChatCompletionRequest, {"messages": [0] * MANY}),
        (ChatCompletionRequest, {"messages": [{}] * MANY}),
        (ChatCompletionRequest, {"messages": [{"role": "user", "content": [0] * MANY}]}),
        (ChatCompletionRequest, {**CHAT, "documents": [{}] * 1000}),
        (ChatCompletionRequest, {**CHAT, **{f"field {i}": 0 for i in range(MANY)}}),
        (
            ChatCompletionRequest,
            {"messages": [{**USER[0], **{f"field {i}": 0 for i in range(MANY)}}]},
        ),
        (ChatCompletionRequest, {**CHAT, "allowed_token_ids": ["x"] * MANY}),
        (ChatCompletionRequest, {**CHAT, "stop": [0] * MANY}),
        (ChatCompletionRequest, {**CHAT, "bad_words": [0] * MANY}),
        (ChatCompletionRequest, {**CHAT, "logit_bias": {str(i): "x" for i in range(MANY)}}),
        (CompletionRequest, {"prompt": [None] * MANY}),
        (CompletionRequest, {"prompt": [[None] * MANY]}),
        (CompletionRequest, {"prompt": [["x"]] * MANY}),
        (CompletionRequest, {**TEXT, "banned_token_ids": [0.5] * MANY}),
        (TokenizeRequest, {"messages": [0] * MANY}),
        (DetokenizeRequest, {"tokens": ["x"] * MANY}),
    ],
)
def test_few_complaints_about_many_mistakes(model: type[BaseModel], body: dict[str, Any]) -> None:
    """Each would be a dictionary, made on the event loop, and only one is read."""
    with pytest.raises(ValidationError) as caught:
        model.model_validate(body)
    assert caught.value.error_count() <= 8  # a union complains once for each of its members


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("chat/completions", {"messages": [0] * 250_000}, "messages[0]"),
        ("chat/completions", {"messages": [0] * 500_000}, None),
        ("chat/completions", {"messages": USER * (MAX_MESSAGES + 1)}, "messages"),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": [PART] * (MAX_MESSAGE_PARTS + 1)}]},
            "messages",
        ),
        (
            "chat/completions",
            {**CHAT, "logit_bias": {str(i): "x" for i in range(60_000)}},
            "logit_bias",
        ),
        ("chat/completions", {**CHAT, "logit_bias": {str(i): 0 for i in range(100_000)}}, None),
        ("completions", {**TEXT, **{f"field {i}": 0 for i in range(50_000)}}, "field 0"),
        ("completions", {"prompt": ["x"] * 200_000}, "prompt"),
        ("completions", {"prompt": [[]] * 1_000_000}, None),
        ("chat/completions", {"messages": [{}] * 500_000}, None),
    ],
)
async def test_megabytes_of_nonsense_are_answered_at_once(
    path: str, body: dict[str, Any], param: str | None
) -> None:
    content = json.dumps(body)
    began = time.thread_time()
    response = await post(any_engine(), path, content)
    assert time.thread_time() - began < 0.5
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


async def test_brackets_in_texts_are_no_lists() -> None:
    text = '[{"a": "\\\\"}, [' * 20_000
    error = (await post(any_engine(), "completions", {"prompt": text})).json()["error"]
    assert error["code"] == "context_length_exceeded"
    for unfinished in ('{"prompt": "' + "[" * 100_000, '"[\\' * 100_000):
        assert (
            "not valid JSON"
            in (await post(any_engine(), "completions", unfinished)).json()["error"]["message"]
        )


async def test_as_many_messages_and_parts_as_are_allowed() -> None:
    """They pass the check; the prompt is then too long for this engine."""
    parts = [{"role": "user", "content": [PART] * MAX_MESSAGE_PARTS}]
    for messages in (USER * MAX_MESSAGES, parts):
        error = (await post(any_engine(), "chat/completions", {"messages": messages})).json()[
            "error"
        ]
        assert error["code"] == "context_length_exceeded"


def test_what_is_read_on_a_thread() -> None:
    """Calls and thoughts are looked through like texts, so a chat is large by them, too."""
    long = "x" * 30_000
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": long}}
    for fields in ({"content": long}, {"reasoning": long}, {"tool_calls": [call]}):
        message = {"role": "assistant", "content": "x", **fields}
        assert ChatCompletionRequest.model_validate({"messages": [message]}).is_large
    many = [{"role": "user", "content": [PART] * 300}]
    assert ChatCompletionRequest.model_validate({"messages": many}).is_large
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    calls = [{"role": "assistant", "tool_calls": [call] * 100}] * 50
    assert ChatCompletionRequest.model_validate({"messages": calls}).is_large
    assert not ChatCompletionRequest.model_validate(CHAT).is_large
