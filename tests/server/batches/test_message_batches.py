"""Anthropic's own client against a real server: batches of messages, and their results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import anthropic
import httpx
import pytest

from tests.server.batches.batch_calls import (
    anthropic_client,
    message_requests,
    messages_ended,
    once,
    openai_client,
    quick_engine,
    served,
)
from tests.server.running import wait_until
from tests.server.scripted import ScriptedEngine

PATH = "/v1/messages/batches"


@pytest.fixture
def engine() -> ScriptedEngine:
    return quick_engine()


@pytest.fixture
def url(engine: ScriptedEngine) -> Iterator[str]:
    with served(engine, max_body_size=2**20, max_file_size=2**22) as url:
        yield url


@pytest.fixture
def api(url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic_client(url) as api:
        yield api


def results_of(api: anthropic.Anthropic, batch_id: str) -> dict[str, Any]:
    return {each.custom_id: each.result for each in api.messages.batches.results(batch_id)}


def test_every_request_is_answered(api: anthropic.Anthropic, url: str) -> None:
    batch = api.messages.batches.create(requests=message_requests(30))
    assert (batch.type, batch.processing_status) == ("message_batch", "in_progress")
    assert (batch.request_counts.processing, batch.request_counts.succeeded) == (30, 0)
    assert batch.results_url is None and batch.ended_at is None
    assert (batch.expires_at - batch.created_at).total_seconds() == 24 * 3600
    batch = messages_ended(api, batch)
    assert batch.request_counts.succeeded == 30 and batch.request_counts.processing == 0
    assert batch.ended_at is not None and batch.cancel_initiated_at is None
    results = results_of(api, batch.id)
    assert len(results) == 30
    for result in results.values():
        assert result.type == "succeeded" and result.message.role == "assistant"
        assert result.message.content[0].text == "the quick brown fox"
    with openai_client(url) as other:  # its files are its own
        assert not other.files.list().data and not other.batches.list().data


def test_what_fails_has_its_error(api: anthropic.Anthropic) -> None:
    requests = message_requests(3)
    requests[1]["params"]["max_tokens"] = -1
    requests[2]["params"]["model"] = "claude"
    batch = messages_ended(api, api.messages.batches.create(requests=requests))
    assert (batch.request_counts.succeeded, batch.request_counts.errored) == (1, 2)
    results = results_of(api, batch.id)
    error = results["c1"].error
    assert (results["c1"].type, error.type) == ("errored", "error")
    assert error.error.type == "invalid_request_error" and "max_tokens" in error.error.message
    assert error.request_id.startswith("req_")
    assert results["c2"].error.error.type == "not_found_error"


def test_a_batch_is_cancelled_and_deleted(api: anthropic.Anthropic, engine: ScriptedEngine) -> None:
    engine.script.seconds_per_step = 0.01
    batch = api.messages.batches.create(requests=message_requests(300))
    wait_until(lambda: len(engine.finished) > 2)
    for call in (api.messages.batches.delete, api.messages.batches.results):
        with pytest.raises(anthropic.AnthropicError):
            call(batch.id)
    cancelled = api.messages.batches.cancel(batch.id)
    assert cancelled.processing_status in ("canceling", "ended")
    assert cancelled.cancel_initiated_at is not None
    batch = messages_ended(api, batch)
    counts = batch.request_counts
    assert counts.succeeded > 2 and counts.succeeded + counts.canceled == 300
    kinds = [result.type for result in results_of(api, batch.id).values()]
    assert kinds.count("succeeded") == counts.succeeded
    assert kinds.count("canceled") == counts.canceled
    deleted = api.messages.batches.delete(batch.id)
    assert (deleted.id, deleted.type) == (batch.id, "message_batch_deleted")
    with pytest.raises(anthropic.NotFoundError, match="no batch 'msgbatch_"):
        api.messages.batches.retrieve(batch.id)


def test_pages(api: anthropic.Anthropic) -> None:
    create = partial(api.messages.batches.create, requests=message_requests(1))
    ids = [create().id for _ in range(5)][::-1]
    assert [batch.id for batch in api.messages.batches.list(limit=2)] == ids
    page = api.messages.batches.list(limit=2, before_id=ids[4])
    assert ([batch.id for batch in page.data], page.has_more) == (ids[2:4], True)
    assert [batch.id for batch in api.messages.batches.list(limit=2, after_id=ids[3])] == ids[4:]
    with pytest.raises(anthropic.BadRequestError, match="after_id"):
        api.messages.batches.list(after_id="msgbatch_x")


ONE = message_requests(1)[0]
PARAMS = ONE["params"]
REFUSED: list[tuple[Any, str]] = [
    ({}, "requests is missing"),
    ({"requests": []}, "requests is empty"),
    ({"requests": None}, "requests must be a list"),
    ({"requests": {"a": 1}}, "requests must be a list"),
    ({"requests": [1]}, "requests must be a list of objects"),
    ({"requests": [ONE, 0]}, "requests must be a list of objects"),
    (
        {"other": [{**ONE, "custom_id": "x"}], "requests": [ONE]},
        "requests must be a list of objects, and the only one",
    ),
    ([ONE], "the body must be a JSON object"),
    ({"requests": [{"params": PARAMS}]}, "requests[0]: Object missing required field `custom_id`"),
    ({"requests": [ONE, {"custom_id": "b"}]}, "requests[1]: Object missing required"),
    ({"requests": [{**ONE, "url": "x"}]}, "requests[0]: Object contains unknown field"),
    ({"requests": [ONE, ONE]}, "requests[1].custom_id is that of another request: c0"),
    ({"requests": [{**ONE, "custom_id": "a b"}]}, "requests[0].custom_id must be"),
    ({"requests": [{**ONE, "custom_id": "a" * 65}]}, "requests[0].custom_id must be"),
    ({"requests": [{**ONE, "params": []}]}, "requests[0].params must be an object"),
    (
        {"requests": [{**ONE, "params": {**PARAMS, "stream": True}}]},
        "requests[0].params.stream must be left out",
    ),
    (
        {"requests": [{**ONE, "params": {**PARAMS, "system": "x" * 2**20}}]},
        "requests[0] exceeds 1048576 bytes",
    ),
    ('{"requests": [{"custom_id"', "the body is not valid JSON"),
    ('{"requests": [{"custom_id": "a", "params": {}}', "the body is not valid JSON"),
    ('{"requests": [{} {}]}', "requests[0]: Object missing"),
    ('{"requests": [], "requests": []}', "the body has 'requests' twice"),
    ("\ud800", "the body is not valid JSON"),
    ("", "the body is not valid JSON"),
    (" " * 2**18, "too much beside its requests"),
]


@pytest.mark.parametrize(("body", "message"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_nonsense_is_refused_by_its_place(
    url: str, engine: ScriptedEngine, body: Any, message: str
) -> None:
    content = body if isinstance(body, str) else json.dumps(body)
    response = httpx.post(url + PATH, content=content.encode("utf-8", "surrogatepass"))
    assert response.status_code == 400, response.text
    error = response.json()
    assert error["type"] == "error" and message in error["error"]["message"]
    assert not engine.submitted and not httpx.get(url + PATH).json()["data"]


def test_a_body_above_the_limit_of_others_is_taken(url: str, api: anthropic.Anthropic) -> None:
    """Its limit is that of files, since no part of it is held."""
    batch = api.messages.batches.create(requests=message_requests(300, system="be brief " * 700))
    api.messages.batches.cancel(batch.id)
    requests = message_requests(800, system="be brief " * 700)
    with pytest.raises(anthropic.APIStatusError, match="--max-file-size") as caught:
        api.messages.batches.create(requests=requests)
    body: Any = caught.value.body
    assert (caught.value.status_code, body["error"]["type"]) == (413, "request_too_large")


def test_white_space_between_lines_is_taken(url: str, api: anthropic.Anthropic) -> None:
    """JSON that was written for people has line feeds, of which stored lines have none."""
    body = json.dumps({"requests": message_requests(3)}, indent=4)
    answer = httpx.post(url + PATH, content=body).json()
    batch = once(
        lambda: api.messages.batches.retrieve(answer["id"]),
        lambda batch: batch.processing_status == "ended",
    )
    assert batch.request_counts.succeeded == 3
