"""``/embed`` as clients of text-embeddings-inference call it."""

from __future__ import annotations

import math
from typing import Any

import httpx
import pytest

from tests.server.running import running_server
from tests.server.scripted import ScriptedEngine
from tests.server.vectors.vector_server import CONTEXT, embeddings
from twostroke.gateway.gateway import Gateway
from twostroke.gateway.options import GatewayOptions

TEXTS = ["the dog", "a fox"]


def embed(url: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{url}/embed", json=body, timeout=30)


def test_vectors_are_bare_and_those_of_embeddings(url: str) -> None:
    assert embed(url, inputs=TEXTS).json() == embeddings(url, TEXTS)
    assert embed(url, inputs=TEXTS[0]).json() == embeddings(url, TEXTS[:1])
    assert embed(url, inputs=TEXTS, dimensions=8).json() == embeddings(url, TEXTS, dimensions=8)


def test_vectors_that_are_not_normalised(url: str) -> None:
    (one,) = embed(url, inputs="the dog").json()
    (raw,) = embed(url, inputs="the dog", normalize=False).json()
    length = math.hypot(*raw)
    assert abs(length - 1) > 1e-3
    assert [value / length for value in raw] == pytest.approx(one, abs=1e-5)


def test_a_prompt_by_its_name(url: str) -> None:
    asked = embed(url, inputs=TEXTS, prompt_name="query").json()
    assert asked == embeddings(url, [f"find: {text}" for text in TEXTS])
    assert embed(url, inputs=TEXTS, prompt_name="document").json() == embeddings(url, TEXTS)
    refused = embed(url, inputs=TEXTS, prompt_name="rhyme")
    assert refused.status_code == 400 and "query" in refused.json()["error"]


def test_what_is_too_long_is_an_error_or_cut(url: str) -> None:
    text = "the dog " * CONTEXT
    for truncate in (None, False):
        refused = embed(url, inputs=["x", text], truncate=truncate)
        assert refused.status_code == 400 and "inputs[1]" in refused.json()["error"]
    cut = embed(url, inputs=["x", text], truncate=True).json()
    assert cut == embeddings(url, ["x", text], truncate_prompt_tokens=-1)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "inputs"),
        ({"inputs": []}, "inputs"),
        ({"inputs": ["a", 5]}, "inputs"),
        ({"inputs": "a", "truncation_direction": "Left"}, "truncation_direction"),
        ({"inputs": "a", "dimensions": 10**6}, "dimensions"),
        ({"inputs": "a", "colour": "red"}, "colour"),
    ],
)
def test_errors_have_teis_shape(url: str, body: dict[str, Any], named: str) -> None:
    response = embed(url, **body)
    assert response.status_code == 400
    assert response.json().keys() == {"error", "error_type"}
    assert response.json()["error_type"] == "Validation" and named in response.json()["error"]


def test_a_key_is_asked_for() -> None:
    gateway = Gateway(GatewayOptions(api_key=("sk-1",)))
    with running_server(ScriptedEngine(), gateway=gateway) as url:
        assert embed(url, inputs="a").status_code == 401
        assert embed(url, inputs="a").json().keys() == {"error", "error_type"}
