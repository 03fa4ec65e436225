"""The calls that Open WebUI makes of an OpenAI-compatible connection, written by hand.

Models for the selector, a streamed chat with usage, titles in the background, native tools,
knowledge by embeddings and an external reranker; with the headers that name its user.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.server.clients.conftest import TurnsEngine
from tests.server.running import running_server
from tests.server.tiny import tiny_engine

HEADERS = {
    "Authorization": "Bearer sk-none",
    "Content-Type": "application/json",
    "X-OpenWebUI-User-Name": "J%C3%BCrg",
    "X-OpenWebUI-User-Id": "b0a7",
    "X-OpenWebUI-User-Email": "j@example.org",
    "X-OpenWebUI-User-Role": "admin",
    "X-OpenWebUI-Chat-Id": "c1",
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "A city."}},
            "required": ["city"],
        },
    },
}


@pytest.fixture
def web(pilot_url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=pilot_url, headers=HEADERS, timeout=60) as client:
        yield client


def chunks_of(client: httpx.Client, body: dict[str, Any]) -> list[dict[str, Any]]:
    with client.stream("POST", "/chat/completions", json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith(("data: ", ":")) for line in lines)
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    return [json.loads(each) for each in data[:-1]]


def test_the_selector(web: httpx.Client) -> None:
    models = web.get("/models").json()
    assert models["object"] == "list"
    assert [(model["id"], model["object"]) for model in models["data"]] == [("pilot", "model")]


def test_a_chat(web: httpx.Client) -> None:
    """With the parameters that its settings offer, and text as a list of parts."""
    body = {
        "model": "pilot",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "What is the KV cache?"}]},
        ],
        "stream_options": {"include_usage": True},
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.0,
        "frequency_penalty": 0,
        "presence_penalty": 0,
        "repetition_penalty": 1.05,
        "seed": 7,
        "stop": ["<end>"],
        "max_tokens": 60,
        "logit_bias": {},
        "reasoning_effort": "medium",
    }
    chunks = chunks_of(web, body)
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas)
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize("limit", ["max_completion_tokens", "max_tokens"])
def test_a_title_in_the_background(web: httpx.Client, limit: str) -> None:
    body = {
        "model": "pilot",
        "messages": [{"role": "user", "content": 'Write a title, as JSON: {"title": "..."}'}],
        "stream": False,
        limit: 50,
    }
    message = web.post("/chat/completions", json=body).json()["choices"][0]["message"]
    assert message["role"] == "assistant" and message["content"]


def test_native_tools(agent: TurnsEngine, agent_url: str) -> None:
    """Pieces of calls by their index; the result goes back with the call, content empty."""
    body: dict[str, Any] = {
        "model": "scripted",
        "messages": [{"role": "user", "content": "Does it rain in Bern?"}],
        "tools": [WEATHER],
        "stream_options": {"include_usage": True},
    }
    calls: dict[int, dict[str, Any]] = {}
    with httpx.Client(base_url=agent_url, headers=HEADERS, timeout=60) as client:
        for chunk in chunks_of(client, body):
            for choice in chunk["choices"]:
                for piece in choice["delta"].get("tool_calls") or ():
                    call = calls.setdefault(piece["index"], {**piece, "function": {}})
                    for name, text in piece["function"].items():
                        call["function"][name] = call["function"].get(name, "") + text
        assert [call["function"]["name"] for call in calls.values()] == ["get_weather"]
        assert json.loads(calls[0]["function"]["arguments"]) == {"city": "Bern"}
        body["messages"] += [
            {"role": "assistant", "content": "", "tool_calls": list(calls.values())},
            {"role": "tool", "tool_call_id": calls[0]["id"], "content": "rain"},
        ]
        deltas = [c["delta"] for chunk in chunks_of(client, body) for c in chunk["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == "It rains in Bern."
    assert "tool: rain" in agent.prompt(1)


def test_knowledge() -> None:
    """Embeddings in batches, with a field that names their user; a reranker by its address."""
    texts = ["a block holds 16 tokens", "bread is baked", "prefill is bounded by arithmetic"]
    with (
        tiny_engine() as engine,
        running_server(engine, served_model_name=("tiny",)) as url,
        httpx.Client(base_url=url + "/v1", headers=HEADERS, timeout=60) as client,
    ):
        body: dict[str, Any] = {"input": texts, "model": "tiny"}
        answer = client.post("/embeddings", json=body).json()
        assert [entry["index"] for entry in answer["data"]] == [0, 1, 2]
        assert len({len(entry["embedding"]) for entry in answer["data"]}) == 1
        body = {"model": "tiny", "query": "what is a block", "documents": texts, "top_n": 3}
        response = client.post("/rerank", json=body)
    results = response.json()["results"]
    assert sorted(result["index"] for result in results) == [0, 1, 2]
    assert all(isinstance(result["relevance_score"], float) for result in results)
