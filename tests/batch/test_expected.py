"""Which responses count as answers, route by route; a batch over all routes of a real engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.batch.test_runner import run
from tests.server.tiny import tiny_engine
from twostroke.batch.expected import what_is_missing
from twostroke.batch.lines import BadLine, parse_line
from twostroke.server.application import create_app
from twostroke.server.options import ServerOptions

TEXTS = ["the dog", "the fox"]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3},
    "/v1/completions": {"prompt": TEXTS, "n": 2, "max_tokens": 3},
    "/v1/embeddings": {"input": TEXTS},
    "/v1/messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3},
    "/v1/rerank": {"query": "dog", "documents": TEXTS, "top_n": 1},
    "/v1/responses": {"input": "x", "max_output_tokens": 3},
    "/v1/score": {"text_1": "dog", "text_2": TEXTS},
}
VECTOR = {"embedding": [0.5]}
CHOICE: dict[str, Any] = {"message": {}, "text": ""}


@pytest.mark.parametrize(
    ("url", "body", "missing"),
    [
        ("/v1/embeddings", {"data": [VECTOR, VECTOR]}, None),
        ("/v1/embeddings", {"data": [VECTOR]}, "1 vectors instead of 2"),
        ("/v1/embeddings", {"data": [{}, {}]}, "no embedding"),
        ("/v1/embeddings", {}, "no data"),
        ("/v1/embeddings", [], "no object"),
        ("/v1/rerank", {"results": [{"relevance_score": 0.5}]}, None),
        ("/v1/rerank", {"results": [{"relevance_score": 1}] * 2}, "2 results instead of 1"),
        ("/v1/rerank", {"results": [{"relevance_score": True}]}, "no relevance_score"),
        ("/v1/rerank", {"results": {}}, "no results"),
        ("/v1/score", {"data": [{"score": 1}, {"score": 0.5}]}, None),
        ("/v1/score", {"data": [{"score": 1}]}, "1 scores instead of 2"),
        ("/v1/score", {"data": [{"score": "1"}] * 2}, "no score"),
        ("/v1/responses", {"status": "incomplete", "output": []}, None),
        ("/v1/responses", {"status": "failed", "output": [], "error": {"message": "m"}}, "d: m"),
        ("/v1/responses", {"status": "queued", "output": []}, "not been completed: queued"),
        ("/v1/responses", {"status": "completed"}, "no output"),
        ("/v1/messages", {"content": []}, None),
        ("/v1/messages", {"content": "x"}, "no content"),
        ("/v1/chat/completions", {"choices": [CHOICE]}, None),
        ("/v1/completions", {"choices": [CHOICE] * 3}, "3 choices instead of 4"),
    ],
)
def test_what_a_response_must_hold(url: str, body: Any, missing: str | None) -> None:
    found = what_is_missing(url, json.dumps(BODIES[url]).encode(), body)
    assert (found is None) if missing is None else missing in (found or "")


def line_of(url: Any, body: dict[str, Any]) -> bytes:
    return json.dumps({"custom_id": str(url), "method": "POST", "url": url, "body": body}).encode()


@pytest.mark.parametrize(
    ("url", "fields", "message"),
    [
        ("/v1/responses", {"background": True}, "body.background must be left out"),
        ("/v1/messages", {"stream": True}, "body.stream must be left out"),
        ("/v1/models", {}, "url must be one of"),
        ([], {}, "url must be one of"),
    ],
)
def test_what_no_batch_can_send(url: Any, fields: dict[str, Any], message: str) -> None:
    line = parse_line(line_of(url, fields), 1)
    assert isinstance(line, BadLine) and message in line.message


async def test_every_route(tmp_path: Path) -> None:
    """All in one file, answered by the server's own application."""
    calls = [parse_line(line_of(url, body), 1) for url, body in BODIES.items()]
    with tiny_engine() as engine:
        options = ServerOptions(served_model_name=("tiny",), allowed_hosts=("test",))
        transport = httpx.ASGITransport(create_app(engine.loaded_model(), options))

        async def handle(request: httpx.Request) -> httpx.Response:
            return await transport.handle_async_request(request)

        outputs, totals = await run(tmp_path / "out.jsonl", handle, calls)
    assert [output["custom_id"] for output in outputs] == sorted(BODIES)
    for output in outputs:
        assert output["error"] is None, output
        assert output["response"]["status_code"] == 200, output
    assert totals.prompt_tokens > 20 and totals.completion_tokens > 9
