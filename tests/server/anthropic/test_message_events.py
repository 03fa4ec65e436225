"""The events of a stream, against the published order, and the message that they add up to.

Source: Anthropic, "Streaming messages": ``message_start``, then for each block a start, deltas of
the block's kind and a stop, then ``message_delta`` and ``message_stop``; pings anywhere between.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from tests.server.anthropic.messages_calls import BODY, WEATHER, engine_that_says
from tests.server.dialogues import CALLS, THINKING, events_of
from tests.server.http_calls import post
from tests.server.scripted import ScriptedEngine
from twostroke.core.errors import QueueFullError, RequestFailedError
from twostroke.core.request import FinishReason
from twostroke.server.anthropic.content_blocks import (
    BlockWriter,
    ContentBlockDelta,
    TextDelta,
    whole_blocks,
)
from twostroke.text.answer_parsing.parts import CallArguments, CallStarted, Content, Reasoning

DELTAS = {
    "text": {"text_delta"},
    "thinking": {"thinking_delta", "signature_delta"},
    "tool_use": {"input_json_delta"},
}
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


async def stream(engine: ScriptedEngine, **fields: Any) -> list[dict[str, Any]]:
    response = await post(engine, "messages", {**BODY, **fields, "stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    return events_of(response.text)


async def whole(engine: ScriptedEngine, **fields: Any) -> dict[str, Any]:
    response = await post(engine, "messages", {**BODY, **fields})
    assert response.status_code == 200, response.text
    message: dict[str, Any] = response.json()
    return message


def folded(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message of a stream whose events come in the published order and are of its types."""
    for event in events:
        if event["type"] != "ping":
            EVENT.validate_python(event)
    start, *rest = [event for event in events if event["type"] != "ping"]
    assert start["type"] == "message_start"
    message: dict[str, Any] = start["message"]
    assert (message["content"], message["stop_reason"]) == ([], None)
    while rest and rest[0]["type"] == "content_block_start":
        begin = rest.pop(0)
        assert begin["index"] == len(message["content"])
        block, texts = begin["content_block"], []
        kinds = []
        while rest[0]["type"] == "content_block_delta":
            event = rest.pop(0)
            assert event["index"] == begin["index"]
            kind, text = event["delta"].values()
            kinds.append(kind)
            if kind == "signature_delta":
                block["signature"] = text
            else:
                texts.append(text)
        assert kinds and set(kinds) <= DELTAS[block["type"]]
        assert block["type"] != "thinking" or kinds.index("signature_delta") == len(kinds) - 1
        stop = rest.pop(0)
        assert stop == {"type": "content_block_stop", "index": begin["index"]}
        field = "json" if block["type"] == "tool_use" else block["type"]
        block[field] = "".join(texts)
        message["content"].append(block)
    delta, end = rest
    assert (delta["type"], end) == ("message_delta", {"type": "message_stop"})
    message |= delta["delta"]
    message["usage"] = delta["usage"]
    return message


def comparable(message: dict[str, Any]) -> dict[str, Any]:
    """A message without ids, its calls' inputs as JSON text."""
    blocks = []
    for block in message["content"]:
        text = block.pop("json", None)
        if block["type"] == "tool_use":
            block["input"] = json.loads(text) if text is not None else block["input"]
        blocks.append({name: value for name, value in block.items() if name != "id"})
    return {**message, "id": "", "content": blocks}


ANSWERS: dict[str, dict[str, Any]] = {
    "text": {"pieces": ("the ", "dog")},
    "nothing": {"pieces": ("",)},
    "space": {"pieces": (" ", "\n")},
    "calls": {"pieces": CALLS},
    "a call alone": {"pieces": ("\n", *CALLS[1:3], 'ich"}}</tool_call>\n\n')},
    "text after a call": {"pieces": (*CALLS, "\n\nDone", ".")},
    "a stop sequence": {"pieces": ("the ", "dog"), "stop_reason": "END"},
    "cut off": {"pieces": ("the ", "dog"), "finish_reason": FinishReason.LENGTH},
    "no call": {"pieces": ("<tool_", "call>{nonsense")},
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_a_stream_adds_up_to_the_message(name: str) -> None:
    fields: dict[str, Any] = {"tools": [WEATHER], "stop_sequences": ["END"]}
    engine = engine_of(name)
    events = await stream(engine, **fields)
    message = await whole(engine, **fields)
    Message.model_validate(message)
    assert comparable(folded(events)) == comparable(message)


def engine_of(name: str) -> ScriptedEngine:
    script = dict(ANSWERS[name])
    return engine_that_says(*script.pop("pieces"), **script)


@pytest.mark.parametrize(
    ("name", "reason", "sequence"),
    [
        ("text", "end_turn", None),
        ("nothing", "end_turn", None),
        ("calls", "tool_use", None),
        ("a stop sequence", "stop_sequence", "END"),
        ("cut off", "max_tokens", None),
        ("no call", "end_turn", None),
    ],
)
async def test_why_it_ended(name: str, reason: str, sequence: str | None) -> None:
    message = await whole(engine_of(name), tools=[WEATHER], stop_sequences=["END"])
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)


