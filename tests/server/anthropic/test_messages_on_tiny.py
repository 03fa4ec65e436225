"""Anthropic's client and types against a real engine on a tiny model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
from anthropic.types import Message, MessageTokensCount, ModelInfo

from tests.server.dialogues import events_of
from tests.server.running import running_server, wait_until
from tests.server.tiny import CONTEXT, tiny_engine
from twostroke.engine.clients.thread import AsyncEngine

USER: list[Any] = [{"role": "user", "content": "the dog"}]
BODY: dict[str, Any] = {"model": "tiny", "messages": USER, "max_tokens": 8}
GREEDY: dict[str, Any] = {"extra_body": {"temperature": 0}}


@pytest.fixture(scope="module")
def engine() -> Iterator[AsyncEngine]:
    with tiny_engine() as engine:
        yield engine


@pytest.fixture(scope="module")
def url(engine: AsyncEngine) -> Iterator[str]:
    with running_server(engine, served_model_name=("tiny",)) as url:
        yield url


@pytest.fixture
def api(url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def text_of(message: Any) -> str:
    return "".join(block.text for block in message.content)


def test_answers_are_of_anthropics_types(url: str) -> None:
    """Its client believes what it gets; its models, asked to validate, do not."""
    with httpx.Client(base_url=url + "/v1") as client:
        Message.model_validate_json(client.post("/messages", json=BODY).content)
        counted = {"model": "tiny", "messages": USER}
        response = client.post("/messages/count_tokens", json=counted)
        MessageTokensCount.model_validate_json(response.content)
        headers = {"anthropic-version": "2023-06-01"}
        ModelInfo.model_validate_json(client.get("/models/tiny", headers=headers).content)


def test_the_answer_is_that_of_a_chat(api: anthropic.Anthropic, url: str) -> None:
    """One prompt, two dialects."""
    with openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as other:
        chat: Any = other.chat.completions.create(
            **{**BODY, "temperature": 0, "messages": [{"role": "system", "content": "x"}, *USER]}
        )
    message: Any = api.messages.create(**BODY, **GREEDY, system="x")
    assert text_of(message) == chat.choices[0].message.content
    assert message.usage.output_tokens == chat.usage.completion_tokens
    usage = message.usage
    total = usage.input_tokens + usage.cache_read_input_tokens
    assert total == chat.usage.prompt_tokens
    assert usage.cache_read_input_tokens > 0  # the chat has left its prompt in the cache


def test_a_stream_and_a_message_are_one(api: anthropic.Anthropic) -> None:
    message: Any = api.messages.create(**BODY, **GREEDY)
    with api.messages.stream(**BODY, **GREEDY) as stream:
        final: Any = stream.get_final_message()
    assert text_of(final) == text_of(message)
    assert final.stop_reason == message.stop_reason
    assert final.usage.output_tokens == message.usage.output_tokens


def test_a_stop_sequence_ends_it(api: anthropic.Anthropic) -> None:
    text = text_of(api.messages.create(**BODY, **GREEDY))
    assert len(text) > 2
    stop = text[1:3]
    message: Any = api.messages.create(**BODY, **GREEDY, stop_sequences=[stop])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
    assert text_of(message) == text.partition(stop)[0]


def test_the_context_ends_it(api: anthropic.Anthropic) -> None:
    """Tried until the model does not end by itself."""
    for seed in range(20):
        turns = [{"role": "user", "content": f"the dog {seed}"}]
        message: Any = api.messages.create(**{**BODY, "messages": turns, "max_tokens": 9999})
        if message.stop_reason != "end_turn":
            break
    assert message.stop_reason == "model_context_window_exceeded"
    usage = message.usage
    total = usage.input_tokens + usage.cache_read_input_tokens + usage.output_tokens
    assert total == CONTEXT
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        api.messages.create(**{**BODY, "messages": [{"role": "user", "content": "dog " * 999}]})


def test_a_prompt_that_is_cached_alone(api: anthropic.Anthropic) -> None:
    turns = [{"role": "user", "content": "the fox jumps over the lazy dog"}]
    fields = {**BODY, "messages": turns}
    empty: Any = api.messages.create(**{**fields, "max_tokens": 0})
    assert (empty.content, empty.stop_reason) == ([], "max_tokens")
    assert api.messages.create(**fields).usage.cache_read_input_tokens


def test_many_streams_at_once_end_whole(url: str, engine: AsyncEngine) -> None:
    """And those that are left early free their blocks."""
    with httpx.Client(base_url=url, timeout=60) as client:
        for leave in (False, True) * 4:
            body = {**BODY, "max_tokens": 60, "stream": True}
            with client.stream("POST", "/v1/messages", json=body) as response:
                if leave:
                    next(response.iter_bytes())
                    continue
                assert events_of(response.read().decode())[-1]["type"] == "message_stop"
    wait_until(lambda: engine.status.stats.num_running + engine.status.stats.num_waiting == 0)
    wait_until(lambda: engine.status.stats.free_blocks == engine.info.num_blocks)
