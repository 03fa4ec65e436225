"""No route lets a form end the server: each that has one is asked with what once did."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.constraints.hostile_forms import SCHEMAS, rules
from tests.server.running import ServerProcess, running_process

SCHEMA = SCHEMAS["items"]
GRAMMAR = rules("{}", 3_200)
MESSAGES = [{"role": "user", "content": "hello"}]
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {"a": SCHEMA}}}
FORMAT = {"type": "json_schema", "schema": SCHEMA}


def tools(**fields: Any) -> dict[str, Any]:
    return {
        "messages": MESSAGES,
        "tools": [{"type": "function", "function": {**FUNCTION, **fields}}],
    }


CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "response_format": (
        "chat/completions",
        {
            "messages": MESSAGES,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "s", "schema": SCHEMA},
            },
        },
    ),
    "structured_outputs": ("completions", {"prompt": "a", "structured_outputs": {"json": SCHEMA}}),
    "a grammar": ("completions", {"prompt": "a", "structured_outputs": {"grammar": GRAMMAR}}),
    "strict tools": ("chat/completions", tools(strict=True)),
    "Responses": ("responses", {"input": "a", "text": {"format": {**FORMAT, "name": "s"}}}),
    "Messages": (
        "messages",
        {
            "model": "pilot",
            "max_tokens": 4,
            "messages": MESSAGES,
            "output_config": {"format": FORMAT},
        },
    ),
    "the playground": (
        "inspect/distribution",
        {"prompt": "a", "structured_outputs": {"json": SCHEMA}},
    ),
    "a text that is forced": (
        "completions",
        {"prompt": "w", "n": 64, "structured_outputs": {"regex": "a{30000}"}},
    ),
}


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    arguments = ("-m", "twostroke", "serve", "pilot", "--port", "0", "--max-model-len", "512")
    with running_process(*arguments, "--tool-call-parser", "hermes") as process:
        yield process


@pytest.mark.parametrize("name", CALLS)
def test_the_server_refuses_it_and_goes_on(server: ServerProcess, name: str) -> None:
    (path, body), url = CALLS[name], server.url()
    began = time.monotonic()
    answer = httpx.post(f"{url}/v1/{path}", json=body, timeout=30)
    assert answer.status_code == 400, answer.text[:500]
    assert time.monotonic() - began < 5
    assert server.process.poll() is None
    assert httpx.get(f"{url}/health").status_code == 200


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_tools_without_strict_fall_back_to_any_arguments(
    server: ServerProcess, choice: str
) -> None:
    """As for every schema that cannot be enforced, where nothing was promised."""
    body = {**tools(), "tool_choice": choice, "max_tokens": 4}
    answer = httpx.post(f"{server.url()}/v1/chat/completions", json=body, timeout=30)
    assert answer.status_code == 200, answer.text[:500]
    assert json.loads(answer.text)["choices"][0]["finish_reason"] == "length"
