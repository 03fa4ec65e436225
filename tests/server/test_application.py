"""The routes beside generation, and what the application must not import."""

from __future__ import annotations

import subprocess
import sys

from tests.server.http_calls import client_for
from tests.server.scripted import ScriptedEngine


async def test_models() -> None:
    async with client_for(ScriptedEngine(), served_model_name=("a", "b/c")) as client:
        listed = (await client.get("/v1/models")).json()
        one = (await client.get("/v1/models/b/c")).json()
        missing = await client.get("/v1/models/d")
        answer = await client.post("/v1/completions", json={"model": "b/c", "prompt": "x"})
    assert [card["id"] for card in listed["data"]] == ["a", "b/c"]
    assert (one["id"], one["root"], one["max_model_len"]) == ("b/c", "a", 100)
    assert missing.status_code == 404
    assert answer.json()["model"] == "a"


async def test_health_metrics_and_version() -> None:
    engine = ScriptedEngine()
    async with client_for(engine) as client:
        assert (await client.get("/health")).json() == {"status": "ok"}
        metrics = await client.get("/metrics")
        assert metrics.text.startswith("vllm:")
        assert metrics.headers["content-type"] == "text/plain; version=0.0.4"
        assert "version" in (await client.get("/version")).json()
        head = await client.head("/health")
        assert (head.status_code, (await client.head("/v1/models")).status_code) == (200, 200)
        engine.unhealthy = "a step has not ended"
        health = await client.get("/health")
        assert (health.status_code, health.json()["reason"]) == (503, "a step has not ended")


async def test_openapi_document() -> None:
    async with client_for(ScriptedEngine()) as client:
        document = (await client.get("/openapi.json")).json()
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/health"} <= document[
        "paths"
    ].keys()
    request = document["components"]["schemas"]["ChatCompletionRequest"]
    assert request["additionalProperties"] is False
    assert "top_k" in request["properties"]


def test_server_imports_no_torch() -> None:
    code = (
        "import sys, twostroke.server.application, twostroke.server.http.lifecycle;"
        " sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
