"""The simplest client there is: curl, as its users call it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.running import running_server
from tests.server.scripted import ScriptedEngine

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
TEXT = "the quick brown fox"
JSON = ("-H", "Content-Type: application/json")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_server(ScriptedEngine()) as url:
        yield url


def curl(*arguments: str, body: object = None) -> str:
    data = () if body is None else ("-d", json.dumps(body))
    command = ["curl", "-sS", "--max-time", "10", *arguments, *data]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def with_status(*arguments: str, body: object = None) -> tuple[int, Any]:
    text, _, status = curl("-w", "\n%{http_code}", *arguments, body=body).rpartition("\n")
    return int(status), json.loads(text)


def test_models_and_health(url: str) -> None:
    assert with_status(f"{url}/v1/models")[1]["data"][0]["id"] == "scripted"
    assert with_status(f"{url}/health") == (200, {"status": "ok"})
    head = curl("-I", f"{url}/health")
    assert head.startswith("HTTP/1.1 200")
    assert "vllm:num_requests_running" in curl(f"{url}/metrics")


def test_an_answer(url: str) -> None:
    body = {"model": "scripted", "messages": [{"role": "user", "content": "the dog"}]}
    # curl's own header, and an authorization that no route here asks for.
    status, answer = with_status(
        f"{url}/v1/chat/completions", *JSON, "-H", "Authorization: Bearer none", body=body
    )
    assert (status, answer["choices"][0]["message"]["content"]) == (200, TEXT)
    chunked = with_status(
        f"{url}/v1/chat/completions", *JSON, "-H", "Transfer-Encoding: chunked", body=body
    )
    assert chunked[0] == 200


def test_a_stream(url: str) -> None:
    output = curl("-N", f"{url}/v1/completions", *JSON, body={"prompt": "the dog", "stream": True})
    *events, done, end = output.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == TEXT


def test_tokens(url: str) -> None:
    tokens = with_status(f"{url}/tokenize", *JSON, body={"prompt": "the dog"})[1]["tokens"]
    assert with_status(f"{url}/detokenize", *JSON, body={"tokens": tokens}) == (
        200,
        {"prompt": "the dog"},
    )


def test_errors(url: str) -> None:
    status, answer = with_status(f"{url}/v1/completions", *JSON, "-d", "{oops")
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
    # Without the header curl says that it sends a form.
    status, answer = with_status(f"{url}/v1/completions", body={"prompt": "x"})
    assert status == 400 and "Content-Type: application/json" in answer["error"]["message"]
    status, answer = with_status(f"{url}/v1/completions")
    assert (status, answer["error"]["code"]) == (405, "method_not_allowed")
    assert with_status(f"{url}/v1/nothing")[0] == 404
