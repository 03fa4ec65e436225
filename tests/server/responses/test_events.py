"""Order, numbers and shapes of a stream's events, as the published specification has them."""

from __future__ import annotations

import typing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel

from tests.server.dialogues import events_of
from tests.server.http_calls import client_for, post
from tests.server.responses.responding import (
    EVERYTHING,
    FLAT_WEATHER,
    THINKING_HERMES,
    engine_that_says,
)
from tests.server.scripted import ScriptedEngine
from twostroke.server.responses.events import EVENTS, Event, OutputItemDone, event_type
from twostroke.server.responses.objects import OutputMessage
from twostroke.server.responses.output_writer import OutputWriter
from twostroke.text.answer_parsing.parts import (
    AnswerPart,
    CallArguments,
    CallStarted,
    Content,
    Reasoning,
)

ASKED = {"input": "hi", "tools": [FLAT_WEATHER]}
MESSAGE = [
    "output_item.added",
    "content_part.added",
    "output_text.delta",
    "output_text.done",
    "content_part.done",
    "output_item.done",
]
REASONING = [name.replace("output_text", "reasoning_text") for name in MESSAGE]
CALL = [
    "output_item.added",
    "function_call_arguments.delta",
    "function_call_arguments.done",
    "output_item.done",
]
BEGIN, END = ["created", "in_progress"], ["completed"]


def published_types() -> dict[str, type[BaseModel]]:
    """The event's type to the model that OpenAI's client has for it."""
    (union, *_) = typing.get_args(ResponseStreamEvent)
    models: dict[str, type[BaseModel]] = {}
    for model in typing.get_args(union):
        (name,) = typing.get_args(model.model_fields["type"].annotation)
        models[name] = model
    return models


async def stream(engine: ScriptedEngine, **fields: Any) -> list[dict[str, Any]]:
    answer = await post(engine, "responses", {**ASKED, **fields, "stream": True})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    return events_of(answer.text)


def kinds(events: list[dict[str, Any]]) -> list[str]:
    """Types without their prefix; several deltas in a row are one."""
    names = [event["type"].removeprefix("response.") for event in events]
    return [name for i, name in enumerate(names) if i == 0 or name != names[i - 1]]


async def test_the_published_order() -> None:
    events = await stream(engine_that_says(*EVERYTHING, template=THINKING_HERMES))
    assert kinds(events) == BEGIN + REASONING + MESSAGE + CALL + CALL + END
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


# Of a response: the open specification has them (test_open_responses.py), the client has not.
OPEN_FIELDS = {"store", "frequency_penalty", "presence_penalty"}


@pytest.mark.parametrize(
    ("fields", "pieces"),
    [
        ({}, EVERYTHING),
        ({"max_output_tokens": 6}, EVERYTHING),
        ({"background": True}, EVERYTHING),
        ({"tools": None, "top_logprobs": 3}, ("a", "b")),
        ({"metadata": {"a": "b"}, "reasoning": {"effort": "low"}, "truncation": "auto"}, ("",)),
    ],
)
async def test_every_event_is_of_the_published_type(
    fields: dict[str, Any], pieces: tuple[str, ...]
) -> None:
    """The client's models, asked to validate; what they do not know is not there."""
    models = published_types()
    engine = engine_that_says(*pieces, template="x" if "tools" in fields else THINKING_HERMES)
    for event in await stream(engine, **fields):
        model = models[event["type"]].model_validate(event, strict=False)
        extra = model.model_extra or {}
        assert set(extra) <= ({"name"} if "arguments" in event else set()), event["type"]
        nested = getattr(model, "response", None) or getattr(model, "item", None)
        if nested is not None:
            assert {*(nested.model_extra or ())} <= OPEN_FIELDS, event["type"]


def test_every_event_that_we_send_is_published() -> None:
    assert {event_type(event) for event in EVENTS} <= published_types().keys()


