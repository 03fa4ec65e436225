"""Protects: a request's stations, blocks and text over HTTP: measured, of its own key only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway.test_usage import ADMIN, ALICE, BOB, bearer, gateway_with_keys
from tests.server.running import running_server, wait_until
from tests.server.tiny import tiny_engine
from twostroke.core.config import ObservabilityConfig
from twostroke.core.errors import ConfigError
from twostroke.inspector.content import ContentBook
from twostroke.inspector.recording import Recording
from twostroke.observability.tracing.call_book import CallBook
from twostroke.observability.tracing.tracer import Tracer
from twostroke.server.options import ServerOptions

CHAT = [
    {"role": "system", "content": "be short"},
    {"role": "user", "content": "the dog"},
    {"role": "assistant", "content": "barks"},
    {"role": "user", "content": "why?"},
]


@contextmanager
def serving(folder: Path, *, content: bool = True) -> Iterator[str]:
    """A server with keys and a recording in ``folder``."""
    book = ContentBook() if content else None
    tracer = Tracer(calls=CallBook(keep_unwritten=True))
    with (
        tiny_engine(
            observability=ObservabilityConfig(record=str(folder / "steps.jsonl")),
            observers=[] if book is None else [book],
            take_calls=tracer.calls.take,
        ) as engine,
        running_server(
            engine, gateway=gateway_with_keys(folder), tracer=tracer, content=book
        ) as url,
    ):
        yield url


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("keys")) as url:
        yield url


def ask(url: str, key: str = ALICE, **fields: Any) -> str:
    """A chat's request id."""
    body = {"messages": CHAT, "max_tokens": 12, "ignore_eos": True, "seed": 3} | fields
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, headers=bearer(key), timeout=30)
    assert answer.status_code == 200, answer.text
    if not fields.get("stream"):
        return str(answer.json()["id"])
    return str(json.loads(answer.text.split("\n", 1)[0].removeprefix("data: "))["id"])


def get(url: str, path: str, key: str = ADMIN) -> Any:
    answer = httpx.get(f"{url}/v1/inspect{path}", headers=bearer(key))
    assert answer.status_code == 200, answer.text
    return answer.json()


def ended_call(url: str, request_id: str) -> Any:
    """Its stations, once the server has noted the end: that may be after the client has all."""
    found: list[Any] = []

    def has_ended() -> bool:
        found[:] = [get(url, f"/request?id={request_id}")["call"]]
        return found[0]["ended"] is not None

    wait_until(has_ended)
    return found[0]


@pytest.mark.parametrize("stream", [False, True])
def test_the_stations_of_a_chat_follow_each_other(url: str, stream: bool) -> None:
    request_id = ask(url, stream=stream)
    call = ended_call(url, request_id)
    assert [station["name"] for station in call["stations"]] == [
        *("authenticated", "read", "context", "tokenise", "prepare")
    ]
    state = get(url, "/state")["ended"]
    (own,) = [request for request in state if request["request_id"] == request_id]
    times = [
        call["received"],
        *(station["end"] for station in call["stations"]),
        own["first_token_time"],
        call["first_byte"],
        call["last_byte"],
        call["ended"],
    ]
    # The first byte of a whole answer comes after the last token.
    assert [round(time, 5) for time in times] == sorted(round(time, 5) for time in times)
    assert call["streamed"] is stream and call["status"] == 200
    assert call["path"] == "/v1/chat/completions" and call["tenant"] == "alice"
    assert call["num_prompt_tokens"] == own["num_prompt_tokens"]
    assert call["context"] == {"unit": "characters", "system": 8, "history": 12, "message": 4}


def test_the_budget_of_a_chat_with_documents_is_counted_and_says_what_was_cut(url: str) -> None:
    documents = [{"text": "dogs bark at night"}, {"text": "cats sleep all the day " * 6}]
    request_id = ask(url, documents=documents, context={"max_tokens": 120})
    call = ended_call(url, request_id)
    context = call["context"]
    parts = ("system", "documents", "history", "message", "template")
    assert context["unit"] == "tokens" and context["budget"] == 120
    assert sum(context.get(part, 0) for part in parts) == call["num_prompt_tokens"] <= 120
    assert context["cut_documents"] > 0


def test_what_truncation_cuts_is_told(url: str) -> None:
    call = ended_call(url, ask(url, truncate_prompt_tokens=5))
    assert call["context"]["cut_tokens"] == call["num_prompt_tokens"] - 5 > 0


