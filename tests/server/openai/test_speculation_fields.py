"""Protects: what OpenAI's clients say and see of speculation: prediction, usage, and the switch."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.server.http_calls import USER, any_engine, post
from tests.server.scripted import ScriptedEngine
from tests.server.tiny import tiny_engine
from twostroke.core.speculation_config import SpeculationConfig
from twostroke.server.application import create_app
from twostroke.server.options import ServerOptions

FIXED = SpeculationConfig(speculative_config='{"method": "ngram", "adaptive": false}')
CHAT: dict[str, Any] = {"messages": USER, "max_tokens": 60, "ignore_eos": True, "temperature": 0}


@pytest.mark.parametrize(("given", "taken"), [(None, None), (True, None), (False, 0), (3, 3)])
async def test_a_request_says_how_far_to_guess(given: object, taken: int | None) -> None:
    engine = ScriptedEngine()
    body = {"messages": USER, "speculation": given}
    assert (await post(engine, "chat/completions", body)).status_code == 200
    assert engine.submitted[0].params.speculation == taken


@pytest.mark.parametrize("given", [-1, 65, "on", 0.5])
async def test_a_depth_out_of_range_is_refused_by_name(given: object) -> None:
    response = await post(any_engine(), "completions", {"prompt": "x", "speculation": given})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "speculation"


@pytest.mark.parametrize("content", ["a dog", [{"type": "text", "text": "a "}] * 2])
async def test_a_prediction_reaches_the_engine_as_tokens(content: object) -> None:
    engine = ScriptedEngine()
    body = {"messages": USER, "prediction": {"type": "content", "content": content}}
    assert (await post(engine, "chat/completions", body)).status_code == 200
    text = "a dog" if isinstance(content, str) else "a a "
    expected = engine.tokenizer.encode(text, add_special_tokens=False)
    assert engine.submitted[0].prediction_token_ids == expected


@pytest.mark.parametrize("prediction", ["a dog", {"type": "content"}, {"type": "x", "content": ""}])
async def test_a_prediction_of_another_form_is_refused(prediction: object) -> None:
    body = {"messages": USER, "prediction": prediction}
    response = await post(any_engine(), "chat/completions", body)
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("prediction")


async def test_usage_counts_accepted_and_rejected_predictions() -> None:
    """The same answer with speculation and without; streamed, the last chunk has the counts."""
    answers = []
    for speculation in (SpeculationConfig(), FIXED):
        with tiny_engine(speculation=speculation) as engine:
            transport = httpx.ASGITransport(create_app(engine.loaded_model(), ServerOptions()))
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                first = (await client.post("/v1/chat/completions", json=CHAT)).json()
                text = first["choices"][0]["message"]["content"]
                expected = {"type": "content", "content": text}
                body = {**CHAT, "prediction": expected}
                second = (await client.post("/v1/chat/completions", json=body)).json()
                assert second["choices"] == first["choices"]
                answers.append((text, second["usage"].get("completion_tokens_details")))
                body = {**body, "stream": True, "stream_options": {"include_usage": True}}
                events = (await client.post("/v1/chat/completions", json=body)).text
                assert ("accepted_prediction_tokens" in events) == (answers[-1][1] is not None)
    assert answers[0][0] == answers[1][0]
    assert answers[0][1] is None
    assert answers[1][1]["accepted_prediction_tokens"] > 0
    assert answers[1][1]["rejected_prediction_tokens"] >= 0


@pytest.mark.parametrize("route", ["chat/completions", "completions"])
async def test_a_stream_names_its_right_and_wrong_guesses(route: str) -> None:
    """Accepted guesses begin a chunk's tokens, and the counts are those of the usage."""
    body: dict[str, Any] = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
    body |= {"return_token_ids": True, "return_drafts": True, "max_tokens": 120}
    if route == "completions":
        body["prompt"] = body.pop("messages")[0]["content"]
    quoting = SpeculationConfig(speculative_config='{"method": "suffix", "adaptive": false}')
    with tiny_engine(speculation=quoting) as engine:
        transport = httpx.ASGITransport(create_app(engine.loaded_model(), ServerOptions()))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            await client.post(f"/v1/{route}", json=body)  # the answer that the second one quotes
            answer = (await client.post(f"/v1/{route}", json=body)).text
            decode = engine.tokenizer.decode
    chunks = [json.loads(line[6:]) for line in answer.splitlines() if line.startswith("data: {")]
    choices = [choice for chunk in chunks for choice in chunk["choices"] if "drafts" in choice]
    assert choices
    num_accepted = num_rejected = 0
    for choice in choices:
        drafts = choice["drafts"]
        count = drafts["num_accepted"]
        assert drafts["token_ids"][:count] == choice["token_ids"][:count]
        assert drafts["tokens"] == [decode([token]) for token in drafts["token_ids"]]
        num_accepted += count
        num_rejected += len(drafts["token_ids"]) - count
    details = chunks[-1]["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] == num_accepted > 0
    assert details["rejected_prediction_tokens"] == num_rejected


async def test_guesses_are_told_in_streams_only() -> None:
    body = {"messages": USER, "return_drafts": True}
    response = await post(any_engine(), "chat/completions", body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "return_drafts"
