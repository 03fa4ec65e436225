"""Protects: calls are carried out and shown, their number is bounded, and no text is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import httpx
import pytest

from tests.server.scripted import Script, ScriptedEngine
from twostroke.cli.session import AnswerPiece, LocalSession, RemoteSession, Session
from twostroke.cli.terminal_chat.demo_tools import demo_tool_schemas, run_tool
from twostroke.cli.terminal_chat.tool_session import (
    MAX_CALLS,
    MAX_ROUNDS,
    ToolSession,
    describe_call,
    shortened,
)
from twostroke.cli.tool_calling import AskedCall, CallsInDeltas
from twostroke.core.errors import InvalidRequestError
from twostroke.server.application import create_app

CALL = '<tool_call>\n{"name": "fits_on", "arguments": {"model": "llama-3.1-8b", "gpu": "h100"}}'
CALL += "\n</tool_call>"
QUESTION = [{"role": "user", "content": "Does it fit?"}]


class Scripted:
    """Gives these answers, one after the other; the last one again and again."""

    chats = True

    def __init__(self, *answers: Sequence[AnswerPiece]) -> None:
        self._answers = answers
        self.seen: list[list[Mapping[str, Any]]] = []
        self.fields: list[Mapping[str, Any]] = []

    async def chat(
        self, messages: Sequence[Mapping[str, Any]], fields: Mapping[str, Any]
    ) -> AsyncGenerator[AnswerPiece]:
        answer = self._answers[min(len(self.seen), len(self._answers) - 1)]
        self.seen.append(list(messages))
        self.fields.append(fields)
        for piece in answer:
            yield piece

    def surplus(self, messages: Sequence[Mapping[str, Any]], fields: Mapping[str, Any]) -> int:
        return 0

    def complete(self, prompt: str, fields: Mapping[str, Any]) -> AsyncGenerator[AnswerPiece]:
        raise AssertionError("not called")

    def close(self) -> None:
        raise AssertionError("not called")


def ask(session: Session, fields: Mapping[str, Any] | None = None) -> tuple[str, list[AskedCall]]:
    async def collect() -> tuple[str, list[AskedCall]]:
        pieces = [piece async for piece in session.chat(QUESTION, fields or {})]
        return "".join(p.text for p in pieces), [call for p in pieces for call in p.calls]

    return asyncio.run(collect())


def fits(id: str = "call_1") -> AskedCall:
    return AskedCall("fits_on", '{"model": "llama-3.1-8b", "gpu": "h100"}', id)


def test_a_call_is_carried_out_and_its_result_sent_back() -> None:
    lines: list[str] = []
    inner = Scripted(
        [AnswerPiece("Let me see. "), AnswerPiece("", None, [fits()])],
        [AnswerPiece("Yes, it fits.")],
    )
    session = ToolSession(inner, demo_tool_schemas(), run_tool, lines.append)
    text, _ = ask(session, {"temperature": 0})
    assert text == "Let me see. Yes, it fits."
    assert lines == ["fits_on(model=llama-3.1-8b, gpu=h100) -> yes, 16 of 86 GB"]
    question, call, result = inner.seen[1]
    assert question == QUESTION[0]
    assert call["tool_calls"][0]["function"]["name"] == "fits_on"
    assert result == {"role": "tool", "tool_call_id": "call_1", "content": "yes, 16 of 86 GB"}
    assert all(fields["temperature"] == 0 and fields["tools"] for fields in inner.fields)


def test_a_model_that_only_calls_is_stopped() -> None:
    lines: list[str] = []
    inner = Scripted([AnswerPiece("", None, [fits(str(n)) for n in range(MAX_CALLS + 5)])])
    ask(ToolSession(inner, demo_tool_schemas(), run_tool, lines.append))
    assert len(inner.seen) == MAX_ROUNDS
    assert len(lines) == MAX_ROUNDS * MAX_CALLS + 1
    assert "stopped" in lines[-1]
    assert len(inner.seen[1]) == 1 + 1 + MAX_CALLS


def test_lines_are_short_and_hold_no_control_characters() -> None:
    call = AskedCall("x\x1b[2J", '{"a": "b\\nc"}', "1")
    assert describe_call(call) == "x?[2J(a=b c)"
    assert describe_call(AskedCall("f", "[" * 10_000, "1")).endswith("...")
    assert len(shortened("word " * 1000)) <= 160


def test_calls_come_together_from_deltas() -> None:
    calls = CallsInDeltas()
    calls.add(1, name="b", id="two")
    calls.add(0, name="a", arguments='{"x"')
    calls.add(0, arguments=": 1}")
    first, second = calls.finish()
    assert (first.name, first.arguments) == ("a", '{"x": 1}')
    assert first.id.startswith("call_") and second == AskedCall("b", "", "two")


TOOL_TEMPLATE = (
    "{% if tools %}tools: {% for t in tools %}{{ t.function.name }} {% endfor %}"
    "<tool_call>{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"
)


@pytest.mark.parametrize("remote", [False, True])
def test_calls_are_found_in_this_process_and_on_a_server(remote: bool) -> None:
    pieces = ("Let me ", "see. <tool", CALL[5:40], CALL[40:])
    engine = ScriptedEngine(Script(pieces, max_model_len=2000), template=TOOL_TEMPLATE)
    transport = httpx.ASGITransport(create_app(engine.loaded_model()))
    session: Session = (
        RemoteSession("http://test", transport=transport)
        if remote
        else LocalSession(engine.loaded_model())
    )
    text, [call] = ask(session, {"tools": demo_tool_schemas(), "max_tokens": 50})
    assert text == "Let me see. "
    assert run_tool(call.name, call.arguments) == "yes, 16 of 86 GB"
    prompt = engine.tokenizer.decode(engine.submitted[0].prompt_token_ids)
    assert prompt.startswith("tools: kv_cache_size decode_speed fits_on")


def test_a_model_without_a_form_for_calls_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="no form for tool calls"):
        ask(LocalSession(ScriptedEngine().loaded_model()), {"tools": demo_tool_schemas()})
