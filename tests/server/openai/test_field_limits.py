"""Too large is refused by name, at the limit it is served; the document has the same limits."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.http_calls import USER, any_engine, client_for, post
from tests.server.scripted import ScriptedEngine
from twostroke.core.sampling_params import (
    MAX_BAD_WORDS,
    MAX_LOGIT_BIAS,
    MAX_LOGPROBS,
    MAX_SAMPLES,
    MAX_STOP_STRING_LENGTH,
    MAX_STOP_STRINGS,
)
from twostroke.server.openai.chat_request import ChatCompletionRequest
from twostroke.server.openai.field_limits import (
    LIMITS,
    MAX_CHOICES,
    MAX_PROMPTS,
    MAX_STOP_TOKENS,
)
from twostroke.server.openai.text_completions.request import CompletionRequest

LONG = "x" * 200


def words(count: int) -> list[str]:
    return [f"word {i}" for i in range(count)]


def biases(count: int) -> dict[str, float]:
    """More than there are tokens is refused as well, but later and by another name."""
    return {str(i): 1.0 for i in range(count)}


# Field, the largest value that is served, the smallest that is not.
FIELDS: list[tuple[str, Any, Any]] = [
    ("n", MAX_SAMPLES, MAX_SAMPLES + 1),
    ("stop", words(MAX_STOP_STRINGS), words(MAX_STOP_STRINGS + 1)),
    ("stop", "x" * MAX_STOP_STRING_LENGTH, "x" * (MAX_STOP_STRING_LENGTH + 1)),
    ("stop", ["x"], [""]),
    ("bad_words", words(MAX_BAD_WORDS), words(MAX_BAD_WORDS + 1)),
    ("bad_words", ["x" * 1024] * 16, ["x" * 1024] * 16 + ["x"]),
    ("stop_token_ids", [0] * MAX_STOP_TOKENS, [0] * (MAX_STOP_TOKENS + 1)),
    ("logit_bias", biases(300), biases(MAX_LOGIT_BIAS + 1)),
    ("logit_bias", {"1": 100}, {"1": 100.5}),
    ("logit_bias", {"1": -100}, {"1": -101}),
    ("prompt_logprobs", MAX_LOGPROBS, MAX_LOGPROBS + 1),
    ("temperature", 100, 100.5),
    ("top_p", 1, 1.01),
    ("min_p", 1, 1.01),
    ("repetition_penalty", 100, 101),
    ("repetition_penalty", 0.01, 5e-324),
    ("presence_penalty", 2, 2.1),
    ("frequency_penalty", -2, -2.1),
    ("seed", 2**64 - 1, 2**64),
    ("seed", -(2**63), -(2**63) - 1),
    ("allowed_token_ids", [0], []),
    ("stop_token_ids", [0], [-1]),
    ("max_tokens", 0, -1),
    ("thinking_token_budget", -1, -2),
    ("truncate_prompt_tokens", -1, -2),
]


@pytest.mark.parametrize(("field", "allowed", "refused"), FIELDS)
@pytest.mark.parametrize("path", ["completions", "chat/completions"])
async def test_both_sides_of_a_limit(path: str, field: str, allowed: Any, refused: Any) -> None:
    body: dict[str, Any] = {"prompt": "the dog"} if path == "completions" else {"messages": USER}
    assert (await post(any_engine(), path, {**body, field: allowed})).status_code == 200
    response = await post(any_engine(), path, {**body, field: refused})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == field


@pytest.mark.parametrize(
    ("path", "field", "body"),
    [
        ("completions", "prompt", {"prompt": ["x"] * (MAX_PROMPTS + 1)}),
        ("completions", "n", {"prompt": ["x"] * (MAX_CHOICES // 16 + 1), "n": 16}),
        ("completions", "logprobs", {"prompt": "x", "logprobs": MAX_LOGPROBS + 1}),
        (
            "chat/completions",
            "top_logprobs",
            {"messages": USER, "logprobs": True, "top_logprobs": MAX_LOGPROBS + 1},
        ),
        # The scripted engine's context has 100 tokens.
        ("completions", "prompt", {"prompt": [1] * 100}),
        ("chat/completions", "messages", {"messages": [{"role": "user", "content": LONG}]}),
    ],
)
async def test_limits_of_one_route(path: str, field: str, body: dict[str, Any]) -> None:
    engine = ScriptedEngine()
    response = await post(engine, path, body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == field
    assert len(engine.aborted) == len(engine.submitted)


async def test_many_prompts_at_once() -> None:
    answer = (
        await post(any_engine(), "completions", {"prompt": ["x"] * MAX_PROMPTS, "n": 4})
    ).json()
    assert [choice["index"] for choice in answer["choices"]] == list(range(MAX_CHOICES))


async def test_a_body_at_the_limit() -> None:
    body = b'{"prompt": "the dog"}'
    async with client_for(ScriptedEngine(), max_body_size=2048) as client:
        for path, size in (
            ("/v1/completions", 2048),
            ("/v1/completions", 2049),
            ("/tokenize", 2049),
        ):
            response = await client.post(
                path, content=body.ljust(size), headers={"content-type": "application/json"}
            )
            assert response.status_code == (200 if size == 2048 else 413), response.text


async def test_cutting_to_what_fits() -> None:
    """``truncate_prompt_tokens=-1`` leaves room for the answer."""
    engine = ScriptedEngine()
    fields = {"max_tokens": 30, "truncate_prompt_tokens": -1}
    bodies: dict[str, dict[str, Any]] = {
        "completions": {"prompt": LONG},
        "chat/completions": {"messages": [{"role": "user", "content": LONG}]},
    }
    for path, body in bodies.items():
        response = await post(engine, path, {**body, **fields})
        assert response.status_code == 200, response.text
    assert [len(request.prompt_token_ids) for request in engine.submitted] == [70, 70]


async def test_the_document_names_the_limits() -> None:
    async with client_for(ScriptedEngine()) as client:
        schemas = (await client.get("/openapi.json")).json()["components"]["schemas"]
    shared = schemas["CompletionRequest"]["properties"]
    for name, limit in LIMITS.items():
        if name in shared and name != "seed":  # whose 64 bits no float of a JSON document holds
            assert limit.items() <= shared[name].items(), name
    assert shared["stop"]["maxItems"] == MAX_STOP_STRINGS
    assert shared["n"]["maximum"] == MAX_SAMPLES
    accepted = CompletionRequest.model_fields.keys() | ChatCompletionRequest.model_fields.keys()
    assert LIMITS.keys() <= accepted
