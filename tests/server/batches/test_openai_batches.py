"""OpenAI's own client against a real server: batches over files, from the first line on."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import openai
import pytest
from openai.types import Batch

from tests.server.batches.batch_calls import (
    CHAT,
    MESSAGES,
    begin,
    chat_body,
    ended,
    line,
    lines,
    once,
    openai_client,
    outputs_of,
    quick_engine,
    served,
)
from tests.server.running import running_server, wait_until
from tests.server.scripted import ScriptedEngine
from tests.server.tiny import tiny_engine


@pytest.fixture
def engine() -> ScriptedEngine:
    return quick_engine()


@pytest.fixture
def api(engine: ScriptedEngine) -> Iterator[openai.OpenAI]:
    with served(engine) as url, openai_client(url) as api:
        yield api


def test_every_request_is_answered(api: openai.OpenAI) -> None:
    batch = begin(api, lines(40), metadata={"run": "7"})
    assert (batch.object, batch.status, batch.endpoint) == ("batch", "validating", CHAT)
    assert (batch.metadata, batch.completion_window) == ({"run": "7"}, "24h")
    assert batch.expires_at - batch.created_at == 24 * 3600 and batch.output_file_id is None
    batch = ended(api, batch)
    Batch.model_validate(batch.model_dump())
    counts = batch.request_counts
    assert (batch.status, counts.total, counts.completed, counts.failed) == ("completed", 40, 40, 0)
    assert batch.error_file_id is None and batch.errors is None
    assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
    outputs = outputs_of(api, batch.output_file_id)
    # In the order of the requests.
    assert [*outputs] == [f"c{i}" for i in range(40)]
    answer = outputs["c7"]
    assert answer["error"] is None and answer["response"]["status_code"] == 200
    assert answer["response"]["body"]["choices"][0]["message"]["content"] == "the quick brown fox"
    file = api.files.retrieve(batch.output_file_id)
    assert (file.purpose, file.filename) == ("batch_output", f"{batch.id}_output.jsonl")
    assert file.bytes == len(api.files.content(file.id).content)


def test_what_fails_is_in_a_file_of_its_own(api: openai.OpenAI) -> None:
    """One request's failure takes no other down."""
    bad = [
        line("unknown", body=chat_body("x", nonsense=1)),
        line("model", body=chat_body("x", model="other")),
        line("long", body=chat_body("x" * 9000)),
        line("huge", body=chat_body("x", max_tokens=-1)),
    ]
    batch = ended(api, begin(api, lines(3) + b"".join(bad)))
    assert batch.status == "completed"
    assert (batch.request_counts.completed, batch.request_counts.failed) == (3, 4)
    assert len(outputs_of(api, batch.output_file_id)) == 3
    errors = outputs_of(api, batch.error_file_id)
    assert {key: value["response"]["status_code"] for key, value in errors.items()} == {
        "unknown": 400,
        "model": 404,
        "long": 400,
        "huge": 400,
    }
    assert "nonsense" in errors["unknown"]["response"]["body"]["error"]["message"]


MISTAKES: list[tuple[bytes, str, int | None, str]] = [
    (lines(2) + b"{\n", "invalid_line", 3, "line 3 is no JSON object"),
    (lines(1) + b"\n\n" + line("a")[:-2] + b"\n", "invalid_line", 4, "line 4"),
    (lines(2) + lines(1), "duplicate_custom_id", 3, "lines 1 and 3 have the same custom_id, 'c0'"),
    (line("a", "/v1/completions"), "mismatched_url", 1, "url is /v1/completions"),
    (line("a", "/v1/models"), "invalid_line", 1, "url must be one of"),
    (line("a", body=chat_body("x", stream=True)), "invalid_line", 1, "body.stream"),
    (line("a" * 513), "invalid_line", 1, "custom_id has more than 512 characters"),
    (line("a", body=chat_body("x" * 2**21)), "line_too_long", 1, "line 1 is longer than"),
    (b"", "empty_file", None, "no requests"),
    (b"\n \n", "empty_file", None, "no requests"),
    (b"\xff\xfe\n", "invalid_line", 1, "line 1 is no JSON object"),
]


@pytest.mark.parametrize(("content", "code", "number", "message"), MISTAKES)
def test_a_malformed_file_fails_with_its_lines(
    engine: ScriptedEngine, content: bytes, code: str, number: int | None, message: str
) -> None:
    with served(engine, max_body_size=2**20) as url, openai_client(url) as api:
        batch = ended(api, begin(api, content))
        assert batch.status == "failed" and batch.failed_at is not None
        (error,) = batch.errors.data
        assert (error.code, error.line) == (code, number) and message in error.message
        assert batch.output_file_id is None and batch.error_file_id is None
    assert not engine.submitted


def test_many_mistakes_are_cut_short(api: openai.OpenAI) -> None:
    batch = ended(api, begin(api, b"{\n" * 1000))
    assert [error.line for error in batch.errors.data] == [*range(1, 11)]


def test_bodies_and_pages(api: openai.OpenAI) -> None:
    ids = [begin(api, lines(1)).id for _ in range(5)]
    assert [batch.id for batch in api.batches.list(limit=2)] == ids[::-1]
    page = api.batches.list(limit=2, after=ids[3])
    assert ([batch.id for batch in page.data], page.has_more) == ([ids[2], ids[1]], True)
    with pytest.raises(openai.BadRequestError, match="after is 'x'"):
        api.batches.list(after="x")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"endpoint": "/v1/moderations"}, "batches cannot ask '/v1/moderations' here"),
        ({"extra_body": {"completion_window": "1h"}}, "completion_window"),
        ({"metadata": {"a": "b" * 513}}, "metadata"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 5}}, "output_expires_after"),
    ],
)
def test_nonsense_is_refused_by_name(
    api: openai.OpenAI, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=message):
        begin(api, lines(1), **fields)


