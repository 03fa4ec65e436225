"""A mistake in a conversation is named by the item that has it, wherever its message lies."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.http_calls import client_for
from tests.server.responses.responding import engine_that_says, last_prompt
from tests.server.scripted import Script, ScriptedEngine

CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
BAD = {**CALL, "arguments": "{"}
USER = {"role": "user", "content": "x"}
THOUGHT = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
SAID = {"role": "assistant", "content": "y"}


@pytest.mark.parametrize(
    ("items", "place"),
    [
        ([BAD], 0),
        ([USER, BAD], 1),
        ([USER, CALL, BAD], 2),
        # One message of four items.
        ([USER, THOUGHT, SAID, CALL, BAD, USER], 4),
        ([USER, {**CALL, "status": "incomplete"}, BAD], 2),
    ],
)
async def test_arguments_that_are_no_json(items: list[Any], place: int) -> None:
    for instructions in (None, "be brief"):
        async with client_for(ScriptedEngine()) as client:
            body = {"input": items, "instructions": instructions}
            error = (await client.post("/v1/responses", json=body)).json()["error"]
        assert error["param"] == f"input[{place}].arguments"
        assert error["message"].startswith(f"input[{place}].arguments is not valid JSON")


async def test_places_count_from_the_requests_own_input() -> None:
    engine = ScriptedEngine(Script(max_model_len=1000))
    async with client_for(engine) as client:
        first = (await client.post("/v1/responses", json={"input": [USER, USER]})).json()
        body = {"input": [USER, BAD], "previous_response_id": first["id"]}
        error = (await client.post("/v1/responses", json=body)).json()["error"]
    assert error["param"] == "input[1].arguments"


async def test_lone_surrogates_are_named_by_their_item() -> None:
    for body, param in (
        (rb'{"input": "x", "instructions": "\ud800"}', "instructions"),
        (rb'{"input": "x", "previous_response_id": "\ud800"}', "previous_response_id"),
        (rb'{"input": "x", "conversation": "\ud800"}', "conversation"),
    ):
        async with client_for(ScriptedEngine()) as client:
            headers = {"content-type": "application/json"}
            answer = await client.post("/v1/responses", content=body, headers=headers)
        assert answer.json()["error"]["param"] == param, answer.text


CUT = {**CALL, "arguments": '{"a', "status": "incomplete"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "late"}


async def test_a_cut_call_goes_with_what_was_answered_to_it_and_both_are_named() -> None:
    """Alone, the tool's message would answer to nothing, which templates refuse or misread."""
    engine = engine_that_says("hi")
    async with client_for(engine) as client:
        body: dict[str, Any] = {"input": [USER, CUT, OUTPUT, USER]}
        answer = await client.post("/v1/responses", json=body)
        assert answer.headers["x-ignored-fields"] == "input[1], input[2]", answer.text
        assert "late" not in last_prompt(engine)
        compacted = await client.post("/v1/responses/compact", json=body)
        assert compacted.headers["x-ignored-fields"] == "input[1], input[2]"
        body["previous_response_id"] = answer.json()["id"]
        body["input"] = [OUTPUT, CALL, {**OUTPUT, "output": "in time"}]
        answer = await client.post("/v1/responses", json=body)
    assert answer.headers["x-ignored-fields"] == "input[0]", answer.text
    assert "late" not in last_prompt(engine) and "in time" in last_prompt(engine)