async def test_the_published_example() -> None:
    """The order of the example, ping included."""
    events = await stream(engine_that_says("Hello", "!"))
    assert [event["type"] for event in events] == [
        "message_start",
        "content_block_start",
        "ping",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


async def test_thoughts_come_first_and_are_signed() -> None:
    engine = engine_that_says("W", "ell.\n</thi", "nk>\n\n4", "2", template=THINKING)
    message = folded(await stream(engine))
    assert [block["type"] for block in message["content"]] == ["thinking", "text"]
    assert message["content"][0]["thinking"] == "Well." and message["content"][0]["signature"]
    assert comparable(message) == comparable(await whole(engine))
    omitted = folded(await stream(engine, thinking={"type": "adaptive", "display": "omitted"}))
    assert omitted["content"][0]["thinking"] == "" and omitted["content"][0]["signature"]


async def test_disabled_thoughts_are_not_shown() -> None:
    """Also of a model that thinks all the same."""
    engine = engine_that_says("<think>Well.</think>42", template=THINKING)
    message = await whole(engine, thinking={"type": "disabled"})
    assert message["content"] == [{"type": "text", "text": "42"}]


async def test_without_parallel_calls_there_is_one() -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    fields: dict[str, Any] = {"tools": [WEATHER], "tool_choice": choice}
    message = await whole(engine_that_says(*CALLS), **fields)
    assert [block["type"] for block in message["content"]] == ["text", "tool_use"]
    assert comparable(folded(await stream(engine_that_says(*CALLS), **fields))) == comparable(
        message
    )


async def test_a_call_that_is_cut_off_has_an_empty_input() -> None:
    """In the stream its JSON stays as far as it came."""
    fields: dict[str, Any] = {"tools": [WEATHER], "max_tokens": 3}
    message = await whole(engine_that_says(*CALLS), **fields)
    assert message["content"][-1]["input"] == {} and message["stop_reason"] == "max_tokens"
    assert folded(await stream(engine_that_says(*CALLS), **fields))["content"][-1]["json"] == (
        '{"city": "Zür'
    )


async def test_an_error_is_the_last_event() -> None:
    error = RequestFailedError("pass failed", hint="try again")
    engine = engine_that_says("a", "b", error=error, error_at=1)
    response = await post(engine, "messages", {**BODY, "stream": True})
    *_, before, last = events_of(response.text)
    assert before["type"] == "content_block_delta"
    assert (last["type"], last["error"]["type"]) == ("error", "api_error")
    assert "pass failed" in last["error"]["message"]
    assert last["request_id"] == response.headers["request-id"]


async def test_an_error_before_the_first_event_has_its_status() -> None:
    engine = engine_that_says("a", error=QueueFullError("full"), error_at=0)
    response = await post(engine, "messages", {**BODY, "stream": True})
    assert response.status_code == 500  # what an engine sends of itself is no refusal
    assert response.json()["error"]["type"] == "api_error"


PARTS = st.lists(
    st.one_of(
        st.builds(Content, st.sampled_from([" ", "\n", "a", "b c"])),
        st.builds(Reasoning, st.text(min_size=1, max_size=3)),
        st.just(CallStarted(0, "f")),
    ),
    max_size=8,
)


@given(PARTS)
def test_blocks_keep_all_that_is_no_white_space(parts: list[Any]) -> None:
    """Whatever comes in whatever order: indices ascend, and no text is lost."""
    writer, calls = BlockWriter(), 0
    numbered: list[Any] = []
    for part in parts:
        if isinstance(part, CallStarted):
            numbered += [CallStarted(calls, "f"), CallArguments(calls, "{}")]
            calls += 1
        else:
            numbered.append(part)
    events = [event for part in numbered for event in writer.write([part])] + writer.end()
    texts = "".join(
        event.delta.text
        for event in events
        if isinstance(event, ContentBlockDelta) and isinstance(event.delta, TextDelta)
    )
    contents = "".join(part.text for part in parts if isinstance(part, Content))
    assert "".join(texts.split()) == "".join(contents.split())
    assert sorted(event.index for event in events) == [event.index for event in events]
    blocks = whole_blocks(events)
    assert len(blocks) == len({event.index for event in events})
    at_once = BlockWriter()
    assert len(whole_blocks(at_once.write(numbered) + at_once.end())) == len(blocks)
