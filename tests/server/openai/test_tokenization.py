"""Text to tokens and back, in vLLM's shapes."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import httpx
import pytest

from tests.server.http_calls import USER, any_engine, client_for
from tests.server.openai.tools.test_tools import HERMES, WEATHER
from tests.server.scripted import Script, ScriptedEngine
from twostroke.server.generation.encoding import MAX_TEXT_BYTES, VERY_LONG_TEXT


async def ask(
    path: str, body: dict[str, Any], engine: ScriptedEngine | None = None
) -> httpx.Response:
    async with client_for(engine or any_engine(), served_model_name=("scripted",)) as client:
        return await client.post(path, json=body)


async def test_a_prompt_there_and_back() -> None:
    engine = ScriptedEngine()
    answer = (await ask("/tokenize", {"model": "scripted", "prompt": "the dog"}, engine)).json()
    assert answer["tokens"] == engine.tokenizer.encode("the dog")
    assert answer == {
        "count": len(answer["tokens"]),
        "max_model_len": 100,
        "tokens": answer["tokens"],
        "token_strs": None,
    }
    back = await ask("/detokenize", {"model": "scripted", "tokens": answer["tokens"]}, engine)
    assert back.json() == {"prompt": "the dog"}


async def test_messages_are_what_a_chat_would_send() -> None:
    engine = ScriptedEngine()
    answer = (await ask("/tokenize", {"messages": USER}, engine)).json()
    closed = (
        await ask("/tokenize", {"messages": USER, "add_generation_prompt": False}, engine)
    ).json()
    async with client_for(engine) as client:
        chat = await client.post(
            "/v1/chat/completions", json={"messages": USER, "return_token_ids": True}
        )
    assert answer["tokens"] == chat.json()["prompt_token_ids"]
    assert answer["tokens"][: closed["count"]] == closed["tokens"]
    assert closed["count"] < answer["count"]


async def test_tools_are_counted_as_a_chat_would_send_them() -> None:
    engine = ScriptedEngine(Script(max_model_len=2000), template=HERMES)
    body = {"messages": USER, "tools": [WEATHER]}
    answer = (await ask("/tokenize", body, engine)).json()
    async with client_for(engine) as client:
        chat = await client.post("/v1/chat/completions", json={**body, "return_token_ids": True})
    assert answer["tokens"] == chat.json()["prompt_token_ids"]
    assert "get_weather" in engine.tokenizer.decode(answer["tokens"])
    for wrong in ({"prompt": "a", "tools": [WEATHER]}, {**body, "tools": [WEATHER, WEATHER]}):
        assert (await ask("/tokenize", wrong)).json()["error"]["param"].startswith("tools")


async def test_token_strs_are_the_vocabularys() -> None:
    engine = ScriptedEngine()
    answer = (await ask("/tokenize", {"prompt": "a dog", "return_token_strs": True}, engine)).json()
    assert answer["token_strs"] == [
        engine.tokenizer.backend.id_to_token(token) for token in answer["tokens"]
    ]
    assert "".join(answer["token_strs"]).replace("\u0120", " ") == "a dog"


async def test_empty_is_not_an_error() -> None:
    assert (await ask("/tokenize", {"prompt": ""})).json()["count"] == 0
    assert (await ask("/detokenize", {"tokens": []})).json() == {"prompt": ""}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": USER}, "prompt"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": USER, "chat_template": "{{ x }}"}, "chat_template"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": "yes"}, "add_special_tokens"),
        ("/tokenize", {"prompt": "a", "truncate": 3}, "truncate"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [1, -1]}, "tokens"),
        ("/detokenize", {"tokens": [340]}, "tokens"),
        ("/detokenize", {"tokens": "1 2"}, "tokens"),
        ("/detokenize", {"tokens": [2**80]}, "tokens"),
    ],
)
async def test_bad_bodies_name_their_field(path: str, body: dict[str, Any], param: str) -> None:
    response = await ask(path, body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {"prompt": "x" * (MAX_TEXT_BYTES + 1)}, "prompt"),
        (
            "/tokenize",
            {"messages": [{"role": "user", "content": "x" * (MAX_TEXT_BYTES + 1)}]},
            "messages",
        ),
        (
            "/v1/completions",
            {"prompt": "x" * (MAX_TEXT_BYTES + 1), "truncate_prompt_tokens": 5},
            "prompt",
        ),
        (
            "/v1/completions",
            {"prompt": "\u4e00" * (MAX_TEXT_BYTES // 3 + 1), "truncate_prompt_tokens": 5},
            "prompt",
        ),
        (
            "/v1/chat/completions",
            {
                "messages": [{"role": "user", "content": "x" * (MAX_TEXT_BYTES + 1)}],
                "truncate_prompt_tokens": 5,
            },
            "messages",
        ),
    ],
)
async def test_no_text_is_encoded_that_is_too_long_for_memory(
    path: str, body: dict[str, Any], param: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tokenizer takes 250 bytes per character, even where most tokens are cut off later, and a
    list of four million tokens stalls the server."""
    engine = ScriptedEngine()
    monkeypatch.setattr(engine.tokenizer, "encode", lambda *_, **__: 1 / 0)
    response = await ask(path, body, engine)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (param, "context_length_exceeded")
    assert str(MAX_TEXT_BYTES) in error["message"]


async def test_two_very_long_texts_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, lock = ScriptedEngine(), threading.Lock()
    running = most_at_once = 0

    def encode(*_: object, **__: object) -> list[int]:
        nonlocal running, most_at_once
        with lock:
            running += 1
            most_at_once = max(most_at_once, running)
        time.sleep(0.02)
        with lock:
            running -= 1
        return [1]

    monkeypatch.setattr(engine.tokenizer, "encode", encode)
    async with client_for(engine) as client:
        body = {"prompt": "x" * (VERY_LONG_TEXT + 1)}
        await asyncio.gather(*(client.post("/tokenize", json=body) for _ in range(6)))
    assert most_at_once == 2


async def test_other_models_are_not_here() -> None:
    assert (await ask("/tokenize", {"model": "gpt", "prompt": "a"})).status_code == 404
    assert (await ask("/detokenize", {"model": "gpt", "tokens": [1]})).status_code == 404


async def test_what_a_client_that_renders_needs() -> None:
    """LM Evaluation Harness reads these to count and to render by itself."""
    engine = ScriptedEngine()
    async with client_for(engine) as client:
        info = (await client.get("/tokenizer_info")).json()
        load = (await client.get("/load")).json()
    assert info["chat_template"] == engine.tokenizer.chat_templates["default"]
    assert (info["model_max_length"], info["vocab_size"]) == (100, engine.tokenizer.vocab_size)
    assert {"bos_token", "eos_token", "pad_token", "tokenizer_class"} <= info.keys()
    assert load == {"server_load": 0}
