"""The calls that clients made, byte for byte what they mean.

``wire.jsonl`` holds the bodies that the scripts in ``apart/`` sent (LiteLLM 1.106, LlamaIndex 0.14,
instructor 1.17), and those of Codex CLI 0.169 and Claude Code 2.1 with a few of their tools and
without their texts, so that they are held where those clients are not installed (decision 0021).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import ollama
import pytest
from anthropic.types import Message
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response

CALLS: list[dict[str, Any]] = [
    json.loads(line)
    for line in (Path(__file__).parent / "wire.jsonl").read_text(encoding="utf-8").splitlines()
]
TYPES: dict[str, Any] = {
    "/v1/chat/completions": ChatCompletion,
    "/v1/completions": Completion,
    "/v1/responses": Response,
    "/v1/messages": Message,
    "/api/chat": ollama.ChatResponse,
    "/api/generate": ollama.GenerateResponse,
    "/api/show": ollama.ShowResponse,
}
NAMES = [f"{call['client']}-{place}" for place, call in enumerate(CALLS)]


@pytest.mark.parametrize("call", CALLS, ids=NAMES)
def test_a_call_gets_what_it_asks_for(call: dict[str, Any], agent_url: str, pilot_url: str) -> None:
    base = {"agent": agent_url, "pilot": pilot_url}[call["server"]].removesuffix("/v1")
    path, body = call["path"], call["body"]
    response = httpx.post(base + path, json=body, timeout=60)
    assert response.status_code == 200, response.text
    if body.get("stream"):
        check_stream(path, response.text)
        return
    TYPES[path].model_validate_json(response.content)
    if path == "/v1/chat/completions":
        check_chat(body, response.json()["choices"][0])
    if path == "/api/chat":
        check_ollama(body, response.json())


def check_chat(body: dict[str, Any], choice: dict[str, Any]) -> None:
    message = choice["message"]
    form = body.get("response_format", {}).get("json_schema", {}).get("schema")
    if form is not None and choice["finish_reason"] == "stop":
        jsonschema.validate(json.loads(message["content"]), form)
    assert message["content"] or message["tool_calls"]


def check_ollama(body: dict[str, Any], answer: dict[str, Any]) -> None:
    message = answer["message"]
    if body.get("format") is not None and answer["done_reason"] == "stop":
        jsonschema.validate(json.loads(message["content"]), body["format"])
    assert message["content"] or message["tool_calls"]


def check_stream(path: str, text: str) -> None:
    if path.startswith("/api/"):
        lines = [TYPES[path].model_validate_json(line) for line in text.splitlines()]
        assert lines[-1].done and not any(line.done for line in lines[:-1])
        return
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    if path.startswith("/v1/messages"):
        events = [json.loads(each)["type"] for each in data]
        assert (events[0], events[-1]) == ("message_start", "message_stop")
        return
    if path == "/v1/responses":
        last = json.loads(data[-1])
        assert last["type"] in ("response.completed", "response.incomplete")
        Response.model_validate(last["response"])
        return
    assert data[-1] == "[DONE]"
    chunks: list[Any] = [json.loads(each) for each in data[:-1]]
    if "chat" in path:  # of completions the type has no null reason, which OpenAI streams as well
        for chunk in chunks:
            ChatCompletionChunk.model_validate(chunk)
    assert chunks[-1]["choices"][0]["finish_reason"] in ("stop", "length", "tool_calls")
