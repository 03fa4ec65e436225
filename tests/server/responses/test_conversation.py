"""A mistake in a conversation is named by the item that has it, wherever its message lies."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.http_calls import client_for
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