async def test_the_deltas_are_the_whole() -> None:
    engine = engine_that_says(*EVERYTHING, template=THINKING_HERMES)
    events = await stream(engine)
    final = events[-1]["response"]
    Response.model_validate(final)
    whole = (await post(engine, "responses", ASKED)).json()
    texts: dict[str, str] = {}
    for event in events:
        if event["type"].endswith(".delta"):
            texts[event["item_id"]] = texts.get(event["item_id"], "") + event["delta"]
    for item, same in zip(final["output"], whole["output"], strict=True):
        text = item["arguments"] if "arguments" in item else item["content"][0]["text"]
        assert texts[item["id"]] == text
        assert {**same, "id": "", "call_id": ""} == {**item, "id": "", "call_id": ""}
    assert final["usage"] == whole["usage"]


async def test_places_and_ids_hold_together() -> None:
    events = await stream(engine_that_says(*EVERYTHING, template=THINKING_HERMES))
    places: dict[str, int] = {}
    for event in events:
        if event["type"] == "response.output_item.added":
            assert event["output_index"] == len(places)
            assert event["item"]["status"] == "in_progress"
            places[event["item"]["id"]] = event["output_index"]
        elif "item_id" in event:
            assert places[event["item_id"]] == event["output_index"]
        elif event["type"] == "response.output_item.done":
            assert places[event["item"]["id"]] == event["output_index"]
            assert event["item"] == events[-1]["response"]["output"][event["output_index"]]


async def test_what_is_cut_is_incomplete() -> None:
    engine = engine_that_says(*EVERYTHING, template=THINKING_HERMES)
    for num_steps, kind in ((2, "reasoning"), (4, "message"), (6, "function_call")):
        *_, item_done, last = await stream(engine, max_output_tokens=num_steps)
        assert last["type"] == "response.incomplete"
        assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
        assert (item_done["item"]["type"], item_done["item"]["status"]) == (kind, "incomplete")
        states = [item["status"] for item in last["response"]["output"]]
        assert states == ["completed"] * (len(states) - 1) + ["incomplete"]


@pytest.mark.parametrize("pieces", [("",), (" ", "\n")])
async def test_an_empty_answer_is_an_empty_message(pieces: tuple[str, ...]) -> None:
    events = await stream(engine_that_says(*pieces))
    (item,) = events[-1]["response"]["output"]
    assert item["content"][0]["text"] == "".join(pieces)


PARTS = st.lists(
    st.one_of(
        st.builds(Content, st.sampled_from([" ", "\n", "a", "b "])),
        st.builds(Reasoning, st.sampled_from(["hm", " "])),
        st.builds(CallStarted, st.just(0), st.just("f")),
        st.builds(CallArguments, st.just(0), st.sampled_from(["{", "}", ""])),
    ),
    max_size=12,
)


@given(steps=st.lists(PARTS, max_size=6))
def test_any_sequence_of_parts_gives_well_formed_events(steps: list[list[AnswerPart]]) -> None:
    """An item is open at a time; each is added, grows, and is done; no text that counts is lost."""
    writer = OutputWriter()
    events: list[Event] = []
    for parts in steps:
        events += writer.add(parts)
    events += writer.finish("completed")
    opened = None
    for event in events:
        name = event_type(type(event))
        if name == "response.output_item.added":
            assert opened is None
            opened = event.item.id  # type: ignore[attr-defined]
        elif name == "response.output_item.done":
            assert opened == event.item.id  # type: ignore[attr-defined]
            opened = None
        else:
            assert event.item_id == opened  # type: ignore[attr-defined]
    assert opened is None
    items = writer.items()
    done = [event.item for event in events if isinstance(event, OutputItemDone)]
    assert done == items and items
    written = "".join(part.text for parts in steps for part in parts if isinstance(part, Content))
    said = [item.content[0].text for item in items if isinstance(item, OutputMessage)]
    assert "".join("".join(said).split()) == "".join(written.split())
    if len(said) == len(items):
        assert "".join(said) == written


async def test_the_document_has_the_events() -> None:
    async with client_for(ScriptedEngine()) as client:
        document = (await client.get("/openapi.json")).json()
    assert {event.__name__ for event in EVENTS} <= document["components"]["schemas"].keys()
