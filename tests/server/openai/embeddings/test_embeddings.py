"""``/v1/embeddings`` as clients use it: the openai package on a real server and a real engine."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from tests.fakes import engine_of
from tests.server.running import running_server
from tests.server.tiny import tiny_engine
from twostroke.core.pooling import Pooling
from twostroke.engine.clients.thread import AsyncEngine
from twostroke.runtime.reference import embed_naive
from twostroke.runtime.torch_executor import TorchExecutor

CONTEXT = 64


@pytest.fixture(scope="module")
def engine() -> Iterator[AsyncEngine]:
    with tiny_engine(max_model_len=CONTEXT, max_num_seqs=16) as engine:
        yield engine


@pytest.fixture(scope="module")
def url(engine: AsyncEngine) -> Iterator[str]:
    with running_server(engine, served_model_name=("tiny",)) as url:
        yield url


@pytest.fixture(scope="module")
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def naive(engine: AsyncEngine, tokens: list[int], size: int = 32) -> list[float]:
    executor = engine_of(engine).executor
    assert isinstance(executor, TorchExecutor)
    pooling = Pooling(task="embed", kind="last", normalise=True, size=size)
    return embed_naive(executor.model, tokens, pooling)


def post(url: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/embeddings", json=body, timeout=30)


def test_texts_and_token_ids_by_the_openai_package(
    engine: AsyncEngine, client: openai.OpenAI
) -> None:
    """The package asks for base64 unless told otherwise, and decodes it itself."""
    tokens = [engine.tokenizer.encode(text) for text in ("the dog", "a fox")]
    for sent, expected in (
        ("the dog", tokens[:1]),
        (["the dog", "a fox"], tokens),
        (tokens[0], tokens[:1]),
        (tokens, tokens),
    ):
        answer = client.embeddings.create(model="tiny", input=sent)
        assert answer.model == "tiny" and answer.object == "list"
        assert [item.index for item in answer.data] == list(range(len(expected)))
        for item, prompt in zip(answer.data, expected, strict=True):
            assert item.object == "embedding"
            assert item.embedding == pytest.approx(naive(engine, prompt), abs=1e-5)
        assert answer.usage.prompt_tokens == sum(map(len, expected)) == answer.usage.total_tokens


def test_both_encodings_hold_the_same_numbers(client: openai.OpenAI, url: str) -> None:
    numbers = client.embeddings.create(model="tiny", input="the dog", encoding_format="float")
    packed = post(url, input="the dog", encoding_format="base64").json()["data"][0]["embedding"]
    values = np.frombuffer(base64.b64decode(packed), dtype="<f4").tolist()
    assert values == numbers.data[0].embedding
    assert math.hypot(*values) == pytest.approx(1, abs=1e-5)


def test_fewer_dimensions_are_cut_and_normalised_again(
    engine: AsyncEngine, client: openai.OpenAI
) -> None:
    answer = client.embeddings.create(model="tiny", input="the dog", dimensions=5)
    expected = naive(engine, engine.tokenizer.encode("the dog"), 5)
    assert answer.data[0].embedding == pytest.approx(expected, abs=1e-5)


def test_a_large_batch_beside_an_answer(client: openai.OpenAI) -> None:
    """As many as clients send at once, in the same steps as a text being written."""
    texts = [f"dog {number}" for number in range(1000)]
    stream = client.completions.create(model="tiny", prompt="the", max_tokens=40, stream=True)
    answer = client.embeddings.create(model="tiny", input=texts)
    assert len(answer.data) == 1000
    assert [item.index for item in answer.data] == list(range(1000))
    alone = client.embeddings.create(model="tiny", input=texts[700])
    assert answer.data[700].embedding == pytest.approx(alone.data[0].embedding, abs=1e-5)
    assert list(stream)


def test_what_is_too_long_is_refused_or_cut(engine: AsyncEngine, url: str) -> None:
    text = "the dog " * 100
    refused = post(url, input=["a", text])
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert refused.json()["error"]["param"] == "input[1]"
    for length in (-1, CONTEXT, 10, 1):
        answer = post(url, input=text, truncate_prompt_tokens=length)
        assert answer.status_code == 200, answer.text
        used = answer.json()["usage"]["prompt_tokens"]
        assert used == (CONTEXT if length == -1 else length)
    ids = list(range(1, 100))
    cut = post(url, input=ids, truncate_prompt_tokens=7).json()["data"][0]["embedding"]
    assert cut == pytest.approx(naive(engine, ids[:7]), abs=1e-5)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": [[1], []]}, "input[1]"),
        ({"input": [1, -1]}, "input"),
        ({"input": [[1], [10**6]]}, "input[1]"),
        ({"input": 5}, "input"),
        ({"input": ["a", 5]}, "input[1]"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": 33}, "dimensions"),
        ({"input": "a", "dimensions": "5"}, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "embed_dtype": "float16"}, "embed_dtype"),
        ({"input": "a", "messages": [{"role": "user", "content": "x"}]}, "messages"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"input": "a", "priority": 3}, "priority"),
        ({"input": "a", "inputs": "a"}, "inputs"),
    ],
)
def test_a_wrong_field_is_a_400_that_names_it(url: str, body: dict[str, Any], param: str) -> None:
    answer = post(url, **body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param, answer.text


def test_a_lone_surrogate_is_a_400(url: str) -> None:
    for field in ("input", "user"):
        body = {"input": "a", field: "X"}
        content = str(body).replace("'", '"').replace("X", "\\ud800")
        answer = httpx.post(
            f"{url}/v1/embeddings", content=content, headers={"content-type": "application/json"}
        )
        assert answer.status_code == 400 and answer.json()["error"]["param"] == field


def test_nothing_is_left_behind(engine: AsyncEngine, url: str) -> None:
    post(url, input=["a"] * 50, user="me", metadata={"a": "b"})
    assert engine.status.stats.num_running + engine.status.stats.num_waiting == 0
    assert engine.status.stats.free_blocks == engine.info.num_blocks
