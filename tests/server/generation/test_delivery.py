"""A failure while an output becomes a chunk or an answer ends its own call, with an error."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.fakes import FakeExecutor
from tests.text.tiny_tokenizers import byte_level
from twostroke.core.output import RequestOutput
from twostroke.engine.answer import CollectedAnswer
from twostroke.engine.clients.stream import AsyncStream
from twostroke.engine.clients.thread import AsyncEngine
from twostroke.engine.llm_engine import LLMEngine
from twostroke.server.application import create_app
from twostroke.server.generation.generation import Generation
from twostroke.server.http.sse import EventStream
from twostroke.server.openai.text_completions.answer import CompletionResponseFormat
from twostroke.text.tokenizer import Tokenizer

BODY = {
    "prompt": [1, 2, 3],
    "max_tokens": 20,
    "ignore_eos": True,
    "seed": 1,  # with some others an answer has a token without text, and a chunk less
    "stream": True,
    "return_token_ids": True,
}


class Panic(BaseException):
    """As pyo3's PanicException, which a bug in the tokenizers library raises."""


@pytest_asyncio.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    engine = AsyncEngine(LLMEngine(FakeExecutor(), Tokenizer(byte_level())))
    transport = httpx.ASGITransport(create_app(engine.loaded_model()), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client
    engine.close()


@pytest.mark.parametrize("failure", [ValueError, Panic])
@pytest.mark.parametrize("at", [0, 3])
async def test_a_bug_amid_a_stream(
    client: httpx.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
    failure: type[BaseException],
    at: int,
) -> None:
    """Before the first event it has a status, after it an event; other calls go on to their end."""
    chunk = CompletionResponseFormat.chunk
    calls = 0

    def fail(
        answer: CompletionResponseFormat,
        index: int,
        output: RequestOutput,
        *args: Any,
        **kwargs: Any,
    ) -> bytes:
        nonlocal calls
        if output.request_id.endswith("bad"):
            calls += 1
            if calls > at:
                raise failure("a bug")
        return chunk(answer, index, output, *args, **kwargs)

    monkeypatch.setattr(CompletionResponseFormat, "chunk", fail)
    names = iter(("before", "bad", "behind"))
    monkeypatch.setattr(
        "twostroke.server.openai.text_completions.routes.name_request",
        lambda scope, prefix: next(names),
    )
    posted = [client.post("/v1/completions", json=BODY) for _ in range(3)]
    before, bad, behind = await asyncio.wait_for(asyncio.gather(*posted), 10)
    for other in (before, behind):
        *chunks, done, _ = other.text.split("\n\n")
        assert (len(chunks), done) == (21, "data: [DONE]")
    if at == 0:
        assert (bad.status_code, bad.json()["error"]["type"]) == (500, "server_error")
    else:
        *chunks, error, done, _ = bad.text.split("\n\n")
        assert (bad.status_code, len(chunks), done) == (200, at, "data: [DONE]")
        assert json.loads(error.removeprefix("data: "))["error"]["type"] == "server_error"
    assert calls == at + 1, "after a failure there is nothing"


@pytest.mark.parametrize("failure", [ValueError, Panic])
async def test_a_bug_amid_a_whole_answer(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, failure: type[BaseException]
) -> None:
    def fail(answer: CollectedAnswer, output: RequestOutput) -> None:
        raise failure("a bug")

    monkeypatch.setattr(CollectedAnswer, "add", fail)
    response = await asyncio.wait_for(
        client.post("/v1/completions", json={**BODY, "stream": False}), 5
    )
    assert (response.status_code, response.json()["error"]["type"]) == (500, "server_error")


@pytest.mark.parametrize("stream", [True, False])
async def test_nothing_of_a_request_is_left_for_the_garbage_collector(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """In a circle of streams and listeners, prompts and answers would pile up."""
    made: list[weakref.ref[Generation]] = []

    class Watched(Generation):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            made.append(weakref.ref(self))

    monkeypatch.setattr("twostroke.server.openai.text_completions.routes.Generation", Watched)
    gc.disable()
    try:
        for _ in range(3):
            assert (
                await client.post("/v1/completions", json={**BODY, "stream": stream})
            ).status_code == 200
        assert len(made) == 3
        async with asyncio.timeout(5):  # the engine drops the last one after its last output
            while any(watched() is not None for watched in made):
                await asyncio.sleep(0.005)
    finally:
        gc.enable()


async def test_a_failure_ends_the_other_prompts_at_once(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only when the client has read the error: the engine would go on in vain."""
    aborted: list[str] = []
    abort = AsyncStream.abort

    def noted(stream: AsyncStream) -> None:
        aborted.append(stream._call.request_id)
        abort(stream)

    failed_at: list[list[str]] = []
    chunk = CompletionResponseFormat.chunk

    def fail(
        answer: CompletionResponseFormat,
        index: int,
        output: RequestOutput,
        *args: Any,
        **kwargs: Any,
    ) -> bytes:
        if index == 1 and not kwargs["first"]:
            raise ValueError("a bug")
        return chunk(answer, index, output, *args, **kwargs)

    end = EventStream.end

    def ending(stream: EventStream, frame: bytes) -> None:
        failed_at.append(list(aborted))
        end(stream, frame)

    monkeypatch.setattr(AsyncStream, "abort", noted)
    monkeypatch.setattr(CompletionResponseFormat, "chunk", fail)
    monkeypatch.setattr(EventStream, "end", ending)
    body = {**BODY, "prompt": [[1, 2, 3], [4, 5, 6]], "max_tokens": 100}
    response = await asyncio.wait_for(client.post("/v1/completions", json=body), 10)
    assert '"error"' in response.text and response.status_code == 200, response.text
    assert [len(before) for before in failed_at] == [2], (
        "both are aborted when the error is on its way"
    )
