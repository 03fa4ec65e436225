"""Protects: what sessions send, stream and raise, in this process and against servers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import httpx
import pytest

from tests.server.scripted import Script, ScriptedEngine
from twostroke.cli.flags import SamplingOptions
from twostroke.cli.generate import print_answer
from twostroke.cli.session import AnswerPiece, LocalSession, RemoteSession
from twostroke.core.errors import ConfigError, EngineError, RequestFailedError
from twostroke.server.application import create_app

TEXT = "the quick brown fox"


async def collect(pieces: AsyncIterator[AnswerPiece]) -> str:
    return "".join([piece.text async for piece in pieces])


async def test_local_session() -> None:
    engine = ScriptedEngine()
    session = LocalSession(engine.loaded_model())
    assert (
        await collect(session.chat([{"role": "user", "content": "the dog"}], {"temperature": 0}))
        == TEXT
    )
    assert await collect(session.complete("the dog", {})) == TEXT
    prompts = [engine.tokenizer.decode(request.prompt_token_ids) for request in engine.submitted]
    assert prompts == ["user: the dog\nassistant: ", "the dog"]
    assert engine.submitted[0].params.greedy
    assert engine.submitted[0].params.max_tokens is None


async def test_local_session_aborts_an_answer_that_is_left() -> None:
    engine = ScriptedEngine(Script(endless=True))
    pieces = LocalSession(engine.loaded_model()).complete("x", {})
    await anext(pieces)
    await pieces.aclose()  # type: ignore[attr-defined]
    assert len(engine.aborted) == 1


@pytest.mark.parametrize("url", ["http://test", "http://test/v1/"])
async def test_remote_session(url: str) -> None:
    engine = ScriptedEngine()
    session = RemoteSession(url, transport=httpx.ASGITransport(create_app(engine.loaded_model())))
    assert (
        await collect(session.chat([{"role": "user", "content": "the dog"}], {"max_tokens": 3}))
        == TEXT[:-3]
    )
    assert await collect(session.complete("the dog", {})) == TEXT


async def test_remote_errors() -> None:
    transport = httpx.ASGITransport(create_app(ScriptedEngine().loaded_model()))
    with pytest.raises(EngineError, match="404: the model 'gpt' does not exist"):
        await collect(RemoteSession("http://test", "gpt", transport).complete("x", {}))
    failing = ScriptedEngine(Script(error=RequestFailedError("pass failed"), error_at=2))
    with pytest.raises(EngineError, match="pass failed"):
        await collect(
            RemoteSession(
                "http://test", None, httpx.ASGITransport(create_app(failing.loaded_model()))
            ).complete("x", {})
        )
    with pytest.raises(ConfigError, match=r"cannot reach http://127\.0\.0\.1:9/v1"):
        await collect(RemoteSession("http://127.0.0.1:9").complete("x", {}))


@pytest.mark.parametrize(
    ("models", "answer"),
    [
        ("<html>", ""),
        ('{"data": []}', ""),
        ("[]", ""),
        ('{"data": [{"id": "m"}]}', "data: {}\n\n"),
        ('{"data": [{"id": "m"}]}', "data: <html>\n\n"),
        ('{"data": [{"id": "m"}]}', "<html>"),
        ('{"data": [{"id": "m"}]}', 'data: {"choices": [3]}\n\n'),
    ],
)
async def test_what_is_no_openai_server(models: str, answer: str) -> None:
    transport = httpx.MockTransport(
        lambda request: httpx.Response(200, text=models if request.method == "GET" else answer)
    )
    with pytest.raises(
        EngineError, match="http://test/v1 did not answer like an OpenAI server"
    ) as caught:
        await collect(RemoteSession("http://test", None, transport).complete("x", {}))
    assert caught.value.hint


def test_local_session_closes_its_engine() -> None:
    engine = ScriptedEngine()
    LocalSession(engine.loaded_model()).close()
    assert engine.closed


async def test_generate_prints_text_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    engine = ScriptedEngine()
    await print_answer(
        LocalSession(engine.loaded_model()), "the dog", "be brief", False, SamplingOptions()
    )
    await print_answer(
        LocalSession(engine.loaded_model()), "the dog", None, True, SamplingOptions()
    )
    assert capsys.readouterr() == (f"{TEXT}\n{TEXT}\n", "")
    with pytest.raises(ConfigError, match="--system"):
        await print_answer(
            LocalSession(engine.loaded_model()), "the dog", "be brief", True, SamplingOptions()
        )
    prompts = [engine.tokenizer.decode(request.prompt_token_ids) for request in engine.submitted]
    assert prompts == ["system: be brief\nuser: the dog\nassistant: ", "the dog"]


async def test_both_sessions_count_the_same_tokens() -> None:
    """The line below an answer says the same, wherever the model runs."""
    local = LocalSession(ScriptedEngine().loaded_model())
    remote = RemoteSession(
        "http://test", transport=httpx.ASGITransport(create_app(ScriptedEngine().loaded_model()))
    )
    question = [{"role": "user", "content": "the dog"}]
    counts = []
    for session in (local, remote):
        pieces = [piece async for piece in session.chat(question, {})]
        counts.append([piece.counts for piece in pieces if piece.counts][-1])
    assert counts[0] == counts[1]
    assert counts[0].prompt > 0 and counts[0].completion > 0


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": "x"}, {"prompt_tokens": 3}, []])
async def test_a_server_need_not_count(usage: object) -> None:
    chunk = {"choices": [{"delta": {"content": "hi"}}], "usage": usage}
    transport = httpx.MockTransport(
        lambda request: httpx.Response(200, text=f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n")
    )
    session = RemoteSession("http://test", "m", transport)
    assert [piece async for piece in session.complete("x", {})] == [AnswerPiece("hi")]
