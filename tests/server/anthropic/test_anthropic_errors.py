"""Whatever goes wrong on Anthropic's routes, in whichever layer, has its shape and its id."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx
import pytest

from tests.server.anthropic.messages_calls import BODY, USER, engine_that_says
from tests.server.http_calls import any_engine, client_for, post
from tests.server.running import running_server
from tests.server.scripted import Script, ScriptedEngine
from twostroke.core.errors import (
    EngineDeadError,
    InvalidRequestError,
    LimitStorageError,
    ModelLoadingError,
    QueueFullError,
    ShuttingDownError,
    TokenRateError,
    TwostrokeError,
)
from twostroke.gateway.gateway import Gateway
from twostroke.gateway.options import GatewayOptions

VERSION = {"anthropic-version": "2023-06-01"}


def check_shape(response: httpx.Response, status: int, kind: str) -> str:
    """The message of an error, which must have the published shape and no other."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body: dict[str, Any] = response.json()
    assert body.keys() == {"type", "error", "request_id"} and body["type"] == "error"
    assert body["error"].keys() - {"details"} == {"type", "message"}
    assert body["error"]["type"] == kind
    assert body["request_id"] == response.headers["request-id"]
    assert body["request_id"].startswith("req_")
    assert len(response.headers.get_list("request-id")) == 1
    message: str = body["error"]["message"]
    return message


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (QueueFullError("x"), 529, "overloaded_error"),
        (TokenRateError("x", retry_after=7), 429, "rate_limit_error"),
        (ShuttingDownError("x"), 503, "api_error"),
        (ModelLoadingError("x"), 503, "api_error"),
        (EngineDeadError("x"), 503, "api_error"),
        (LimitStorageError("x"), 503, "api_error"),
    ],
)
async def test_refusals_of_the_engine(error: TwostrokeError, status: int, kind: str) -> None:
    response = await post(ScriptedEngine(Script(refuse=error)), "messages", BODY)
    check_shape(response, status, kind)
    seconds = int(response.headers["retry-after"])
    assert seconds == getattr(error, "retry_after", seconds) > 0


async def test_the_engine_refuses_a_field_by_the_name_of_this_api() -> None:
    error = InvalidRequestError("too many strings", param="stop")
    response = await post(ScriptedEngine(Script(refuse=error)), "messages", BODY)
    message = check_shape(response, 400, "invalid_request_error")
    assert message == "stop_sequences: too many strings"


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/v1/messages", 405, "invalid_request_error"),
        ("POST", "/v1/messages/others", 404, "not_found_error"),
        ("GET", "/v1/messages/", 404, "not_found_error"),
        ("GET", "/v1/models/other", 404, "not_found_error"),
        ("GET", "/v1/models?limit=0", 400, "invalid_request_error"),
        ("GET", "/v1/models?limit=x", 400, "invalid_request_error"),
        ("GET", "/v1/models?before_id=x", 400, "invalid_request_error"),
        ("POST", "/v1/models", 405, "invalid_request_error"),
    ],
)
async def test_unknown_paths_and_methods(method: str, path: str, status: int, kind: str) -> None:
    async with client_for(ScriptedEngine()) as client:
        check_shape(await client.request(method, path, headers=VERSION), status, kind)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"a":1,"a":2}', b"\xff", b"[" * 10**5])
async def test_bodies_that_are_none(body: bytes) -> None:
    check_shape(await post(any_engine(), "messages", body), 400, "invalid_request_error")


async def test_a_body_that_is_too_large() -> None:
    body = {**BODY, "system": "x" * 2000}
    response = await post(any_engine(), "messages", body, max_body_size=1024)
    check_shape(response, 413, "request_too_large")


async def test_a_bug_is_a_500_without_its_text() -> None:
    engine = ScriptedEngine()
    engine.script.refuse = RuntimeError("secret")  # type: ignore[assignment]
    assert "secret" not in check_shape(await post(engine, "messages", BODY), 500, "api_error")


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens", "/v1/models"])
def test_what_stands_before_the_routes(path: str) -> None:
    """Keys, limits, and names of the server."""
    gateway = Gateway(GatewayOptions(api_key=("sk-1",), requests_per_minute=1))
    with running_server(ScriptedEngine(), gateway=gateway) as url, httpx.Client() as client:
        method, body = ("GET", None) if "models" in path else ("POST", BODY)
        foreign = client.request(method, url + path, headers={**VERSION, "host": "evil.example"})
        check_shape(foreign, 403, "permission_error")
        none = client.request(method, url + path, headers=VERSION, json=body)
        assert "X-Api-Key" in check_shape(none, 401, "authentication_error")
        wrong = {**VERSION, "x-api-key": "sk-2"}
        response = client.request(method, url + path, headers=wrong, json=body)
        check_shape(response, 401, "authentication_error")
        if method == "POST":
            right = {**VERSION, "x-api-key": "sk-1"}
            client.post(url + path, headers=right, json={"messages": USER, "max_tokens": 1})
            response = client.post(url + path, headers=right, json={})
            check_shape(response, 429, "rate_limit_error")
            assert int(response.headers["retry-after"]) > 0


def test_a_request_that_the_connection_refuses() -> None:
    with running_server(ScriptedEngine()) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            head = b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
            connection.sendall(head + b"no length\r\n")
            answer = b""
            while data := connection.recv(65536):
                answer += data
    head_text, _, body = answer.partition(b"\r\n\r\n")
    assert b" 400 " in head_text and json.loads(body)["type"] == "error"


async def test_other_routes_keep_their_shape() -> None:
    """Also for a client that sends Anthropic's header everywhere, as proxies do."""
    async with client_for(ScriptedEngine()) as client:
        response = await client.post("/v1/completions", json={}, headers=VERSION)
        assert response.json().keys() == {"error"} and "request-id" not in response.headers
        assert (await client.get("/v1/models")).json()["object"] == "list"
        assert "request-id" not in (await client.get("/v1/models/x")).headers


async def test_answers_name_their_request() -> None:
    for fields in ({}, {"stream": True}):
        response = await post(engine_that_says("ok"), "messages", {**BODY, **fields})
        name = response.headers["request-id"]
        assert name.startswith("req_") and response.text.count("msg_" + name[4:]) == 1
