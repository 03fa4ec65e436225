"""Protects: a page may look at a short text inside pilot, and at nothing longer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tests.gateway.test_usage import ALICE, bearer, gateway_with_keys
from tests.server.running import running_server
from tests.server.scripted import ScriptedEngine
from twostroke.inspector.simulations.routes import MAX_TEXT_BODY
from twostroke.questions.inside_text import MAX_CHARACTERS, MAX_TOKENS, InsideText

PATH = "/v1/inspect/inside"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_server(ScriptedEngine()) as url:
        yield url


def test_a_text_comes_back_as_layers_with_the_attention_of_each_token(url: str) -> None:
    answer = httpx.post(url + PATH, json={"text": "The sky is blue"}, timeout=60)
    assert answer.status_code == 200, answer.text
    seen = msgspec.json.decode(answer.content, type=InsideText)
    number = len(seen.tokens)
    assert len(seen.layers) == 8
    assert {len(head) for layer in seen.layers for head in layer.attention} == {
        number * (number + 1) // 2
    }
    again = httpx.post(url + PATH, json={"tokens": [token.id for token in seen.tokens]}, timeout=60)
    assert again.content == answer.content


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"text": ""},
        {"text": "x", "tokens": [1]},
        {"text": "x" * (MAX_CHARACTERS + 1)},
        {"tokens": [1] * (MAX_TOKENS + 1)},
        {"tokens": [-1]},
        {"tokens": [2**20]},
        {"text": "x", "model": "/etc/passwd"},
        {"text": "\U0001f600" * 60},
    ],
)
def test_what_is_wrong_is_refused(url: str, body: Any) -> None:
    answer = httpx.post(url + PATH, json=body, timeout=60)
    assert answer.status_code == 400, answer.text


@pytest.mark.parametrize("content", [b"", b"[", b'{"text": "\xff"}', b" " * (MAX_TEXT_BODY + 1)])
def test_what_is_no_json_or_too_large_is_refused(url: str, content: bytes) -> None:
    assert httpx.post(url + PATH, content=content, timeout=60).status_code == 400


def test_any_key_may_look_and_without_one_no_caller(tmp_path: Path) -> None:
    with running_server(ScriptedEngine(), gateway=gateway_with_keys(tmp_path)) as url:
        assert httpx.post(url + PATH, json={"text": "x"}).status_code == 401
        answer = httpx.post(url + PATH, json={"text": "x"}, headers=bearer(ALICE), timeout=60)
        assert answer.status_code == 200
