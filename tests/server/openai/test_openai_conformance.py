"""The official client, and OpenAI's own types, against a real engine on a tiny model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.server.http_calls import USER
from tests.server.running import running_server, wait_until
from tests.server.tiny import CONTEXT, tiny_engine
from twostroke.engine.clients.thread import AsyncEngine

MODEL: dict[str, Any] = {"model": "tiny"}
CHAT: dict[str, Any] = {**MODEL, "messages": USER, "max_tokens": 8, "temperature": 0}
TEXT: dict[str, Any] = {**MODEL, "prompt": "the dog", "max_tokens": 8, "temperature": 0}
ON: dict[str, Any] = {"ignore_eos": True}


@pytest.fixture(scope="module")
def engine() -> Iterator[AsyncEngine]:
    with tiny_engine() as engine:
        yield engine


@pytest.fixture(scope="module")
def url(engine: AsyncEngine) -> Iterator[str]:
    with running_server(engine, served_model_name=("tiny",)) as url:
        yield url


@pytest.fixture
def api(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as client:
        yield client


def test_answers_are_of_openais_types(url: str) -> None:
    """Its client believes what it gets; its models, asked to validate, do not."""
    fields = {"messages": USER, "logprobs": True, "top_logprobs": 2, "n": 2, "max_tokens": 4}
    with httpx.Client(base_url=url + "/v1") as client:
        ChatCompletion.model_validate_json(client.post("/chat/completions", json=fields).content)
        text = {"prompt": ["the", "dog"], "logprobs": 2, "n": 2, "max_tokens": 4}
        Completion.model_validate_json(client.post("/completions", json=text).content)
        Model.model_validate_json(client.get("/models/tiny").content)
        stream = client.post("/chat/completions", json={**fields, "stream": True})
        *events, done = [line for line in stream.text.splitlines() if line]
        assert done == "data: [DONE]"
        for event in events:
            ChatCompletionChunk.model_validate_json(event.removeprefix("data: "))


def test_a_chat_in_pieces_and_whole(api: openai.OpenAI) -> None:
    free = api.chat.completions.create(**CHAT, extra_body=ON)
    assert free.choices[0].finish_reason == "length" and free.choices[0].message.content
    assert free.usage is not None and free.usage.completion_tokens == 8
    # The client's helper gathers the pieces; it refuses answers that were cut off, so this one is
    # stopped.
    fields: dict[str, Any] = {
        **CHAT,
        "extra_body": ON,
        "stop": free.choices[0].message.content[-2:],
    }
    whole = api.chat.completions.create(**fields)
    with api.chat.completions.stream(**fields, stream_options={"include_usage": True}) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == whole.choices[0].message.content
    assert final.choices[0].finish_reason == whole.choices[0].finish_reason == "stop"
    assert final.usage is not None and whole.usage is not None
    assert final.usage.completion_tokens == whole.usage.completion_tokens


async def test_the_async_client(url: str) -> None:
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as api:
        wholes = await asyncio.gather(
            *(api.chat.completions.create(**CHAT, seed=i) for i in range(4))
        )
        # Greedy: the seed does not matter.
        assert len({whole.choices[0].message.content for whole in wholes}) == 1
        stream: Any = await api.completions.create(**TEXT, extra_body=ON, stream=True)
        pieces = [choice.text async for chunk in stream for choice in chunk.choices]
        whole = await api.completions.create(**TEXT, extra_body=ON)
        assert "".join(pieces) == whole.choices[0].text


def test_samples_differ_and_repeat(api: openai.OpenAI) -> None:
    fields = {**CHAT, "temperature": 1, "n": 3, "seed": 7, "extra_body": ON}
    first, second = (api.chat.completions.create(**fields) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in second.choices]
    assert len(set(texts)) == 3
    stream: Any = api.chat.completions.create(**fields, stream=True)
    streamed = ["", "", ""]
    for chunk in stream:
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts


def test_logprobs(api: openai.OpenAI) -> None:
    chat = api.chat.completions.create(**CHAT, logprobs=True, top_logprobs=3)
    assert chat.choices[0].logprobs is not None and chat.choices[0].logprobs.content
    for entry in chat.choices[0].logprobs.content:
        assert entry.logprob == entry.top_logprobs[0].logprob  # greedy: the likeliest was taken
        assert bytes(entry.bytes or ()).decode(errors="replace") == entry.token
        assert sorted((top.logprob for top in entry.top_logprobs), reverse=True) == [
            t.logprob for t in entry.top_logprobs
        ]
    text = api.completions.create(**TEXT, logprobs=2, echo=True)
    logprobs = text.choices[0].logprobs
    assert (
        logprobs is not None
        and logprobs.tokens
        and logprobs.text_offset
        and logprobs.token_logprobs
    )
    assert logprobs.token_logprobs[0] is None
    assert logprobs.text_offset[:3] == [
        0,
        *[len("".join(logprobs.tokens[: i + 1])) for i in range(2)],
    ]
    assert "".join(logprobs.tokens).startswith("the dog")


def test_stops(api: openai.OpenAI) -> None:
    whole = api.completions.create(**TEXT, extra_body={**ON, "return_token_ids": True}).choices[0]
    tokens: list[int] = whole.token_ids
    by_text = api.completions.create(**TEXT, stop=[whole.text[2:4]], extra_body=ON).choices[0]
    assert (by_text.finish_reason, by_text.text) == (
        "stop",
        whole.text[: whole.text.index(whole.text[2:4])],
    )
    by_token: Any = api.completions.create(
        **TEXT, extra_body={**ON, "stop_token_ids": [tokens[3]]}
    ).choices[0]
    assert (by_token.finish_reason, by_token.stop_reason) == ("stop", tokens[3])


def test_cached_tokens(api: openai.OpenAI) -> None:
    fields = {**TEXT, "prompt": [5] * 40, "extra_body": {"cache_salt": "mine"}}
    usages: list[Any] = [api.completions.create(**fields).usage for _ in range(2)]
    assert [usage.prompt_tokens_details.cached_tokens for usage in usages] == [0, 36]


def test_usage_with_every_chunk(api: openai.OpenAI) -> None:
    """Without ``include_usage`` as well, which is then true, as in vLLM."""
    options: Any = {"continuous_usage_stats": True}
    for given in ({"include_usage": True}, {}):
        stream: Any = api.chat.completions.create(
            **CHAT, extra_body=ON, stream=True, stream_options=options | given
        )
        chunks = list(stream)
        counts = [chunk.usage.completion_tokens for chunk in chunks]
        assert counts == sorted(counts) and (counts[0], counts[-1]) == (0, 8)
        assert not chunks[-1].choices
    refused: Any = options | {"include_usage": False}
    for fields in ({}, {"documents": ["a text"]}):
        stream = api.chat.completions.create(
            **CHAT, extra_body=ON | fields, stream=True, stream_options=refused
        )
        assert all(chunk.usage is None for chunk in stream)


@pytest.mark.parametrize("max_tokens", [0, 3])
@pytest.mark.parametrize("samples", [1, 2])
def test_an_echo_with_logprobs_in_pieces(api: openai.OpenAI, max_tokens: int, samples: int) -> None:
    """LM Evaluation Harness and others score texts so; a long prompt is computed in chunks."""
    fields: dict[str, Any] = {
        **TEXT,
        "prompt": ["the dog " * 50, "a"],
        "max_tokens": max_tokens,
        "n": samples,
        "logprobs": 1,
        "echo": True,
    }
    whole = api.completions.create(**fields, extra_body=ON)
    stream: Any = api.completions.create(**fields, extra_body=ON, stream=True)
    texts = [""] * 2 * samples
    logprobs: list[dict[str, list[Any]]] = [{} for _ in texts]
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            if choice.logprobs is not None:
                for name, values in choice.logprobs.model_dump().items():
                    logprobs[choice.index].setdefault(name, []).extend(values)
    for choice in whole.choices:
        assert choice.logprobs is not None and choice.logprobs.tokens
        assert texts[choice.index] == choice.text
        pieces = logprobs[choice.index]
        assert pieces["tokens"] == choice.logprobs.tokens
        assert pieces["text_offset"] == choice.logprobs.text_offset
        assert pieces["token_logprobs"] == pytest.approx(choice.logprobs.token_logprobs, abs=1e-4)
        assert len(pieces["top_logprobs"]) == len(choice.logprobs.top_logprobs or ())


def test_no_answer_is_wanted(api: openai.OpenAI) -> None:
    """``max_tokens=0`` warms the cache; without ``echo`` too, and for a chat."""
    text = api.completions.create(**{**TEXT, "max_tokens": 0})
    chat = api.chat.completions.create(**{**CHAT, "max_tokens": 0})
    assert (text.choices[0].text, text.choices[0].finish_reason) == ("", "length")
    assert (chat.choices[0].message.content, chat.choices[0].finish_reason) == ("", "length")
    for usage in (text.usage, chat.usage):
        assert usage is not None and usage.completion_tokens == 0 < usage.prompt_tokens
    stream: Any = api.chat.completions.create(**{**CHAT, "max_tokens": 0}, stream=True)
    assert [chunk.choices[0].finish_reason for chunk in stream] == [None, "length"]


def test_fields_that_are_there_as_null(url: str) -> None:
    """Clients with strict types look for them."""
    with httpx.Client(base_url=url + "/v1") as client:
        chat = client.post("/chat/completions", json=CHAT).json()
        text = client.post("/completions", json=TEXT).json()
        events = client.post("/chat/completions", json={**CHAT, "stream": True}).text
    for answer in (chat, text["choices"][0]):
        assert (answer["prompt_logprobs"], answer["prompt_token_ids"]) == (None, None)
    assert (chat["system_fingerprint"], text["system_fingerprint"]) == (None, None)
    assert '"system_fingerprint":null' in events


def test_errors(api: openai.OpenAI) -> None:
    refused: list[tuple[type[openai.APIStatusError], dict[str, Any], str | None]] = [
        (openai.BadRequestError, {"temperature": 200}, "temperature"),
        (openai.BadRequestError, {"max_tokens": CONTEXT}, "max_tokens"),
        (
            openai.BadRequestError,
            {"tools": [{"type": "function", "function": {"name": "f"}}]},
            "tools",
        ),
        (openai.BadRequestError, {"extra_body": {"no_such_field": 1}}, "no_such_field"),
        (openai.NotFoundError, {"model": "gpt-5"}, "model"),
    ]
    for kind, fields, param in refused:
        for stream in (False, True):
            with pytest.raises(kind) as caught:
                api.chat.completions.create(**{**CHAT, **fields}, stream=stream)
            assert (caught.value.param, caught.value.type) == (param, "invalid_request_error")


def test_aborts(api: openai.OpenAI, engine: AsyncEngine) -> None:
    """Closing a stream, and a time-out, free everything."""
    long = {**TEXT, "max_tokens": 240, "extra_body": ON}
    stream: Any = api.completions.create(**long, stream=True)
    next(iter(stream))
    stream.close()
    with pytest.raises(openai.APITimeoutError):
        api.with_options(timeout=0.01).completions.create(**long, n=8)
    wait_until(lambda: engine.status.stats.num_running + engine.status.stats.num_waiting == 0)
    assert engine.status.stats.free_blocks == engine.info.num_blocks
