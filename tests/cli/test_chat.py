"""Protects: what conversations remember, and what /reset and failures take back."""

from __future__ import annotations

import asyncio
import io
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import httpx
import pytest

from tests.server.scripted import Script, ScriptedEngine
from twostroke.cli.chat import Conversation, prompt_text
from twostroke.cli.flags import SamplingOptions
from twostroke.cli.generate import print_answer
from twostroke.cli.session import LocalSession, RemoteSession, Session
from twostroke.core.errors import ConfigError, EngineError, RequestFailedError
from twostroke.server.application import create_app

TEXT = "the quick brown fox"


class EchoSession:
    """Answers with the number of messages it got; ``interrupt`` gets a Ctrl-C on the way."""

    chats = True

    def __init__(self) -> None:
        self.seen: list[list[Mapping[str, str]]] = []

    async def chat(
        self, messages: Sequence[Mapping[str, str]], fields: Mapping[str, Any]
    ) -> AsyncIterator[str]:
        self.seen.append(list(messages))
        yield f"{len(messages)} messages"
        if messages[-1]["content"] == "interrupt":
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(10)
        if messages[-1]["content"] == "fail":
            raise EngineError("failed", hint="again")

    def surplus(self, messages: Sequence[Mapping[str, str]], fields: Mapping[str, Any]) -> int:
        return 0

    def complete(self, prompt: str, fields: Mapping[str, Any]) -> AsyncIterator[str]:
        raise AssertionError("not called")

    def close(self) -> None:
        raise AssertionError("not called")


def converse(
    session: Session,
    lines: str,
    monkeypatch: pytest.MonkeyPatch,
    system: str | None = None,
    *,
    interactive: bool = False,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    with asyncio.Runner() as runner:
        Conversation(session, system, {}, interactive=interactive).run(runner)


def test_turns_are_remembered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = EchoSession()
    converse(
        session, "hello\n\nand now\n/reset\nafresh\n/exit\nnever\n", monkeypatch, system="be brief"
    )
    assert capsys.readouterr().out == "2 messages\n4 messages\n2 messages\n"
    assert [message["role"] for message in session.seen[1]] == [
        "system",
        "user",
        "assistant",
        "user",
    ]
    assert session.seen[1][2]["content"] == "2 messages"
    assert session.seen[2][0]["content"] == "be brief"


def test_help_is_shown_and_not_sent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = EchoSession()
    converse(session, "/help\n/exit\n", monkeypatch)
    assert "/reset forgets" in capsys.readouterr().err and not session.seen


def test_interrupt_stops_the_answer_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = EchoSession()
    converse(session, "interrupt\nand now\n", monkeypatch, interactive=True)
    assert "(stopped)" in capsys.readouterr().err
    assert session.seen[1][1] == {"role": "assistant", "content": "1 messages"}


def test_a_failed_turn_is_taken_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = EchoSession()
    converse(session, "fail\nagain\n", monkeypatch, interactive=True)
    assert "error: failed" in capsys.readouterr().err
    assert len(session.seen[1]) == 1


def test_readline_does_not_count_the_style(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert prompt_text() == "\001\033[1m\002> \001\033[0m\002"
    monkeypatch.setenv("NO_COLOR", "1")
    assert prompt_text() == "> "


def test_without_a_person_the_first_failure_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    session = EchoSession()
    with pytest.raises(EngineError, match="failed"):
        converse(session, "fail\nagain\n", monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        converse(session, "interrupt\nagain\n", monkeypatch)
    assert len(session.seen) == 2


async def collect(pieces: AsyncIterator[str]) -> str:
    return "".join([piece async for piece in pieces])


async def test_local_session() -> None:
    engine = ScriptedEngine()
    session = LocalSession(engine)
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
    pieces = LocalSession(engine).complete("x", {})
    await anext(pieces)
    await pieces.aclose()  # type: ignore[attr-defined]
    assert len(engine.aborted) == 1


@pytest.mark.parametrize("url", ["http://test", "http://test/v1/"])
async def test_remote_session(url: str) -> None:
    engine = ScriptedEngine()
    session = RemoteSession(url, transport=httpx.ASGITransport(create_app(engine)))
    assert (
        await collect(session.chat([{"role": "user", "content": "the dog"}], {"max_tokens": 3}))
        == TEXT[:-3]
    )
    assert await collect(session.complete("the dog", {})) == TEXT


async def test_remote_errors() -> None:
    transport = httpx.ASGITransport(create_app(ScriptedEngine()))
    with pytest.raises(EngineError, match="404: the model 'gpt' does not exist"):
        await collect(RemoteSession("http://test", "gpt", transport).complete("x", {}))
    failing = ScriptedEngine(Script(error=RequestFailedError("pass failed"), error_at=2))
    with pytest.raises(EngineError, match="pass failed"):
        await collect(
            RemoteSession("http://test", None, httpx.ASGITransport(create_app(failing))).complete(
                "x", {}
            )
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
    LocalSession(engine).close()
    assert engine.closed


async def test_generate_prints_text_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    engine = ScriptedEngine()
    await print_answer(LocalSession(engine), "the dog", "be brief", False, SamplingOptions())
    await print_answer(LocalSession(engine), "the dog", None, True, SamplingOptions())
    assert capsys.readouterr() == (f"{TEXT}\n{TEXT}\n", "")
    with pytest.raises(ConfigError, match="--system"):
        await print_answer(LocalSession(engine), "the dog", "be brief", True, SamplingOptions())
    prompts = [engine.tokenizer.decode(request.prompt_token_ids) for request in engine.submitted]
    assert prompts == ["system: be brief\nuser: the dog\nassistant: ", "the dog"]


@pytest.mark.parametrize("remote", [False, True])
def test_a_full_context_forgets_the_oldest_turns(
    remote: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The scripted model has 100 tokens; a local session keeps a quarter for the answer."""
    engine = ScriptedEngine()
    transport = httpx.ASGITransport(create_app(engine))
    session: Session = (
        RemoteSession("http://test", transport=transport) if remote else LocalSession(engine)
    )
    lines = "the first dog\n" + "the lazy dog jumps over it\n" * 4
    converse(session, lines, monkeypatch, "be brief", interactive=True)
    captured = capsys.readouterr()
    assert captured.out.count(TEXT) == 5
    assert "forgotten" in captured.err
    last = engine.tokenizer.decode(engine.submitted[-1].prompt_token_ids, skip_special_tokens=False)
    assert (
        "be brief" in last
        and "the first dog" not in last
        and last.count("lazy") >= (2 if remote else 1)
    )
    assert len(engine.submitted[-1].prompt_token_ids) <= (99 if remote else 75)


def test_a_message_too_long_for_the_context_is_taken_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = ScriptedEngine()
    converse(
        LocalSession(engine), "hello\n" + "x " * 200 + "\nagain\n", monkeypatch, interactive=True
    )
    captured = capsys.readouterr()
    assert "but 99 are available" in captured.err and "forgotten" not in captured.err
    assert captured.out.count(TEXT) == 2
