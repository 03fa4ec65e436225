"""Stored responses: read, listed, cancelled, deleted, each key its own, and kept over a restart."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.server.dialogues import events_of
from tests.server.responses.responding import client_of, last_prompt, sdk
from tests.server.running import running_process, running_server, wait_until
from tests.server.scripted import Script, ScriptedEngine
from twostroke.core.errors import RequestFailedError
from twostroke.gateway.gateway import Gateway
from twostroke.gateway.options import GatewayOptions

TEXT = "the quick brown fox"
SLOW = Script(endless=True, seconds_per_step=0.01)


@contextmanager
def serving(engine: ScriptedEngine | None = None) -> Iterator[tuple[str, openai.OpenAI]]:
    with running_server(engine or ScriptedEngine()) as url, sdk(url) as client:
        yield url, client


def wait_for_the_end(client: openai.OpenAI, response_id: str) -> Any:
    deadline = time.monotonic() + 10
    while (response := client.responses.retrieve(response_id)).status in ("queued", "in_progress"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return response


def test_what_is_stored_is_read_and_deleted() -> None:
    with serving() as (url, client):
        response = client.responses.create(model="scripted", input="x", metadata={"k": "v"})
        assert client.responses.retrieve(response.id) == response
        client.responses.delete(response.id)
        deleted = httpx.delete(f"{url}/v1/responses/{response.id}")
        assert deleted.status_code == 404
        assert deleted.json()["error"]["code"] == "response_not_found"
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(response.id)


def test_the_routes_without_v1() -> None:
    with running_server(ScriptedEngine()) as url:
        response = httpx.post(f"{url}/responses", json={"input": "x"}).json()
        address = f"{url}/responses/{response['id']}"
        assert httpx.get(address).json() == response
        assert httpx.get(f"{address}/input_items").json()["has_more"] is False
        assert httpx.post(f"{address}/cancel").status_code == 400
        assert httpx.delete(address).json() == {
            "id": response["id"],
            "object": "response",
            "deleted": True,
        }


def test_what_is_not_to_be_stored_is_not() -> None:
    with serving() as (_, client):
        response = client.responses.create(model="scripted", input="x", store=False)
        for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
            with pytest.raises(openai.NotFoundError):
                call(response.id)
        with pytest.raises(openai.BadRequestError, match="not stored"):
            client.responses.create(
                model="scripted", input="x", previous_response_id=response.id, store=False
            )


def test_a_streamed_response_is_stored_when_its_last_event_comes() -> None:
    with serving() as (_, client):
        for _ in range(20):
            with client.responses.stream(model="scripted", input="x") as stream:
                final = stream.get_final_response()
            assert client.responses.retrieve(final.id).output_text == TEXT


def test_input_items_in_pages() -> None:
    items: Any = [{"role": "user", "content": f"item {i}"} for i in range(5)]
    items[3]["id"] = items[4]["id"] = "msg_twice"
    items += [
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "c1",
            "output": [{"type": "input_text", "text": "y"}],
        },
    ]
    with client_of(ScriptedEngine(Script(max_model_len=1000))) as client:
        response = client.responses.create(model="scripted", input=items)
        listed: list[Any] = list(
            client.responses.input_items.list(response.id, order="asc", limit=2)
        )
        assert [item.type for item in listed] == ["message"] * 5 + [
            "function_call",
            "function_call_output",
        ]
        assert [item.content[0].text for item in listed[:5]] == [f"item {i}" for i in range(5)]
        assert len({item.id for item in listed}) == 7 and listed[3].id == "msg_twice"
        page = client.responses.input_items.list(response.id, limit=3)
        assert [item.id for item in page.data] == [item.id for item in listed[:3:-1]]
        assert page.has_more is True
        end = client.responses.input_items.list(response.id, after=listed[0].id)
        assert (end.data, end.has_more) == ([], False)
        for wrong in ({"limit": 0}, {"limit": 101}, {"after": "no"}, {"order": "up"}):
            with pytest.raises(openai.BadRequestError):
                client.responses.input_items.list(response.id, **wrong)


def test_each_key_sees_its_own() -> None:
    gateway = Gateway(GatewayOptions(api_key=("sk-alice", "sk-bob")))
    engine = ScriptedEngine(SLOW)
    with (
        running_server(engine, gateway=gateway) as url,
        sdk(url, "sk-alice") as alice,
        sdk(url, "sk-bob") as bob,
    ):
        running = alice.responses.create(model="scripted", input="x", background=True)
        wait_until(lambda: alice.responses.retrieve(running.id).status == "in_progress")
        engine.script = Script()
        ended = alice.responses.create(model="scripted", input="secret")
        for response in (running, ended):
            for call in (
                bob.responses.retrieve,
                bob.responses.delete,
                bob.responses.cancel,
                bob.responses.input_items.list,
            ):
                with pytest.raises(openai.NotFoundError) as caught:
                    call(response.id)
                assert caught.value.code == "response_not_found"
            with pytest.raises(openai.BadRequestError) as refused:
                bob.responses.create(model="scripted", input="x", previous_response_id=response.id)
            assert refused.value.code == "previous_response_not_found"
        assert alice.responses.retrieve(ended.id).output_text == TEXT
        assert alice.responses.cancel(running.id).status == "cancelled"


# ---- in the background ---------------------------------------------------------------------------


def test_the_background_runs_on_by_itself() -> None:
    engine = ScriptedEngine(Script(seconds_per_step=0.05))
    with serving(engine) as (_, client):
        begun = client.responses.create(model="scripted", input="x", background=True)
        assert (begun.status, begun.output) == ("queued", [])
        with pytest.raises(openai.BadRequestError, match="has not ended"):
            client.responses.create(model="scripted", input="x", previous_response_id=begun.id)
        ended = wait_for_the_end(client, begun.id)
        assert (ended.status, ended.output_text, ended.background) == ("completed", TEXT, True)
        client.responses.create(model="scripted", input="y", previous_response_id=begun.id)
        assert last_prompt(engine).startswith(f"user: x\nassistant: {TEXT}\nuser: y")


def test_the_background_shows_what_there_is_and_can_be_cancelled() -> None:
    engine = ScriptedEngine(SLOW)
    with serving(engine) as (_, client):
        begun = client.responses.create(model="scripted", input="x", background=True)
        wait_until(lambda: TEXT in client.responses.retrieve(begun.id).output_text)
        assert client.responses.retrieve(begun.id).status == "in_progress"
        cancelled: Any = client.responses.cancel(begun.id)
        assert (cancelled.status, cancelled.output[0].status) == ("cancelled", "incomplete")
        assert engine.aborted == [engine.submitted[0].request_id]
        assert client.responses.cancel(begun.id) == cancelled == client.responses.retrieve(begun.id)
        other = client.responses.create(model="scripted", input="x", background=True)
        client.responses.delete(other.id)
        wait_until(lambda: len(engine.aborted) == 2)
        engine.script = Script()
        with pytest.raises(openai.BadRequestError, match="only a response in the background"):
            client.responses.cancel(client.responses.create(model="scripted", input="x").id)


def test_the_background_fails_with_a_reason() -> None:
    engine = ScriptedEngine(Script(error=RequestFailedError("pass failed"), error_at=2))
    with serving(engine) as (_, client):
        begun = client.responses.create(model="scripted", input="x", background=True)
        failed = wait_for_the_end(client, begun.id)
        assert failed.status == "failed" and "pass failed" in failed.error.message
        assert failed.output_text == "the quick "


def test_what_ends_before_its_first_token_has_no_output() -> None:
    engine = ScriptedEngine(Script(error=RequestFailedError("pass failed")))
    with serving(engine) as (_, client):
        begun = client.responses.create(model="scripted", input="x", background=True)
        assert wait_for_the_end(client, begun.id).output == []
        engine.script = Script(endless=True, seconds_per_step=60)
        begun = client.responses.create(model="scripted", input="x", background=True)
        cancelled = client.responses.cancel(begun.id)
        assert (cancelled.status, cancelled.output) == ("cancelled", [])


def test_a_drain_lets_the_background_finish(tmp_path: Path) -> None:
    options: dict[str, Any] = {"port": 0, "responses_store": str(tmp_path / "responses.db")}
    script = {"pieces": ["a "] * 30, "seconds_per_step": 0.02}
    serve = ("-m", "tests.server.serve_scripted")
    with running_process(*serve, json.dumps({**options, "script": script})) as server:
        with sdk(server.url()) as client:
            begun = client.responses.create(model="scripted", input="x", background=True)
            server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
    with running_process(*serve, json.dumps(options)) as server, sdk(server.url()) as client:
        assert client.responses.retrieve(begun.id).output_text == "a " * 30


def test_a_client_that_leaves_a_background_stream_comes_back() -> None:
    """No event is lost or comes twice, whenever it comes back; the response runs on meanwhile."""
    engine = ScriptedEngine(Script(pieces=("a ", "b ") * 20, seconds_per_step=0.01))
    with serving(engine) as (url, client):
        first = []
        with client.responses.create(
            model="scripted", input="x", background=True, stream=True
        ) as stream:
            for event in stream:
                first.append(event)
                if len(first) == 9:
                    break
        begun: Any = first[0]
        second = list(
            client.responses.retrieve(
                begun.response.id, stream=True, starting_after=first[-1].sequence_number
            )
        )
        assert not engine.aborted
        numbers = [event.sequence_number for event in [*first, *second]]
        assert numbers == list(range(len(numbers)))
        last: Any = second[-1]
        assert last.type == "response.completed"
        assert last.response.output_text == "a b " * 20
        address = f"{url}/v1/responses/{begun.response.id}"
        again = events_of(httpx.get(address, params={"stream": True}).text)
        assert [event["sequence_number"] for event in again] == numbers
        assert [event["type"] for event in again[:4]] == [
            "response.created",
            "response.queued",
            "response.in_progress",
            "response.output_item.added",
        ]
        assert again[0]["response"]["status"] == "queued"
        rest = httpx.get(address, params={"stream": True, "starting_after": numbers[-3]}).text
        assert events_of(rest) == again[-2:]


def test_two_clients_follow_one_response() -> None:
    engine = ScriptedEngine(SLOW)
    with serving(engine) as (_, client):
        stream = client.responses.create(model="scripted", input="x", background=True, stream=True)
        begun: Any = next(iter(stream))
        with client.responses.retrieve(begun.response.id, stream=True) as other:
            events = iter(other)
            assert next(events).sequence_number == 0
            client.responses.cancel(begun.response.id)
            for last in (list(stream)[-1], list(events)[-1]):
                assert last.type == "response.incomplete"
                assert last.response.status == "cancelled"


def test_only_events_that_were_kept_are_streamed_again() -> None:
    with serving() as (url, client):
        response = client.responses.create(model="scripted", input="x")
        for query in ("stream=true", "starting_after=3", "stream=maybe", "starting_after=-1"):
            answer = httpx.get(f"{url}/v1/responses/{response.id}?{query}")
            assert answer.status_code == 400, query


# ---- over a restart ------------------------------------------------------------------------------


def test_a_file_outlives_the_server(tmp_path: Path) -> None:
    path = tmp_path / "responses.db"
    options = json.dumps({"port": 0, "responses_store": str(path)})
    slow = json.dumps(
        {
            "port": 0,
            "responses_store": str(path),
            "script": {"endless": True, "seconds_per_step": 0.01},
        }
    )
    serve = ("-m", "tests.server.serve_scripted")
    with running_process(*serve, options) as server, sdk(server.url()) as client:
        first = client.responses.create(model="scripted", input="one")
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
    assert path.stat().st_mode & 0o77 == 0
    with running_process(*serve, slow) as server, sdk(server.url()) as client:
        assert client.responses.retrieve(first.id) == first
        lost = client.responses.create(model="scripted", input="x", background=True)
        client.responses.retrieve(first.id)  # behind the write of the other one
    with running_process(*serve, options) as server, sdk(server.url()) as client:
        after = client.responses.retrieve(lost.id)
        assert after.status == "failed" and after.error is not None
        assert "stopped" in after.error.message
        second = client.responses.create(
            model="scripted", input="two", previous_response_id=first.id
        )
        assert second.usage is not None and first.usage is not None
        assert second.usage.input_tokens > first.usage.input_tokens


def test_a_store_that_cannot_be_used_ends_the_start(tmp_path: Path) -> None:
    path = tmp_path / "responses.db"
    path.write_text("this is no database, but long enough to be taken for one" * 20)
    options = json.dumps({"port": 0, "responses_store": str(path)})
    with running_process("-m", "tests.server.serve_scripted", options) as server:
        assert server.end() != 0
        assert f"cannot use --responses-store {path}" in server.stderr
