"""Conversations: kept by key, with items of their own, and gone on with by responses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.server.http_calls import client_for
from tests.server.responses.responding import (
    FLAT_WEATHER,
    client_of,
    engine_that_says,
    last_prompt,
    sdk,
)
from tests.server.running import running_server
from tests.server.scripted import Script, ScriptedEngine
from twostroke.core.errors import RequestFailedError
from twostroke.gateway.gateway import Gateway
from twostroke.gateway.options import GatewayOptions
from twostroke.server.responses.conversations.store import ConversationStore
from twostroke.server.responses.items import listed_items
from twostroke.server.responses.store import ResponseStore

HELLO: Any = {"type": "message", "role": "user", "content": "hello"}
NEXT: Any = {"type": "message", "role": "user", "content": "and now?"}
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Bern"}}</tool_call>'


@pytest.fixture
def engine() -> ScriptedEngine:
    return engine_that_says("Grüezi")


@pytest.fixture
def client(engine: ScriptedEngine) -> Iterator[openai.OpenAI]:
    with client_of(engine) as client:
        yield client


def texts(client: openai.OpenAI, conversation_id: str) -> list[str]:
    """Of all items, the oldest first."""
    items = client.conversations.items.list(conversation_id, order="asc", limit=100)
    return [json.dumps(item.to_dict(), ensure_ascii=False) for item in items]


def test_the_official_client_makes_changes_and_deletes_one(client: openai.OpenAI) -> None:
    made = client.conversations.create(items=[HELLO], metadata={"a": "b"})
    assert made.object == "conversation" and made.id.startswith("conv_")
    assert client.conversations.retrieve(made.id) == made
    changed = client.conversations.update(made.id, metadata={"c": "d"})
    assert (changed.id, changed.metadata) == (made.id, {"c": "d"})
    assert client.conversations.retrieve(made.id) == changed
    deleted = client.conversations.delete(made.id)
    assert (deleted.object, deleted.deleted) == ("conversation.deleted", True)
    for call in (client.conversations.retrieve, client.conversations.delete):
        with pytest.raises(openai.NotFoundError) as caught:
            call(made.id)
        assert caught.value.code == "conversation_not_found"


def test_items_are_added_read_and_deleted(client: openai.OpenAI) -> None:
    name = client.conversations.create().id
    assert texts(client, name) == []
    mine: Any = {**NEXT, "id": "msg_mine"}
    added = client.conversations.items.create(name, items=[HELLO, mine])
    assert added.data[1].id == "msg_mine"
    again = client.conversations.items.create(name, items=[mine])
    assert again.data[0].id != "msg_mine"  # ids are unique within a conversation
    first = added.data[0]
    assert first.id is not None
    assert client.conversations.items.retrieve(first.id, conversation_id=name) == first
    pages = client.conversations.items.list(name, limit=1)
    assert [item.id for item in pages] == [again.data[0].id, "msg_mine", first.id]
    client.conversations.items.delete(first.id, conversation_id=name)
    with pytest.raises(openai.NotFoundError) as caught:
        client.conversations.items.retrieve(first.id, conversation_id=name)
    assert caught.value.param == "item_id"
    assert len(texts(client, name)) == 2


def test_responses_go_on_with_it(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    name = client.conversations.create(items=[HELLO]).id
    engine.script.pieces = (CALL,)
    tools: Any = [FLAT_WEATHER]
    first = client.responses.create(input=[NEXT], conversation=name, tools=tools)
    assert first.conversation is not None and first.conversation.id == name
    call: Any = first.output[0]
    engine.script.pieces = ("It rains.",)
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    chosen: Any = {"model": "scripted", "conversation": {"id": name}}
    with client.responses.stream(input=[output], **chosen) as stream:
        stream.until_done()
    prompt = last_prompt(engine)
    assert prompt.index("hello") < prompt.index("and now?") < prompt.index("rain")
    kinds = [json.loads(text)["type"] for text in texts(client, name)]
    assert kinds == ["message", "message", "function_call", "function_call_output", "message"]
    client.responses.create(conversation=name, store=False, input="x")
    assert len(texts(client, name)) == 7  # what is not stored is added all the same
    referred: Any = {"type": "item_reference", "id": json.loads(texts(client, name)[0])["id"]}
    client.responses.create(input=[referred])
    assert "hello" in last_prompt(engine)


def test_what_failed_is_not_added(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    name = client.conversations.create(items=[HELLO]).id
    engine.script.error = RequestFailedError("broken")
    with pytest.raises(openai.APIError):
        client.responses.create(input="x", conversation=name)
    assert len(texts(client, name)) == 1
    engine.script.error = None
    for fields in (
        {"conversation": name, "previous_response_id": "resp_x"},
        {"conversation": 5},
        {"conversation": {"id": name, "x": 1}},
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(input="x", **fields)
        assert str(caught.value.param).startswith("conversation")
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.create(input="x", conversation="conv_x")
    assert missing.value.param == "conversation"


def test_a_conversation_is_no_response(client: openai.OpenAI) -> None:
    """They lie in one table."""
    name = client.conversations.create(items=[HELLO]).id
    for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError):
            call(name)
    with pytest.raises(openai.NotFoundError):
        client.responses.input_items.list(name)
    with pytest.raises(openai.BadRequestError):
        client.responses.create(input="x", previous_response_id=name)
    response = client.responses.create(input="x")
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(response.id)
    assert client.conversations.retrieve(name).id == name


def test_each_key_sees_its_own() -> None:
    gateway = Gateway(GatewayOptions(api_key=("sk-alice", "sk-bob")))
    with (
        running_server(ScriptedEngine(), gateway=gateway) as url,
        sdk(url, "sk-alice") as alice,
        sdk(url, "sk-bob") as bob,
    ):
        name = alice.conversations.create(items=[HELLO]).id
        for call in (
            bob.conversations.retrieve,
            bob.conversations.delete,
            bob.conversations.items.list,
            lambda name: bob.conversations.update(name, metadata={}),
            lambda name: bob.conversations.items.create(name, items=[NEXT]),
            lambda name: bob.responses.create(input="x", conversation=name),
        ):
            with pytest.raises(openai.NotFoundError) as caught:
                call(name)
            assert caught.value.code == "conversation_not_found"
        assert len(texts(alice, name)) == 1


async def test_a_file_outlives_the_server(tmp_path: Path) -> None:
    """What is added soon is there once the store has been closed."""
    path = str(tmp_path / "responses.db")
    items = listed_items("hello")
    store = ResponseStore(path, 2**20)
    name = (await ConversationStore(store).create("alice", {}, items)).id
    ConversationStore(store).extend("alice", name, lambda: listed_items("again"))
    await store.close()
    store = ResponseStore(path, 2**20)
    kept = await ConversationStore(store).read("alice", name)
    assert kept.items[0] == items[0] and len(kept.items) == 2
    await store.close()


def test_bounds(client: openai.OpenAI) -> None:
    """What is too large is refused, and what is there stays."""
    with client_of(ScriptedEngine(Script()), responses_store_size=2**20) as small:
        name = small.conversations.create(items=[HELLO]).id
        large: Any = {**HELLO, "content": "x" * 300_000}
        for call in (
            lambda: small.conversations.items.create(name, items=[large]),
            lambda: small.conversations.create(items=[large]),
        ):
            with pytest.raises(openai.BadRequestError, match="too large"):
                call()
        assert len(texts(small, name)) == 1
    for metadata in ({str(i): "" for i in range(17)}, {"k": "v" * 513}):
        with pytest.raises(openai.BadRequestError) as caught:
            client.conversations.create(metadata=metadata)
        assert caught.value.param == "metadata"


async def test_mistakes_are_named() -> None:
    async with client_for(ScriptedEngine()) as client:
        made = (await client.post("/v1/conversations", json={})).json()["id"]
        for path, body, param in (
            ("", {"items": [{"role": "robot", "content": "x"}]}, "items[0].role"),
            ("", {"items": [{"type": "item_reference", "id": "x"}]}, "items[0].id"),
            ("", {"metadata": {"k": 1}}, "metadata.k"),
            ("", {"topic": "x"}, "topic"),
            (f"/{made}/items", {}, "items"),
            (f"/{made}/items", {"items": 5}, "items"),
        ):
            answer = await client.post(f"/v1/conversations{path}", json=body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
        surrogate = rb'{"items": [{"role": "user", "content": "\ud800"}]}'
        headers = {"content-type": "application/json"}
        for path in ("", f"/{made}/items"):
            answer = await client.post(
                f"/v1/conversations{path}", content=surrogate, headers=headers
            )
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "items")