def test_a_key_sees_the_stations_the_blocks_and_the_text_of_its_own(url: str) -> None:
    request_id = ask(url, logprobs=True)
    for key in (ALICE, ADMIN):
        found = get(url, f"/request?id={request_id}&blocks=true", key)
        assert found["call"]["request_ids"] == [request_id]
        assert found["blocks"]["num_full"] > 0
        page = get(url, f"/tokens?id={request_id}", key)
        assert page["num_output"] == 12 and page["seed"] == "3"
        assert "the dog" in "".join(text or "" for text in page["texts"])
        assert all(logprob <= 0 for logprob in page["logprobs"][page["num_prompt"] :])
    found = get(url, f"/request?id={request_id}&blocks=true", BOB)
    assert found == {"call": None, "blocks": None}
    assert get(url, f"/tokens?id={request_id}", BOB) is None
    for path in ("/request?id=x", "/tokens?id=x"):
        assert httpx.get(f"{url}/v1/inspect{path}").status_code == 401


def test_pages_of_tokens(url: str) -> None:
    request_id = ask(url)
    whole = get(url, f"/tokens?id={request_id}")
    part = get(url, f"/tokens?id={request_id}&from=3&count=4")
    assert part["ids"] == whole["ids"][3:7] and part["begin"] == 3
    assert get(url, f"/tokens?id={request_id}&from=100000")["ids"] == []
    for bad in ("from=-1", "count=0", "count=99999", "from=x"):
        answer = httpx.get(f"{url}/v1/inspect/tokens?id=a&{bad}", headers=bearer(ADMIN))
        assert answer.status_code == 400 and bad.split("=")[0] in answer.text


def test_without_the_flag_no_text_is_kept(tmp_path: Path) -> None:
    with serving(tmp_path, content=False) as url:
        assert get(url, "")["content"] is False
        request_id = ask(url)
        assert get(url, f"/tokens?id={request_id}") is None
        assert ended_call(url, request_id)["num_prompt_tokens"] > 0
        seen = json.dumps([get(url, "/state"), get(url, f"/request?id={request_id}&blocks=true")])
        assert "the dog" not in seen and "why?" not in seen
    assert "the dog" not in (tmp_path / "steps.jsonl").read_text()


def test_a_recording_has_the_same_stations_and_no_text(tmp_path: Path) -> None:
    with serving(tmp_path) as url:
        request_id = ask(url, stream=True)
        call = ended_call(url, request_id)
    source = Recording(tmp_path / "steps.jsonl")
    assert source.wait_until_read(20)
    found = asyncio.run(source.call(request_id))
    assert found is not None
    assert found.request_ids == [request_id] and found.received == call["received"]
    assert [s.name for s in found.stations] == [s["name"] for s in call["stations"]]
    assert (found.first_byte, found.last_byte) == (call["first_byte"], call["last_byte"])
    assert asyncio.run(source.call("nobody")) is None
    assert source.tokens(request_id, 0, 9) is None
    source.close()
    assert "the dog" not in (tmp_path / "steps.jsonl").read_text()


def test_lone_surrogates_in_labels_do_not_end_feed_or_recording(tmp_path: Path) -> None:
    with serving(tmp_path) as url:
        body = json.dumps({"prompt": "the", "max_tokens": 3, "user": "x\ud800y"})
        answer = httpx.post(f"{url}/v1/completions", content=body, headers=bearer(ALICE))
        assert answer.status_code in (200, 400)
        request_id = ask(url)
        assert get(url, "/state")["ended"][-1]["request_id"] == request_id
        assert request_id in get(url, "/steps?from=0&to=1000")["ids"]
    assert request_id in (tmp_path / "steps.jsonl").read_text()


def test_content_without_the_inspector_is_refused() -> None:
    with pytest.raises(ConfigError, match="--inspect-content"):
        ServerOptions(inspector=False, inspect_content=True)


def test_a_search_finds_ids_tenants_and_labels_of_its_own_key(url: str) -> None:
    own = ask(url, ALICE, user="Blue 7", max_tokens=2)
    theirs = ask(url, BOB, user="blue 8", max_tokens=2)

    def found(text: str, key: str = ADMIN) -> list[str]:
        answer = get(url, f"/find?text={text}", key)
        assert all(request["step"] >= 0 for request in answer["requests"])
        return [request["request_id"] for request in answer["requests"]]

    wait_until(lambda: found("blue") == [own, theirs], 10)
    assert found(own[-8:].upper()) == [own]
    assert found("BLUE", ALICE) == [own]
    assert found(theirs, ALICE) == []
    assert set(found("alice")) >= {own} and theirs not in found("alice")
    few = get(url, "/find?text=chatcmpl&count=1")
    assert len(few["requests"]) == 1 and few["left_out"] >= 1
    answer = httpx.get(f"{url}/v1/inspect/find?text=", headers=bearer(ADMIN))
    assert answer.status_code == 400