def test_a_file_that_is_not_there(api: openai.OpenAI) -> None:
    for file_id in ("file-x", "../x", ""):
        with pytest.raises(openai.NotFoundError, match="of the purpose batch is stored"):
            api.batches.create(input_file_id=file_id, endpoint=CHAT, completion_window="24h")
    batch = ended(api, begin(api, lines(1)))
    with pytest.raises(openai.NotFoundError):  # output is no input
        api.batches.create(
            input_file_id=batch.output_file_id, endpoint=CHAT, completion_window="24h"
        )
    for call in (api.batches.retrieve, api.batches.cancel):
        with pytest.raises(openai.NotFoundError, match="no batch 'batch_x' is stored"):
            call("batch_x")


def test_a_batch_is_cancelled(api: openai.OpenAI, engine: ScriptedEngine) -> None:
    """What was answered stays; all others are named as not answered."""
    engine.script.seconds_per_step = 0.01
    batch = begin(api, lines(500))
    once(lambda: api.batches.retrieve(batch.id), lambda b: b.request_counts.completed >= 3)
    cancelled = api.batches.cancel(batch.id)
    assert cancelled.status == "cancelling" and cancelled.cancelling_at is not None
    batch = ended(api, batch)
    assert batch.status == "cancelled" and batch.cancelled_at is not None
    num_done = batch.request_counts.completed
    assert 3 <= num_done < 500
    good, bad = (outputs_of(api, f) for f in (batch.output_file_id, batch.error_file_id))
    assert len(good) == num_done and len(bad) == 500 - num_done and not good.keys() & bad.keys()
    assert {output["error"]["code"] for output in bad.values()} == {"batch_cancelled"}
    wait_until(lambda: engine.status.stats.num_running == 0)  # those under way were aborted
    assert api.batches.cancel(batch.id).status == "cancelled"


def test_a_file_in_use_stays(api: openai.OpenAI, engine: ScriptedEngine) -> None:
    engine.script.seconds_per_step = 0.05
    batch = begin(api, lines(50))
    with pytest.raises(openai.BadRequestError, match=f"is read by {batch.id}"):
        api.files.delete(batch.input_file_id)
    api.batches.cancel(batch.id)
    ended(api, batch)
    once(lambda: api.files.delete(batch.input_file_id), lambda deleted: deleted.deleted)


def test_a_busy_server_is_asked_again(api: openai.OpenAI, engine: ScriptedEngine) -> None:
    """A line that is refused since there is too much to do has not failed."""
    from twostroke.core.errors import QueueFullError

    engine.script.refuse = QueueFullError("full")
    batch = begin(api, lines(3))
    once(lambda: api.batches.retrieve(batch.id), lambda b: b.status == "in_progress")
    engine.script.refuse = None
    batch = ended(api, batch)
    assert (batch.status, batch.request_counts.completed) == ("completed", 3)


def test_a_key_has_so_many_batches_at_once(api: openai.OpenAI, engine: ScriptedEngine) -> None:
    engine.script.endless, engine.script.seconds_per_step = True, 0.01
    file = api.files.create(file=("in.jsonl", lines(1)), purpose="batch")
    fields: Any = {"endpoint": CHAT, "completion_window": "24h"}
    ids = [api.batches.create(input_file_id=file.id, **fields).id for _ in range(32)]
    with pytest.raises(openai.RateLimitError, match="32 batches of this key have not ended"):
        api.batches.create(input_file_id=file.id, **fields)
    for name in ids:  # those that wait for their turn, too
        api.batches.cancel(name)
    for name in ids:
        once(partial(api.batches.retrieve, name), lambda b: b.status == "cancelled")
    engine.script.endless = False
    ended(api, api.batches.create(input_file_id=file.id, **fields))


ENDPOINTS: list[tuple[str, dict[str, Any]]] = [
    (CHAT, chat_body("the dog", max_tokens=3, n=2)),
    ("/v1/completions", {"prompt": ["the dog", "a fox"], "max_tokens": 3}),
    ("/v1/responses", {"input": "the dog", "max_output_tokens": 3}),
    (MESSAGES, {**chat_body("the dog"), "max_tokens": 3}),
    ("/v1/embeddings", {"input": ["the dog", "a fox"]}),
    ("/v1/rerank", {"query": "the dog", "documents": ["a fox", "the dog"]}),
    ("/v1/score", {"text_1": "the dog", "text_2": ["a fox", "the dog"]}),
]


def test_all_endpoints_on_a_real_model() -> None:
    """Those that ``twostroke batch`` takes, each answered as it is without a batch."""
    with (
        tiny_engine() as engine,
        running_server(engine, served_model_name=("tiny",)) as url,
        openai_client(url) as api,
    ):
        begun = [
            begin(api, b"".join(line(f"c{i}", path, body) for i in range(5)), path)
            for path, body in ENDPOINTS
        ]
        for (path, body), batch in zip(ENDPOINTS, begun):
            batch = ended(api, batch)
            counts = batch.request_counts
            assert (batch.status, counts.completed) == ("completed", 5), (batch, batch.errors)
            alone = httpx.post(url + path, json=body, timeout=60).json()
            for output in outputs_of(api, batch.output_file_id).values():
                assert output["response"]["body"].keys() == alone.keys()
                if path == "/v1/embeddings":
                    (first, _), (same, _) = output["response"]["body"]["data"], alone["data"]
                    assert first["embedding"] == pytest.approx(same["embedding"], abs=1e-5)
