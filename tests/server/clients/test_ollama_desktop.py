"""The calls that desktop programs make of Ollama, written by hand as theirs are.

Probes before anything else, the selector of models, a streamed chat with options of their own, and
what the command ``ollama run`` asks first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.server.clients.conftest import TurnsEngine

QUESTION = {"role": "user", "content": "What is the KV cache?"}


@pytest.fixture
def desk(pilot_url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=pilot_url.removesuffix("/v1"), timeout=60) as client:
        yield client


def lines_of(client: httpx.Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    with client.stream("POST", path, json=body) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"] == "application/x-ndjson"
        return [json.loads(line) for line in response.iter_lines()]


def test_probes(desk: httpx.Client) -> None:
    """Programs compare the whole text, or the numbers of the version."""
    assert desk.get("/").text == "Ollama is running"
    assert desk.get("/").headers["content-type"].startswith("text/plain")
    for path in ("/", "/api/version", "/api/tags"):
        head = desk.head(path)
        assert head.status_code == 200 and head.content == b""
    numbers = desk.get("/api/version").json()["version"].split(".")
    assert [int(number) for number in numbers] >= [0, 6, 4] and len(numbers) == 3


def test_the_selector(desk: httpx.Client) -> None:
    """Names with tags, and numbers where programs compute with them."""
    (model,) = desk.get("/api/tags").json()["models"]
    assert model["name"] == model["model"] == "pilot:latest"
    assert len(model["digest"]) == 64 and int(model["digest"], 16) and model["size"] > 10**6
    assert model["details"].keys() >= {"family", "families", "parameter_size", "format"}
    for field in ("model", "name"):
        shown = desk.post("/api/show", json={field: "pilot:latest", "verbose": True})
        assert shown.headers["x-ignored-fields"] == "verbose"
        assert "tools" in shown.json()["capabilities"]


def test_a_chat_with_a_programs_options(desk: httpx.Client) -> None:
    """Sliders of which most are about loading; and fields that are there and say nothing."""
    options = {
        "temperature": 0.0,
        "top_p": 0.9,
        "top_k": 40,
        "num_ctx": 4096,
        "num_predict": 5,
        "num_keep": 24,
        "num_gpu": 99,
        "num_thread": 8,
        "use_mmap": True,
        "low_vram": False,
        "mirostat": 0,
        "repeat_penalty": 1.0,
        "repeat_last_n": 64,
        "stop": [],
    }
    body = {
        "model": "pilot:latest",
        "messages": [{"role": "system", "content": "Be brief.", "images": []}, QUESTION],
        "stream": True,
        "format": "",
        "keep_alive": -1,
        "think": False,
        "tools": [],
        "options": options,
    }
    *lines, last = lines_of(desk, "/api/chat", body)
    assert "".join(line["message"]["content"] for line in lines).strip()
    assert last["done_reason"] == "length" and last["eval_count"] == 5


def test_ollama_run(desk: httpx.Client) -> None:
    """Ollama's command line: is it there, what is it, load it, then chat."""
    assert desk.head("/").status_code == 200
    shown = desk.post("/api/show", json={"model": "pilot", "system": "", "template": ""})
    assert shown.status_code == 200 and "completion" in shown.json()["capabilities"]
    loaded = desk.post("/api/generate", json={"model": "pilot", "keep_alive": "5m", "options": {}})
    assert loaded.json()["done_reason"] == "load"
    body: dict[str, Any] = {"model": "pilot", "messages": [QUESTION], "options": {"num_predict": 9}}
    answer = "".join(line["message"]["content"] for line in lines_of(desk, "/api/chat", body))
    body["messages"] += [{"role": "assistant", "content": answer}, QUESTION]
    assert lines_of(desk, "/api/chat", body)[-1]["done"]


def test_a_home_assistant(agent: TurnsEngine, agent_url: str) -> None:
    """Tools in a stream, with ids and indices sent back as they came."""
    tool = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "enum": None, "description": "A city."}},
                "required": ["city"],
            },
        },
    }
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Does it rain in Bern?"}]
    body: dict[str, Any] = {
        "model": "scripted:latest",
        "messages": messages,
        "tools": [tool],
        "keep_alive": "-1s",
        "options": {"num_ctx": 8192},
    }
    with httpx.Client(base_url=agent_url.removesuffix("/v1")) as client:
        lines = lines_of(client, "/api/chat", body)
        calls = [call for line in lines for call in line["message"].get("tool_calls", ())]
        messages.append({"role": "assistant", "content": "", "tool_calls": calls})
        result = json.dumps({"weather": "rain"})
        messages.append({"role": "tool", "tool_name": "get_weather", "content": result})
        lines = lines_of(client, "/api/chat", body)
    assert "".join(line["message"]["content"] for line in lines) == "It rains in Bern."
    assert '[get_weather Bern]tool: {"weather": "rain"}' in agent.prompt(1)
