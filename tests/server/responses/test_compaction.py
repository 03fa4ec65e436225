"""``compact`` makes an input that goes on where the conversation was; ``input_tokens`` counts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.http_calls import client_for
from tests.server.responses.responding import (
    THINKING_HERMES,
    client_of,
    engine_that_says,
    last_prompt,
)
from tests.server.scripted import Script, ScriptedEngine
from twostroke.core.request import FinishReason
from twostroke.server.responses.compaction import ASKED, MAX_SUMMARY
from twostroke.server.responses.items import COMPACTED

TALK: list[Any] = [
    {"role": "user", "content": "It rains in Bern."},
    {"role": "assistant", "content": "I see."},
    {"role": "user", "content": "And in Chur?"},
]


def test_the_client_goes_on_with_what_it_got() -> None:
    engine = engine_that_says("Bern: ", "rain.")
    with client_of(engine) as client:
        short = client.responses.compact(model="scripted", input=TALK, instructions="be brief")
        prompt = last_prompt(engine)
        assert prompt.index("be brief") < prompt.index("I see.") < prompt.index(ASKED)
        params = engine.submitted[-1].params
        assert params.max_tokens is not None and params.max_tokens <= MAX_SUMMARY
        assert [item.type for item in short.output] == ["message", "message", "compaction"]
        assert short.usage.output_tokens == 2 and short.object == "response.compaction"
        going_on: Any = [
            item.model_dump(exclude_none=True, warnings=False) for item in short.output
        ]
        going_on.append({"role": "user", "content": "go on"})
        client.responses.create(model="scripted", input=going_on)
    prompt = last_prompt(engine)
    assert "Bern: rain." in prompt and "And in Chur?" in prompt and "I see." not in prompt


def test_a_stored_conversation_is_compacted() -> None:
    engine = engine_that_says("fine")
    with client_of(engine) as client:
        first = client.responses.create(model="scripted", input=TALK)
        short = client.responses.compact(model="scripted", previous_response_id=first.id)
        assert len(short.output) == 3
        summary: Any = short.output[-1:]
        second = client.responses.create(model="scripted", input=summary)
        page = client.responses.input_items.list(second.id)
        assert [item.type for item in page.data] == ["compaction"]
        client.responses.create(model="scripted", previous_response_id=second.id, input="go on")
    assert last_prompt(engine).count("Summary of the conversation") == 1


async def test_what_is_refused() -> None:
    async with client_for(ScriptedEngine()) as client:
        for path, body, param in (
            ("compact", {}, "input"),
            ("compact", {"input": "x", "stream": True}, "stream"),
            ("compact", {"input": "x", "previous_response_id": "resp_x"}, "previous_response_id"),
            ("input_tokens", {}, "input"),
            ("input_tokens", {"input": "x", "temperature": -1}, "temperature"),
        ):
            answer = await client.post(f"/v1/responses/{path}", json=body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
        foreign = {"input": [{"type": "compaction", "encrypted_content": "gAAAA"}]}
        error = (await client.post("/v1/responses", json=foreign)).json()["error"]
        assert error["param"] == "input[0].encrypted_content"
        own = {"input": [{"type": "compaction", "encrypted_content": f"{COMPACTED}x"}]}
        assert (await client.post("/v1/responses", json=own)).status_code == 200


def test_as_many_tokens_as_the_prompt_has() -> None:
    engine = ScriptedEngine(Script(max_model_len=4000))
    with client_of(engine) as client:
        counted = client.responses.input_tokens.count(model="scripted", input=TALK)
        assert engine.submitted == []
        response = client.responses.create(model="scripted", input=TALK)
    assert response.usage is not None
    assert counted.input_tokens == response.usage.input_tokens > 0


@pytest.mark.parametrize(
    ("pieces", "more", "word"),
    [
        (("Bern", ": "), {"finish_reason": FinishReason.LENGTH}, "incomplete"),
        ((" ", "\n"), {}, "blank"),
        (("<think>", "hm", "</think>"), {"template": THINKING_HERMES}, "blank"),
    ],
)
async def test_a_summary_that_is_not_whole_is_an_error(
    pieces: tuple[str, ...], more: dict[str, Any], word: str
) -> None:
    """A client that goes on from half a summary has lost its conversation."""
    async with client_for(engine_that_says(*pieces, **more)) as client:
        answer = await client.post("/v1/responses/compact", json={"input": TALK})
    assert answer.status_code == 500, answer.text
    assert word in answer.json()["error"]["message"]
