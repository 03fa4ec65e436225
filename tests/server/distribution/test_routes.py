"""Protects: ``/v1/inspect/distribution`` says what ``/v1/completions`` draws from, with pilot."""

from __future__ import annotations

import math
import random
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.server.running import running_process

PROMPT = "The KV cache of a language model is"
JSON = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.fixture(scope="module")
def pilot() -> Iterator[httpx.Client]:
    flags = ["--port", "0", "--kv-cache-memory", "64MiB", "--dtype", "float32"]
    with running_process("-m", "twostroke", "serve", *flags) as process:
        with httpx.Client(base_url=process.url(), timeout=60) as client:
            yield client
        process.process.send_signal(signal.SIGTERM)
        assert process.end() == 0


def ask(client: httpx.Client, **body: Any) -> dict[str, Any]:
    answer = client.post("/v1/inspect/distribution", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def complete(client: httpx.Client, **body: Any) -> list[int]:
    body |= {"return_token_ids": True}
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    tokens: list[int] = answer.json()["choices"][0]["token_ids"]
    return tokens


def token_ids(client: httpx.Client, text: str) -> list[int]:
    tokens: list[int] = client.post("/tokenize", json={"prompt": text}).json()["tokens"]
    return tokens


def random_params(dice: random.Random) -> dict[str, Any]:
    """Any mixture of the filters, a few of them off each time."""
    choices: dict[str, list[Any]] = {
        "temperature": [0.0, 0.3, 0.7, 1.0, 1.0, 1.6],
        "top_k": [0, 0, 1, 5, 40],
        "top_p": [1.0, 1.0, 0.5, 0.9, 0.99],
        "min_p": [0.0, 0.0, 0.02, 0.2],
        "repetition_penalty": [1.0, 1.0, 1.3],
        "presence_penalty": [0.0, 0.0, 1.5, -1.0],
        "frequency_penalty": [0.0, 0.0, 0.8],
        "min_tokens": [0, 0, 6],
        "logit_bias": [{}, {}, {"100": 3.0, "200": -5.0}],
        "bad_words": [[], [], ["the", " model"]],
        "banned_token_ids": [[], [], [300, 301]],
    }
    return {name: dice.choice(values) for name, values in choices.items()} | {
        "seed": dice.choice([dice.randrange(2**64), dice.randrange(1000), -5])
    }


def steps_of(client: httpx.Client, prompt: list[int], seed: int) -> None:
    """An answer, then the distribution at each of its positions."""
    dice = random.Random(seed)
    params = random_params(dice)
    tokens = complete(client, prompt=prompt, max_tokens=8, **params)
    for position in range(len(tokens)):
        found = ask(client, prompt=prompt, answer_token_ids=tokens[:position], **params)
        assert found["token"] == tokens[position], (params, position)
        assert found["position"] == len(prompt) + position
        assert int(found["seed"]) == params["seed"] % 2**64
        (drawn,) = found["drawn"]
        chosen = next(token for token in found["tokens"] if token["id"] == drawn["id"])
        assert chosen["removed_by"] is None
        if params["temperature"]:
            assert chosen["begin"] - 1e-12 <= found["uniform"] <= chosen["end"] + 1e-12
        else:
            assert found["uniform"] is None


def test_each_position_is_drawn_as_in_a_completion(pilot: httpx.Client) -> None:
    """Random parameters and seeds, several at once, so that they share steps with each other."""
    prompt = token_ids(pilot, PROMPT)
    with ThreadPoolExecutor(4) as pool:
        for _ in pool.map(lambda seed: steps_of(pilot, prompt, seed), range(24)):
            pass


def test_several_tokens_are_those_of_a_completion_that_goes_on(pilot: httpx.Client) -> None:
    prompt = token_ids(pilot, PROMPT)
    params = {"seed": 5, "temperature": 1.2, "frequency_penalty": 1.0, "min_tokens": 12}
    tokens = complete(pilot, prompt=prompt, max_tokens=12, **params)
    found = ask(
        pilot, prompt=prompt, answer_token_ids=tokens[:5], max_tokens=len(tokens) - 5, **params
    )
    assert [token["id"] for token in found["drawn"]] == tokens[5:]
    body = {"prompt": prompt, "max_tokens": 12, "logprobs": 0, **params}
    answer = pilot.post("/v1/completions", json=body).json()
    logprobs = answer["choices"][0]["logprobs"]["token_logprobs"]
    assert [t["logprob"] for t in found["drawn"]] == pytest.approx(logprobs[5:], abs=1e-4)
    assert found["finish_reason"] == answer["choices"][0]["finish_reason"]


def test_the_form_of_an_answer_goes_on_where_its_tokens_end(pilot: httpx.Client) -> None:
    prompt = token_ids(pilot, "JSON: ")
    params = {"seed": 1, "guided_json": JSON, "speculation": False}
    tokens = complete(pilot, prompt=prompt, max_tokens=6, **params)
    for position in range(len(tokens)):
        found = ask(pilot, prompt=prompt, answer_token_ids=tokens[:position], **params)
        assert found["token"] == tokens[position]
        assert found["stages"][1]["name"] == "structured_outputs"
        assert found["stages"][1]["num_tokens"] < found["stages"][0]["num_tokens"]


def test_stages_say_what_each_filter_did(pilot: httpx.Client) -> None:
    found = ask(pilot, prompt=PROMPT, temperature=0.7, top_k=20, top_p=0.8, seed=0, top=30)
    assert [stage["name"] for stage in found["stages"]] == [
        "model",
        "temperature",
        "top_k",
        "top_p",
    ]
    counts = [stage["num_tokens"] for stage in found["stages"]]
    assert counts[2] == 20 and counts[3] <= 20 < counts[1] <= counts[0]
    assert len(found["tokens"]) == 30
    logprobs = [token["logprob"] for token in found["tokens"]]
    assert logprobs == sorted(logprobs, reverse=True)
    listed = math.fsum(map(math.exp, logprobs))
    assert listed + found["stages"][0]["rest"] == pytest.approx(1, abs=1e-4)
    for token in found["tokens"]:
        assert token["removed_by"] in (None, "top_k", "top_p")
        assert (token["removed_by"] is None) == (token["probabilities"][-1] > 0)
    assert found["usage"]["completion_tokens"] == 1
    plain = pilot.post(
        "/v1/completions", json={"prompt": PROMPT, "max_tokens": 1, "logprobs": 5}
    ).json()
    top = plain["choices"][0]["logprobs"]["top_logprobs"][0]
    for text, logprob in zip(list(top)[:5], list(top.values())[:5]):
        own = next(token for token in found["tokens"] if token["text"] == text)
        assert own["logprob"] == pytest.approx(logprob, abs=1e-4)


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("n", 2, "n"),
        ("stream", True, "stream"),
        ("max_tokens", 0, "max_tokens"),
        ("max_tokens", 10**6, "max_tokens"),
        ("top", 0, "top"),
        ("top", 1000, "top"),
        ("temperature", -1, "temperature"),
        ("top_p", 0, "top_p"),
        ("prompt", [], "prompt"),
        ("prompt", [10**7], "prompt"),
        ("answer_token_ids", [10**7], "answer_token_ids"),
        ("answer_token_ids", [-1], "answer_token_ids"),
        ("prompt_logprobs", 1, "prompt_logprobs"),
        ("echo", True, "echo"),
        ("suffix", "x", "suffix"),
        ("allowed_token_ids", [], "allowed_token_ids"),
        ("model", "other", "model"),
    ],
)
def test_what_is_wrong_is_named(pilot: httpx.Client, field: str, value: Any, param: str) -> None:
    body = {"prompt": PROMPT, field: value}
    answer = pilot.post("/v1/inspect/distribution", json=body)
    assert answer.status_code in (400, 404), answer.text
    assert answer.json()["error"]["param"] == param


def test_a_text_that_is_no_unicode_is_refused(pilot: httpx.Client) -> None:
    answer = pilot.post(
        "/v1/inspect/distribution",
        content=b'{"prompt": "\\ud800"}',
        headers={"content-type": "application/json"},
    )
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")


def test_nothing_left_to_draw_is_an_error_that_says_why(pilot: httpx.Client) -> None:
    body = {"prompt": PROMPT, "allowed_token_ids": [5], "banned_token_ids": [5]}
    answer = pilot.post("/v1/inspect/distribution", json=body)
    assert answer.status_code == 400
    assert "mask every one of them" in answer.json()["error"]["message"]
