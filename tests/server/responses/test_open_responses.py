"""The response object has what the open specification of the Responses API requires of it.

Source: openresponses.org, schema ``ResponseResource``, version 2026-04-24. Its compliance suite
checks these fields in each of its tests.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.dialogues import events_of
from tests.server.http_calls import post
from tests.server.responses.responding import EVERYTHING, FLAT_WEATHER, engine_that_says

NUMBERS = {"top_p", "presence_penalty", "frequency_penalty", "temperature"}
INTEGERS = {"created_at", "top_logprobs"}
TEXTS = {"id", "object", "status", "model", "truncation", "service_tier"}
OTHERS = {
    *("completed_at", "incomplete_details", "previous_response_id", "instructions", "output"),
    *("error", "tools", "tool_choice", "parallel_tool_calls", "text", "reasoning", "user"),
    *("usage", "max_output_tokens", "max_tool_calls", "store", "background", "metadata"),
    *("safety_identifier", "prompt_cache_key"),
}
REQUESTS: list[dict[str, Any]] = [
    {"input": [{"type": "message", "role": "user", "content": "Say hello."}]},
    {"input": [{"type": "message", "role": "system", "content": "Be brief."}]},
    {"input": "x", "tools": [FLAT_WEATHER]},
]


def check(response: dict[str, Any]) -> None:
    assert {*NUMBERS, *INTEGERS, *TEXTS, *OTHERS} <= response.keys()
    assert all(isinstance(response[name], (int, float)) for name in NUMBERS)
    assert all(isinstance(response[name], int) for name in INTEGERS)
    assert all(isinstance(response[name], str) for name in TEXTS)


@pytest.mark.parametrize("body", REQUESTS)
async def test_every_required_field_is_there(body: dict[str, Any]) -> None:
    pieces = EVERYTHING if "tools" in body else ("hello",)
    whole = await post(engine_that_says(*pieces), "responses", body)
    check(whole.json())
    streamed = await post(engine_that_says(*pieces), "responses", {**body, "stream": True})
    for event in events_of(streamed.text):
        if "response" in event:
            check(event["response"])


async def test_the_penalties_are_those_that_were_used() -> None:
    body = {"input": "x", "presence_penalty": 0.5, "frequency_penalty": -1}
    response = (await post(engine_that_says("hi"), "responses", body)).json()
    assert (response["presence_penalty"], response["frequency_penalty"]) == (0.5, -1)
