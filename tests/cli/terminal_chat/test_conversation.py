"""Protects: what conversations remember, and what commands and failures change."""

from __future__ import annotations

import asyncio
import io
import json
import signal
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.scripted import ScriptedEngine
from twostroke.cli.session import AnswerPiece, LocalSession, RemoteSession, Session, TokenCounts
from twostroke.cli.terminal_chat.answer_view import PlainView
from twostroke.cli.terminal_chat.conversation import TerminalConversation, describe_speed
from twostroke.cli.terminal_chat.line_input import PipedLines
from twostroke.core.errors import EngineError, InvalidRequestError
from twostroke.server.application import create_app

TEXT = "the quick brown fox"


class EchoSession:
    """Answers with the number of messages it got; ``interrupt`` gets a Ctrl-C on the way."""

    chats = True

    def __init__(self) -> None:
        self.seen: list[list[Mapping[str, Any]]] = []
        self.fields: list[Mapping[str, Any]] = []
        self.fail_from = 100

    async def chat(
        self, messages: Sequence[Mapping[str, Any]], fields: Mapping[str, Any]
    ) -> AsyncGenerator[AnswerPiece]:
        self.seen.append(list(messages))
        self.fields.append(dict(fields))
        if len(self.seen) == self.fail_from:
            raise EngineError("failed", hint="again")
        yield AnswerPiece(f"{len(messages)} messages", TokenCounts(9, 4, 2))
        if messages[-1]["content"] == "interrupt":
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(10)
        if messages[-1]["content"] == "fail":
            raise EngineError("failed", hint="again")

    def surplus(self, messages: Sequence[Mapping[str, Any]], fields: Mapping[str, Any]) -> int:
        return 0

    def complete(self, prompt: str, fields: Mapping[str, Any]) -> AsyncGenerator[AnswerPiece]:
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
        TerminalConversation(
            session, PipedLines(), PlainView, system, {}, interactive=interactive
        ).run(runner)


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
    assert "forgets the conversation" in capsys.readouterr().err and not session.seen


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


def test_without_a_person_the_first_failure_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    session = EchoSession()
    with pytest.raises(EngineError, match="failed"):
        converse(session, "fail\nagain\n", monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        converse(session, "interrupt\nagain\n", monkeypatch)
    assert len(session.seen) == 2


@pytest.mark.parametrize("remote", [False, True])
def test_a_full_context_forgets_the_oldest_turns(
    remote: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The scripted model has 100 tokens; a local session keeps a quarter for the answer."""
    engine = ScriptedEngine()
    transport = httpx.ASGITransport(create_app(engine.loaded_model()))
    session: Session = (
        RemoteSession("http://test", transport=transport)
        if remote
        else LocalSession(engine.loaded_model())
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
        LocalSession(engine.loaded_model()),
        "hello\n" + "x " * 200 + "\nagain\n",
        monkeypatch,
        interactive=True,
    )
    captured = capsys.readouterr()
    assert "but 99 are available" in captured.err and "forgotten" not in captured.err
    assert captured.out.count(TEXT) == 2


def test_an_unknown_command_is_not_sent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = EchoSession()
    converse(session, "/rest\n /rest is what?\n", monkeypatch, interactive=True)
    captured = capsys.readouterr()
    assert "there is no command /rest" in captured.err and "did you mean /reset?" in captured.err
    assert [m[-1]["content"] for m in session.seen] == ["/rest is what?"]
    with pytest.raises(InvalidRequestError, match="there is no command /rest"):
        converse(session, "/rest\nhello\n", monkeypatch)
    assert len(session.seen) == 1


def test_system_prompt_is_changed_shown_and_removed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = EchoSession()
    lines = "one\n/system be long\ntwo\n/system\n/system -\n/reset\nthree\n"
    converse(session, lines, monkeypatch, system="be brief")
    openings = [messages[0] for messages in session.seen]
    assert [opening["content"] for opening in openings] == ["be brief", "be long", "three"]
    assert capsys.readouterr().err.count("system prompt: be long") == 2


def test_parameters_go_with_every_later_question(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = EchoSession()
    lines = "/set temperature 0.7\n/set top-k 5\nhi\n/set temperature default\nhi\n/set\n"
    converse(session, lines, monkeypatch)
    assert session.fields == [{"temperature": 0.7, "top_k": 5}, {"top_k": 5}]
    assert capsys.readouterr().err.endswith("top_k 5\n")
    converse(session, "/set temperature -1\n/set heat 3\nhi\n", monkeypatch, interactive=True)
    errors = capsys.readouterr().err
    assert "temperature must be" in errors and "there is no parameter heat" in errors
    assert session.fields[-1] == {}


def test_retry_asks_again_without_the_former_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = EchoSession()
    converse(session, "/retry\none\ntwo\n/retry\nthree\n", monkeypatch, interactive=True)
    assert "there is no message to answer again" in capsys.readouterr().err
    assert session.seen[1] == session.seen[2]
    assert len(session.seen[3]) == 5


def test_a_failed_retry_keeps_the_former_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = EchoSession()
    session.fail_from = 2
    converse(session, "one\n/retry\ntwo\n", monkeypatch, interactive=True)
    assert [m["content"] for m in session.seen[2]] == ["one", "1 messages", "two"]


def test_a_conversation_is_saved_and_nothing_overwritten(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    markdown, plain_json = tmp_path / "chat.md", tmp_path / "chat.json"
    lines = (
        f"grüße\n/save {markdown}\n/save {plain_json}\n/save {markdown}\n/save {tmp_path}/no/x\n"
    )
    converse(EchoSession(), lines, monkeypatch, system="be brief", interactive=True)
    text = markdown.read_text(encoding="utf-8")
    assert text == "## System\n\nbe brief\n\n## User\n\ngrüße\n\n## Assistant\n\n2 messages\n"
    messages = json.loads(plain_json.read_text(encoding="utf-8"))["messages"]
    assert [m["role"] for m in messages] == ["system", "user", "assistant"]
    errors = capsys.readouterr().err
    assert "is there already" in errors and "cannot write" in errors


def test_speed_is_noted_at_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    converse(EchoSession(), "hi\n", monkeypatch, interactive=True)
    assert "prompt 9 tokens, 4 of them cached" in capsys.readouterr().err
    converse(EchoSession(), "hi\n", monkeypatch)
    assert "TTFT" not in capsys.readouterr().err


def test_the_line_below_an_answer() -> None:
    counts = TokenCounts(prompt=140, cached=128, completion=42)
    assert (
        describe_speed(0.0351, 0.1, counts)
        == "TTFT 35 ms · 42 tokens at 410 tokens/s · prompt 140 tokens, 128 of them cached"
    )
    assert (
        describe_speed(2.04, 1, TokenCounts(9, None, 1)) == "TTFT 2.0 s · 1 token · prompt 9 tokens"
    )
    assert describe_speed(0.2, 1, None) == "TTFT 200 ms"
