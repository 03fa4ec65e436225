"""The official client against a real server on loopback; the engine is scripted."""

from __future__ import annotations

import socket
from typing import Any

import httpx
import openai
import pytest

from tests.server.http_calls import USER
from tests.server.running import running_server, wait_until
from tests.server.scripted import Script, ScriptedEngine
from twostroke.core.errors import QueueFullError, RequestFailedError

TEXT = "the quick brown fox"


def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)


def test_chat_and_text() -> None:
    with running_server(ScriptedEngine()) as url, client(url) as api:
        answer: Any = api.chat.completions.create(
            model="scripted", messages=USER, n=2, logprobs=True, top_logprobs=1
        )
        assert [choice.message.content for choice in answer.choices] == [TEXT, TEXT]
        assert answer.choices[0].logprobs.content[0].token == "the"
        assert answer.usage.prompt_tokens_details.cached_tokens == 0
        text = api.completions.create(
            model="scripted", prompt=["the", "fox"], logprobs=1, extra_body={"top_k": 1}
        )
        assert [choice.text for choice in text.choices] == [TEXT, TEXT]
        assert text.choices[0].logprobs is not None
        assert api.models.list().data[0].id == "scripted"
        assert api.models.retrieve("scripted").id == "scripted"


def test_streams() -> None:
    with running_server(ScriptedEngine()) as url, client(url) as api:
        chunks: list[Any] = list(
            api.chat.completions.create(
                model="scripted", messages=USER, stream=True, stream_options={"include_usage": True}
            )
        )
        assert chunks[0].choices[0].delta.role == "assistant"
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == TEXT
        assert chunks[-1].usage.completion_tokens == 4
        pieces = api.completions.create(model="scripted", prompt="the", stream=True)
        assert "".join(piece.choices[0].text for piece in pieces) == TEXT


async def test_async_client() -> None:
    with running_server(ScriptedEngine()) as url:
        async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="none") as api:
            stream: Any = await api.chat.completions.create(
                model="scripted", messages=USER, stream=True
            )
            assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == TEXT


def test_errors_become_the_clients_own() -> None:
    engine = ScriptedEngine()
    with running_server(engine) as url, client(url) as api:
        with pytest.raises(openai.BadRequestError) as bad:
            api.completions.create(model="scripted", prompt="x", temperature=-1)
        assert bad.value.param == "temperature"
        with pytest.raises(openai.NotFoundError):
            api.completions.create(model="gpt-5", prompt="x")
        engine.script = Script(refuse=QueueFullError("full"))
        with pytest.raises(openai.RateLimitError):
            api.completions.create(model="scripted", prompt="x")
        engine.script = Script(error=RequestFailedError("pass failed"), error_at=1)
        with pytest.raises(openai.InternalServerError):
            api.completions.create(model="scripted", prompt="x")
        with pytest.raises(openai.APIError, match="pass failed"):
            list(api.completions.create(model="scripted", prompt="x", stream=True))


def test_leaving_a_stream_aborts_it() -> None:
    engine = ScriptedEngine(Script(endless=True, seconds_per_step=0.005))
    with running_server(engine) as url, client(url) as api:
        stream: Any = api.chat.completions.create(model="scripted", messages=USER, stream=True)
        assert next(iter(stream)).choices[0].delta.role == "assistant"
        assert not engine.aborted
        stream.close()
        wait_until(lambda: engine.aborted == [engine.submitted[0].request_id])


@pytest.mark.parametrize("seconds_per_step", [0.005, 60.0])
def test_leaving_before_the_answer_aborts_it(seconds_per_step: float) -> None:
    """Also during the first step of a stream, and of an answer that is not streamed."""
    engine = ScriptedEngine(Script(endless=True, seconds_per_step=seconds_per_step))
    with running_server(engine) as url:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(url + "/v1/completions", json={"prompt": "x"}, timeout=0.2)
        wait_until(lambda: len(engine.aborted) == 1)
        if seconds_per_step > 1:
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(
                    url + "/v1/completions", json={"prompt": "x", "stream": True}, timeout=0.2
                )
            wait_until(lambda: len(engine.aborted) == 2)


def test_each_step_is_one_write() -> None:
    """The role travels with the first text, ``[DONE]`` with the end of the response."""
    engine = ScriptedEngine(Script(seconds_per_step=0.2))  # so that no read finds two
    with running_server(engine) as url:
        host, port = url.removeprefix("http://").split(":")
        body = b'{"prompt": "x", "stream": true}'
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            connection.sendall(
                head + b"connection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
            )
            received = []
            while data := connection.recv(65536):
                received.append(data)
    text = b"".join(received)
    assert text.count(b"data: ") == 6  # four texts, the reason, the end
    assert len([piece for piece in received if b"data: {" in piece]) == 4
