"""``/pooling`` as vLLM's clients call it."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from tests.runtime.vectors.test_scoring import CLASSIFIER
from tests.runtime.vectors.test_scoring import write as write_classifier
from tests.server.openai.ranking.test_decoder_ranking import server, tokenizer
from tests.server.running import running_server
from tests.server.tiny import VOCAB, tiny_engine


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with tiny_engine(max_model_len=64) as engine, running_server(engine) as url:
        yield url


def post(url: str, path: str = "/pooling", **body: Any) -> httpx.Response:
    return httpx.post(url + path, json=body, timeout=30)


def test_vectors_are_those_of_embeddings(url: str) -> None:
    texts = ["the dog", "a fox"]
    answer = post(url, input=texts, task="embed").json()
    assert answer["object"] == "list" and answer["id"].startswith("pool-")
    assert [(item["index"], item["object"]) for item in answer["data"]] == [
        (0, "pooling"),
        (1, "pooling"),
    ]
    embedded = post(url, "/v1/embeddings", input=texts, encoding_format="float").json()
    assert [item["data"] for item in answer["data"]] == [
        pytest.approx(item["embedding"], abs=1e-5) for item in embedded["data"]
    ]
    assert answer["usage"] == embedded["usage"]
    packed = post(url, input=texts, task="embed", encoding_format="base64").json()["data"]
    values = np.frombuffer(base64.b64decode(packed[1]["data"]), dtype="<f4").tolist()
    assert values == pytest.approx(answer["data"][1]["data"], abs=1e-5)


def test_vectors_as_they_are_pooled(url: str) -> None:
    """vLLM calls it activation, and before that normalize."""
    (one,) = post(url, input="the dog", task="embed").json()["data"]
    for field in ("use_activation", "normalize"):
        asked: dict[str, Any] = {"input": "the dog", "task": "embed"}
        (raw,) = post(url, **{**asked, field: False}).json()["data"]
        length = math.hypot(*raw["data"])
        assert abs(length - 1) > 1e-3
        assert [value / length for value in raw["data"]] == pytest.approx(one["data"], abs=1e-5)
        (same,) = post(url, **{**asked, field: True}).json()["data"]
        assert same["data"] == pytest.approx(one["data"], abs=1e-5)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "task"),
        ({"task": "token_embed"}, "task"),
        ({"task": "encode"}, "task"),
        ({"task": "stretch"}, "task"),
        ({"task": "embed", "truncation_side": "left"}, "truncation_side"),
        ({"task": "embed", "dimensions": 10**6}, "dimensions"),
        ({"task": "classify", "dimensions": 5}, "dimensions"),
        ({"task": "classify", "use_activation": False}, "use_activation"),
        ({"task": "classify"}, None),
        ({"task": "embed", "messages": [{"role": "user", "content": "x"}]}, "messages"),
    ],
)
def test_what_is_not_given_is_refused(url: str, body: dict[str, Any], param: str | None) -> None:
    """States of single tokens above all, which is what vLLM gives without a task."""
    response = post(url, input="the dog", **body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_a_head_classifies_single_texts(tmp_path: Path) -> None:
    """One score for each text, as transformers has it."""
    import transformers

    texts = ["the dog", "a fox"]
    folder = write_classifier(
        tmp_path, head=True, vocab_size=VOCAB, max_position_embeddings=256, **CLASSIFIER
    )
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, dtype=torch.float32
    ).eval()
    expected = []
    for text in texts:
        with torch.inference_mode():
            logit = model(torch.tensor([tokenizer().encode(text)])).logits[0, 0]
        expected.append([float(torch.sigmoid(logit))])
    with server(folder, dtype="float32") as url:
        answer = post(url, input=texts, task="classify").json()
        assert [item["data"] for item in answer["data"]] == [
            pytest.approx(score, abs=1e-4) for score in expected
        ]
        assert post(url, input="the dog", task="embed").status_code == 400
