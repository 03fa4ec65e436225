"""``/v2/embed`` as Cohere's clients call it, and vLLM's documents show it."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.server.running import running_server
from tests.server.scripted import ScriptedEngine
from tests.server.vectors.vector_server import CONTEXT, embeddings, vector_server
from twostroke.gateway.gateway import Gateway
from twostroke.gateway.options import GatewayOptions
from twostroke.server.http.ignored_header import IGNORED_FIELDS

TEXTS = ["the dog", "a fox"]


def embed(url: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{url}/v2/embed", json={"texts": TEXTS, **body}, timeout=30)


def test_floats_by_default(url: str) -> None:
    answer = embed(url).json()
    assert answer["embeddings"] == {"float": embeddings(url, TEXTS)}
    assert answer["texts"] == TEXTS and answer["response_type"] == "embeddings_by_type"
    assert answer["meta"]["tokens"]["input_tokens"] > 0 and answer["id"].startswith("embd-")


def test_each_form_holds_the_same_vectors(url: str) -> None:
    types = ["float", "base64", "binary", "ubinary", "float"]
    forms = embed(url, embedding_types=types).json()["embeddings"]
    vectors = np.array(forms["float"], dtype="<f4")
    packed = [np.frombuffer(base64.b64decode(text), "<f4") for text in forms["base64"]]
    assert np.array_equal(packed, vectors)
    bits = np.packbits(vectors >= 0, axis=1)
    assert np.array_equal(forms["ubinary"], bits)
    assert np.array_equal(forms["binary"], bits.astype(int) - 128)
    assert forms.keys() == set(types)


@pytest.mark.parametrize(
    ("input_type", "before"),
    [("search_query", "find: "), ("search_document", ""), ("classification", "sort: ")],
)
def test_the_type_of_texts_is_a_prompt_of_the_checkpoint(
    url: str, input_type: str, before: str
) -> None:
    response = embed(url, input_type=input_type)
    expected = embeddings(url, [before + text for text in TEXTS])
    assert response.json()["embeddings"]["float"] == expected
    assert response.json()["texts"] == TEXTS and IGNORED_FIELDS not in response.headers


def test_a_model_without_prompts_takes_any_type_and_says_so(tmp_path: Path) -> None:
    """Cohere's own client always sends one."""
    with vector_server(tmp_path, prompts=False) as url:
        response = embed(url, input_type="search_query")
        assert response.json()["embeddings"]["float"] == embeddings(url, TEXTS)
        assert response.headers[IGNORED_FIELDS] == "input_type"


def test_what_is_too_long(url: str) -> None:
    """It is cut by default, as Cohere's API says."""
    text = "the dog " * CONTEXT
    whole = {"truncate_prompt_tokens": -1}
    for fields in ({}, {"truncate": "END"}, {"max_tokens": 10**6}):
        answer = embed(url, texts=[text], **fields).json()
        assert answer["embeddings"]["float"] == embeddings(url, [text], **whole)
    five = embed(url, texts=[text], max_tokens=5).json()
    assert five["embeddings"]["float"] == embeddings(url, [text], truncate_prompt_tokens=5)
    assert five["meta"]["tokens"]["input_tokens"] == 5
    assert embed(url, texts=[text], truncate="NONE").status_code == 400


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"texts": []}, "texts"),
        ({"texts": "the dog"}, "texts"),
        ({"images": ["data:image/png;base64,aa"]}, "images"),
        ({"embedding_types": ["int8"]}, "embedding_types"),
        ({"embedding_types": ["binary"], "output_dimension": 12}, "multiple of 8"),
        ({"output_dimension": 10**6}, "dimensions"),
        ({"input_type": "rhyme"}, "input_type"),
        ({"truncate": "START"}, "truncate"),
        ({"truncate": "NONE", "max_tokens": 5}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_errors_have_coheres_shape(url: str, body: dict[str, Any], named: str) -> None:
    response = embed(url, **body)
    assert response.status_code == 400, response.text
    assert response.json().keys() == {"message"} and named in response.json()["message"]


def test_a_key_is_asked_for() -> None:
    gateway = Gateway(GatewayOptions(api_key=("sk-1",)))
    with running_server(ScriptedEngine(), gateway=gateway) as url:
        assert embed(url).status_code == 401 and embed(url).json().keys() == {"message"}
        key = {"authorization": "Bearer sk-1"}
        other = httpx.post(f"{url}/v2/embed", json={"texts": ["x"], "model": "x"}, headers=key)
        assert other.status_code == 404 and other.json().keys() == {"message"}
