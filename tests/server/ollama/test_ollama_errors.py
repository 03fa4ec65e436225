"""Whatever goes wrong on Ollama's routes, in whichever layer, has its shape and a true status."""

from __future__ import annotations

import json
import subprocess
from concurrent.futures import Future
from typing import Any

import httpx
import pytest

from tests.server.http_calls import any_engine, client_for
from tests.server.ollama.ollama_calls import USER, chat, engine_that_says, lines_of, post
from tests.server.openai.test_curl import curl, with_status
from tests.server.running import running_server, wait_until
from tests.server.scripted import Script, ScriptedEngine
from twostroke.core.errors import (
    EngineDeadError,
    ModelLoadingError,
    QueueFullError,
    ShuttingDownError,
    TokenRateError,
    TwostrokeError,
)
from twostroke.gateway.gateway import Gateway
from twostroke.gateway.options import GatewayOptions
from twostroke.server.application import create_app
from twostroke.server.options import ServerOptions


def check_shape(response: httpx.Response, status: int) -> str:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.json().keys() == {"error"}
    assert "x-request-id" in response.headers
    message: str = response.json()["error"]
    return message


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (QueueFullError("x"), 429),
        (TokenRateError("x", retry_after=7), 429),
        (ShuttingDownError("x"), 503),
        (ModelLoadingError("x"), 503),
        (EngineDeadError("x"), 503),
    ],
)
async def test_refusals_of_the_engine(error: TwostrokeError, status: int) -> None:
    response = await chat(ScriptedEngine(Script(refuse=error)))
    check_shape(response, status)
    assert int(response.headers["retry-after"]) > 0


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/chat", 405),
        ("POST", "/api/tags", 405),
        ("POST", "/api/nothing", 404),
        ("GET", "/api/", 404),
        ("POST", "/api/push", 400),
        ("POST", "/api/create", 400),
        ("POST", "/api/copy", 400),
        ("DELETE", "/api/delete", 400),
        ("POST", "/api/blobs/sha256:00", 400),
    ],
)
async def test_unknown_paths_methods_and_what_cannot_be_done(
    method: str, path: str, status: int
) -> None:
    async with client_for(ScriptedEngine()) as client:
        check_shape(await client.request(method, path), status)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"a":1,"a":2}', b"\xff", b"[" * 10**5])
async def test_bodies_that_are_none(body: bytes) -> None:
    check_shape(await post(any_engine(), "chat", body), 400)


async def test_a_body_that_is_too_large() -> None:
    body = {"messages": [{"role": "user", "content": "x" * 2000}]}
    check_shape(await post(any_engine(), "chat", body, max_body_size=1024), 413)


async def test_a_bug_is_a_500_without_its_text() -> None:
    engine = ScriptedEngine()
    engine.script.refuse = RuntimeError("secret")  # type: ignore[assignment]
    assert "secret" not in check_shape(await chat(engine), 500)


async def test_a_model_that_is_still_loading() -> None:
    """The server is there; what it serves is not yet known."""
    app = create_app(Future(), ServerOptions())
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        assert (await client.get("/")).text == "Ollama is running"
        assert (await client.get("/api/version")).status_code == 200
        for path in ("tags", "ps"):
            assert "loading" in check_shape(await client.get(f"/api/{path}"), 503)
        for path in ("chat", "show", "pull"):
            check_shape(await client.post(f"/api/{path}", json={}), 503)


@pytest.mark.parametrize("path", ["chat", "generate", "embed", "show", "pull"])
async def test_a_model_that_is_not_there(path: str) -> None:
    """Clients look for the 404, and then pull; neither finds another model."""
    response = await post(any_engine(), path, {"model": "llama3.2"})
    assert "not found" in check_shape(response, 404)


SERVED = ("scripted", "a/b", "c:7b")


@pytest.mark.parametrize("name", ["a/b", "a/b:latest", "c:7b", "scripted", "scripted:latest", ""])
async def test_a_name_with_its_tag_or_without(name: str) -> None:
    body = {"model": name, "messages": USER, "stream": False}
    response = await post(engine_that_says(), "chat", body, served_model_name=SERVED)
    assert response.status_code == 200, response.text
    assert response.json()["model"] == (name or "scripted:latest")


@pytest.mark.parametrize("name", ["c", "c:latest", "scripted:7b", "SCRIPTED", "b", "/"])
async def test_names_that_are_none(name: str) -> None:
    body = {"model": name}
    check_shape(await post(engine_that_says(), "chat", body, served_model_name=SERVED), 404)


