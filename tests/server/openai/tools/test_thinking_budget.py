"""A thinking budget over HTTP: a real engine, whose template opens the thought."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.server.http_calls import USER
from tests.server.openai.tools.test_tools import THINKING
from tests.server.running import running_server
from tests.server.tiny import tiny_engine

FORM = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "ok", "schema": FORM}}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with (
        tiny_engine(template=THINKING) as engine,
        running_server(engine, served_model_name=("tiny",)) as url,
    ):
        yield url


def post(url: str, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(url + path, json=body, timeout=60)


def num_tokens(url: str, text: str) -> int:
    response = post(url, "/tokenize", {"prompt": text, "add_special_tokens": False})
    return int(response.json()["count"])


@pytest.mark.parametrize("budget", [0, 1, 6])
@pytest.mark.parametrize("seed", range(3))
def test_a_chat_answers_by_its_form_behind_a_bounded_thought(
    url: str, budget: int, seed: int
) -> None:
    body = {"messages": USER, "max_tokens": 120, "seed": seed, "response_format": SCHEMA}
    body |= {"thinking_token_budget": budget, "return_token_ids": True}
    choice = post(url, "/v1/chat/completions", body).json()["choices"][0]
    assert choice["finish_reason"] == "stop", choice
    assert json.loads(choice["message"]["content"])["ok"] in (True, False)
    # A character may have to be completed.
    until = budget + 3 + num_tokens(url, "\n</think>\n\n")
    begun = post(url, "/detokenize", {"tokens": choice["token_ids"][:until]}).json()["prompt"]
    assert "</think>" in begun


def test_without_a_form_the_answer_is_free_behind_the_thought(url: str) -> None:
    body = {"messages": USER, "max_tokens": 60, "seed": 1, "ignore_eos": True}
    body |= {"thinking_token_budget": 4, "logprobs": True}
    choice = post(url, "/v1/chat/completions", body).json()["choices"][0]
    assert choice["message"]["content"]
    tokens = [entry["token"] for entry in choice["logprobs"]["content"]]
    assert "</think>" in "".join(tokens[: 4 + num_tokens(url, "\n</think>\n\n")])


def test_other_dialects(url: str) -> None:
    """They bound the same thought at the same place."""
    fields = {"temperature": 0, "chat_template_kwargs": {}}
    body = {"messages": USER, "max_tokens": 40, "thinking_token_budget": 7, **fields}
    message = post(url, "/v1/chat/completions", body).json()["choices"][0]["message"]
    assert message["reasoning_content"] and message["content"] is not None
    body = {"input": USER[0]["content"], "max_output_tokens": 40, "thinking_token_budget": 7}
    items = post(url, "/v1/responses", body | fields).json()["output"]
    thoughts = [item["content"][0]["text"] for item in items if item["type"] == "reasoning"]
    assert thoughts == [message["reasoning_content"]]
    thinking = {"type": "enabled", "budget_tokens": 7}
    body = {"messages": USER, "max_tokens": 40, "thinking": thinking, "temperature": 0}
    response = post(url, "/v1/messages", body)
    assert "thinking.budget_tokens" not in response.headers.get("x-ignored-fields", "")
    blocks = response.json()["content"]
    assert [b["thinking"] for b in blocks if b["type"] == "thinking"] == thoughts


def test_usage_counts_the_thought(url: str) -> None:
    """The same number whole and streamed: the budget, and what the tags' own pieces add."""
    most = 7 + 3 + num_tokens(url, "\n</think>\n\n")
    body = {"messages": USER, "max_tokens": 40, "thinking_token_budget": 7, "temperature": 0}
    usage = post(url, "/v1/chat/completions", body).json()["usage"]
    details = usage["completion_tokens_details"]
    assert 7 <= details["reasoning_tokens"] <= most < usage["completion_tokens"]
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    lines = post(url, "/v1/chat/completions", body).text.splitlines()
    last = [line for line in lines if line][-2]
    assert json.loads(last.removeprefix("data: "))["usage"]["completion_tokens_details"] == details
    items = {"input": USER[0]["content"], "max_output_tokens": 40, "thinking_token_budget": 7}
    usage = post(url, "/v1/responses", items | {"temperature": 0}).json()["usage"]
    assert 7 <= usage["output_tokens_details"]["reasoning_tokens"] <= most


def test_a_bad_budget_is_refused(url: str) -> None:
    error = post(
        url, "/v1/chat/completions", {"messages": USER, "thinking_token_budget": -2}
    ).json()["error"]
    assert error["param"] == "thinking_token_budget"


def test_models_that_do_not_think_ignore_it() -> None:
    with tiny_engine() as engine, running_server(engine, served_model_name=("tiny",)) as url:
        body = {"messages": USER, "max_tokens": 4, "thinking_token_budget": 0}
        response = post(url, "/v1/chat/completions", body)
        assert response.status_code == 200
        assert "thinking_token_budget" in response.headers["x-ignored-fields"]
