"""A client's own request id comes back; access lines carry it, with status and seconds."""

from __future__ import annotations

import re
from concurrent.futures import Future
from pathlib import Path

import httpx
import pytest

from tests.server.http_calls import USER, client_for
from tests.server.running import running_process, wait_until
from tests.server.scripted import Script, ScriptedEngine
from twostroke.core.errors import EngineError
from twostroke.engine.clients.loaded_model import LoadedModel
from twostroke.server.application import create_app
from twostroke.server.http.access_log import LOGGER
from twostroke.server.options import ServerOptions

BODY = {"messages": USER}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_clients_id_comes_back(stream: bool) -> None:
    engine = ScriptedEngine()
    async with client_for(engine) as client:
        for status, path, body in (
            (200, "/v1/chat/completions", {**BODY, "stream": stream}),
            (400, "/v1/chat/completions", {"messages": 1}),
            (404, "/nowhere", {}),
        ):
            answer = await client.post(path, json=body, headers={"X-Request-Id": "mine-1"})
            assert (answer.status_code, answer.headers["x-request-id"]) == (status, "mine-1")
            assert len(answer.headers.get_list("x-request-id")) == 1
    # Two clients may choose one name; the engine's are unique.
    assert engine.submitted[0].request_id.startswith("chatcmpl-")


@pytest.mark.parametrize("name", ["", "a" * 129, "a b", "a\tb", "ä"])
async def test_an_id_that_could_forge_a_line_is_not_sent_back(name: str) -> None:
    async with client_for(ScriptedEngine()) as client:
        headers = {"X-Request-Id": name.encode()}
        answer = await client.get("/health", headers=headers)  # type: ignore[arg-type]
    assert answer.headers["x-request-id"].startswith("req-")


async def test_a_bug_carries_the_clients_id() -> None:
    engine = ScriptedEngine(Script(refuse=EngineError("broken")))
    async with client_for(engine) as client:
        answer = await client.post(
            "/v1/chat/completions", json=BODY, headers={"X-Request-Id": "mine-2"}
        )
    assert (answer.status_code, answer.headers["x-request-id"]) == (500, "mine-2")


async def test_access_lines(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger=LOGGER):
        async with client_for(ScriptedEngine(), access_log=True) as client:
            for headers in ({"X-Request-Id": "mine-3"}, {}):
                await client.post("/v1/chat/completions", json=BODY, headers=headers)
            await client.get("/x%0a%22y")
    mine, other, forged = [r.getMessage() for r in caplog.records if r.name == LOGGER]
    line = r'127\.0\.0\.1 "POST /v1/chat/completions" 200 \d+\.\d{3}s chatcmpl-[0-9a-f]{32}'
    assert re.fullmatch(line + " mine-3", mine) and re.fullmatch(line, other)
    assert '"GET /x%0A%22y" 404' in forged


async def test_start_up_is_not_in_the_access_log(caplog: pytest.LogCaptureFixture) -> None:
    """Load balancers ask ten times a second whether the model is there."""
    loading: Future[LoadedModel] = Future()
    app = create_app(loading, ServerOptions(access_log=True))
    transport = httpx.ASGITransport(app)
    with caplog.at_level("INFO", logger=LOGGER):
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            assert (await client.get("/health")).status_code == 503
            assert (await client.get("/nowhere")).status_code == 404
    assert [r.getMessage().count("nowhere") for r in caplog.records if r.name == LOGGER] == [1]


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
async def test_routes_without_v1(path: str) -> None:
    body = BODY if path.startswith("chat") else {"prompt": "the dog"}
    async with client_for(ScriptedEngine()) as client:
        answers = [(await client.post(f"{at}/{path}", json=body)).json() for at in ("", "/v1")]
        document = (await client.get("/openapi.json")).json()
        assert (await client.get("/models")).json() == (await client.get("/v1/models")).json()
    assert answers[0]["choices"] == answers[1]["choices"]
    assert f"/v1/{path}" in document["paths"] and f"/{path}" not in document["paths"]


@pytest.mark.parametrize("path", ["/v1/models", "/llm/v1/models"])
async def test_below_a_path(path: str) -> None:
    """Proxies cut the prefix off, or do not; the document names it."""
    async with client_for(ScriptedEngine(), root_path="/llm") as client:
        assert (await client.get(path)).status_code == 200
        document = (await client.get("/llm/openapi.json")).json()
    assert document["servers"] == [{"url": "/llm"}]


def test_a_unix_domain_socket(tmp_path: Path) -> None:
    """Started twice: what a killed server has left behind is replaced."""
    path = str(tmp_path / "twostroke.sock")
    for _ in range(2):
        arguments = ("-m", "twostroke", "serve", "--uds", path, "--max-model-len", "256")
        with running_process(*arguments) as server:
            wait_until(lambda: "curl" in server.stderr)
            assert f"curl -N --unix-socket {path} " in server.stderr
            transport = httpx.HTTPTransport(uds=path)
            with httpx.Client(transport=transport, base_url="http://localhost") as client:
                assert client.get("/health").status_code == 200
    assert Path(path).exists()  # it was killed