@pytest.mark.parametrize("path", ["chat", "generate"])
@pytest.mark.parametrize("truncate", [None, False])
async def test_what_does_not_fit_is_an_error_and_never_cut(
    path: str, truncate: bool | None
) -> None:
    engine = engine_that_says(max_model_len=40)
    long = "word " * 100
    body: dict[str, Any] = {"messages": [*USER, {"role": "user", "content": long}]}
    body = body if path == "chat" else {"prompt": long}
    response = await post(engine, path, {**body, "truncate": truncate})
    assert "truncate: true" in check_shape(response, 400)
    assert not engine.submitted


async def test_old_turns_go_where_that_is_asked_for() -> None:
    engine = engine_that_says(max_model_len=60)
    turns = [{"role": "user", "content": f"number {number} " * 3} for number in range(20)]
    check_shape(await chat(engine, messages=turns), 400)
    response = await chat(engine, messages=turns, truncate=True)
    assert response.status_code == 200, response.text
    prompt = engine.tokenizer.decode(engine.submitted[-1].prompt_token_ids)
    assert "number 19" in prompt and "number 0 " not in prompt
    # A limit that no context holds leaves the turns the room that they have without one.
    response = await chat(engine, messages=turns, truncate=True, options={"num_predict": 5000})
    assert response.status_code == 200, response.text
    first, second = engine.submitted
    assert second.prompt_token_ids == first.prompt_token_ids
    assert second.params.max_tokens == 60 - len(second.prompt_token_ids)


async def test_num_ctx_cuts_nothing() -> None:
    """It is about memory there; here it is named, and the prompt is read whole."""
    engine = engine_that_says()
    response = await chat(
        engine, messages=[{"role": "user", "content": "dog " * 200}], options={"num_ctx": 64}
    )
    assert response.json()["prompt_eval_count"] > 200
    assert response.headers["x-ignored-fields"] == "options.num_ctx"


@pytest.mark.parametrize("path", ["/", "/api/version", "/api/tags", "/api/ps", "/api/chat"])
def test_what_stands_before_the_routes(path: str) -> None:
    """Keys, limits, and names of the server; ``/`` is no route of this API alone."""
    gateway = Gateway(GatewayOptions(api_key=("sk-1",), requests_per_minute=2))
    with running_server(engine_that_says(), gateway=gateway) as url, httpx.Client() as client:
        method, body = ("GET", None) if path != "/api/chat" else ("POST", {"messages": USER})

        def ask(**headers: str) -> httpx.Response:
            return client.request(method, url + path, headers=headers, json=body)

        foreign, none = ask(host="evil.example"), ask()
        wrong, right = ask(authorization="Bearer sk-2"), ask(authorization="Bearer sk-1")
        assert (foreign.status_code, none.status_code) == (403, 401)
        assert (wrong.status_code, right.status_code) == (401, 200)
        if path != "/":
            for response in (foreign, none, wrong):
                assert response.json().keys() == {"error"}
                assert isinstance(response.json()["error"], str)
        if method == "POST":
            assert lines_of(right)[-1]["done"]
            ask(authorization="Bearer sk-1")
            assert "limit" in check_shape(ask(authorization="Bearer sk-1"), 429)


def test_a_bare_curl_is_understood_and_a_page_is_not() -> None:
    """``curl -d`` says that its body is a form; a browser may send one without asking."""
    with running_server(engine_that_says()) as url:
        body = {"model": "scripted", "messages": USER, "stream": False}
        status, answer = with_status(f"{url}/api/chat", body=body)
        assert status == 200 and answer["message"]["content"] == "the quick brown fox"
        lines = curl("-N", f"{url}/api/generate", body={"prompt": "hi"}).splitlines()
        assert json.loads(lines[-1])["done"]
        for header in ("Origin: http://localhost:1", "Sec-Fetch-Site: same-site"):
            status, answer = with_status(f"{url}/api/chat", "-H", header, body=body)
            assert status == 400 and "application/json" in answer["error"]


def test_a_client_that_leaves_ends_its_answer() -> None:
    engine = engine_that_says(endless=True, seconds_per_step=0.01)
    with running_server(engine) as url:
        command = ["curl", "-sN", "--max-time", "1", f"{url}/api/generate", "-d", '{"prompt":"x"}']
        subprocess.run(command, check=False, capture_output=True)
        wait_until(lambda: engine.aborted == [engine.submitted[0].request_id])
