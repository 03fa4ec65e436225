"""Ollama's own Python client, unchanged but for the address."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import ollama
import pytest
from pydantic import BaseModel, ConfigDict

from tests.server.clients.conftest import ANSWER, CALL, TurnsEngine
from tests.server.running import running_server
from tests.server.scripted import Script
from tests.server.tiny import tiny_engine
from twostroke.cli.serving.serve import describe_model
from twostroke.core.config import ModelOptions
from twostroke.gateway.gateway import Gateway
from twostroke.gateway.options import GatewayOptions

QUESTION = [{"role": "user", "content": "What is the KV cache?"}]
SHORT = {"num_predict": 40, "temperature": 0}
TEXT = "".join(ANSWER)


class Gpu(BaseModel):
    model_config = ConfigDict(extra="forbid")
    ok: bool


Connect = Callable[..., ollama.Client]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Makes clients of a server, which are closed in the end."""
    with ExitStack() as stack:

        def open_client(url: str, **options: Any) -> ollama.Client:
            client = ollama.Client(host=url.removesuffix("/v1"), **options)
            stack.callback(client.close)
            return client

        yield open_client


@pytest.fixture
def api(connect: Connect, pilot_url: str) -> ollama.Client:
    return connect(pilot_url)


def test_a_chat_whole_and_streamed(api: ollama.Client) -> None:
    whole = api.chat("pilot", QUESTION, options=SHORT, keep_alive="5m")
    chunks = list(api.chat("pilot", QUESTION, options=SHORT, stream=True))
    text = "".join(chunk.message.content or "" for chunk in chunks)
    assert text == whole.message.content and "cache" in text and len(chunks) > 3
    assert whole.done_reason == chunks[-1].done_reason == "length"
    assert whole.eval_count == chunks[-1].eval_count == 40
    assert whole.prompt_eval_count and whole.total_duration and whole.eval_duration
    # What people compute of it.
    assert whole.eval_count / whole.eval_duration * 1e9 > 1


async def test_the_async_client(pilot_url: str) -> None:
    question = "What is the KV cache?"
    async with ollama.AsyncClient(host=pilot_url.removesuffix("/v1")) as api:
        whole = await api.generate("pilot", question, options=SHORT)
        stream = await api.generate("pilot", question, options=SHORT, stream=True)
        pieces = [chunk.response or "" async for chunk in stream]
    assert "".join(pieces) == whole.response and len(pieces) > 3


def test_a_conversation_by_its_context(api: ollama.Client) -> None:
    """The older way to go on with one, by generate alone."""
    first = api.generate("pilot", "What is the KV cache?", options=SHORT)
    assert first.context
    second = api.generate("pilot", "And what is a block?", context=first.context, options=SHORT)
    assert second.prompt_eval_count is not None
    assert second.prompt_eval_count > len(first.context) and second.response


def test_a_form(api: ollama.Client) -> None:
    answer = api.chat("pilot", QUESTION, format=Gpu.model_json_schema(), options=SHORT)
    Gpu.model_validate_json(answer.message.content or "")
    free = api.generate("pilot", "Reply in JSON.", format="json", options={"num_predict": 200})
    if free.done_reason == "stop":
        assert isinstance(json.loads(free.response or ""), dict)


def test_log_probabilities(api: ollama.Client) -> None:
    answer = api.chat("pilot", QUESTION, options=SHORT, logprobs=True, top_logprobs=3)
    assert answer.logprobs is not None and len(answer.logprobs) == 40
    for entry in answer.logprobs:
        assert entry.top_logprobs is not None and len(entry.top_logprobs) == 3
        assert entry.logprob == max(other.logprob for other in entry.top_logprobs)


def test_what_the_model_is(api: ollama.Client) -> None:
    (listed,) = api.list().models
    assert listed.model == "pilot:latest" and listed.size and listed.digest
    shown = api.show("pilot")
    assert shown.capabilities == ["completion", "tools"] and "<tool_call>" in (shown.template or "")
    info = shown.modelinfo or {}
    assert info[f"{info['general.architecture']}.context_length"] == 8192
    (running,) = api.ps().models
    assert running.context_length == 8192 and running.size_vram == 0


def test_its_description_where_the_server_has_one(connect: Connect) -> None:
    """As ``twostroke serve`` gives it: family, parameters, layers."""
    engine = TurnsEngine(Script(), turns=[ANSWER])
    describe = partial(describe_model, ModelOptions(model="pilot"), None)
    with running_server(engine, describe_model=describe) as url:
        api = connect(url)
        shown = api.show("scripted:latest")
        assert shown.details is not None and shown.modelinfo is not None
        assert (shown.details.family, shown.details.parameter_size) == ("llama", "7.3M")
        assert shown.modelinfo["llama.block_count"] == 8
        (listed,) = api.list().models
        assert listed.details == shown.details


def test_pulling_what_is_there_and_what_is_not(api: ollama.Client) -> None:
    assert api.pull("pilot").status == "success"
    assert [step.status for step in api.pull("pilot:latest", stream=True)] == ["success"]
    with pytest.raises(ollama.ResponseError, match="not found") as missing:
        api.pull("llama3.2")
    assert missing.value.status_code == 404


@pytest.mark.parametrize("method", ["delete", "push", "copy", "create"])
def test_the_library_stays_as_it_is(api: ollama.Client, method: str) -> None:
    arguments = {"copy": ("pilot", "other")}.get(method, ("pilot",))
    with pytest.raises(ollama.ResponseError, match=f"does not {method} models") as refused:
        getattr(api, method)(*arguments)
    assert refused.value.status_code == 400


def test_a_context_that_does_not_fit(api: ollama.Client) -> None:
    long = [{"role": "user", "content": "block " * 20_000}]
    for streamed in (False, True):
        with pytest.raises(ollama.ResponseError, match="maximum context length") as refused:
            list(api.chat("pilot", long, stream=streamed))
        assert refused.value.status_code == 400
    with pytest.raises(ollama.ResponseError, match="not made for embeddings"):
        api.embed("pilot", "x")


def get_weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: Its name.
    """
    return f"rain in {city}"


@pytest.mark.parametrize("streamed", [False, True])
def test_a_tool_loop_of_several_turns(
    connect: Connect, agent: TurnsEngine, agent_url: str, streamed: bool
) -> None:
    """As the client's examples write it: functions as tools, messages sent back as they are."""
    agent.turns = [CALL, CALL, ANSWER]
    api = connect(agent_url)
    conversation: list[Any] = [{"role": "user", "content": "Does it rain in Bern?"}]
    asked: list[str] = []
    while True:
        answer = turn(api, conversation, streamed=streamed)
        conversation.append(answer)
        if not answer.tool_calls:
            break
        for call in answer.tool_calls:
            assert call.function.name == "get_weather"
            asked.append(get_weather(**call.function.arguments))
            conversation.append(
                {"role": "tool", "tool_name": call.function.name, "content": asked[-1]}
            )
    assert answer.content == TEXT and asked == ["rain in Bern"] * 2
    assert "The weather of a city" in agent.prompt(0)
    assert agent.prompt(2).count("[get_weather Bern]tool: rain in Bern") == 2


def turn(api: ollama.Client, conversation: list[Any], *, streamed: bool) -> ollama.Message:
    if not streamed:
        return api.chat("scripted", conversation, tools=[get_weather]).message
    message = ollama.Message(role="assistant", content="", tool_calls=[])
    for chunk in api.chat("scripted", conversation, tools=[get_weather], stream=True):
        message.content = (message.content or "") + (chunk.message.content or "")
        message.tool_calls = [*(message.tool_calls or ()), *(chunk.message.tool_calls or ())]
    return message


def test_a_key(connect: Connect) -> None:
    gateway = Gateway(GatewayOptions(api_key=("sk-1",)))
    engine = TurnsEngine(Script(), turns=[ANSWER])
    with running_server(engine, gateway=gateway) as url:
        with pytest.raises(ollama.ResponseError) as refused:
            connect(url).list()
        assert refused.value.status_code == 401
        api = connect(url, headers={"Authorization": "Bearer sk-1"})
        assert api.chat("scripted", QUESTION).message.content == TEXT


@pytest.fixture(scope="module")
def vectors() -> Iterator[ollama.Client]:
    with (
        tiny_engine(max_model_len=64) as engine,
        running_server(engine) as url,
        ollama.Client(host=url) as client,
    ):
        yield client


def test_embeddings(vectors: ollama.Client) -> None:
    answer = vectors.embed("scripted", ["the dog", "a fox"])
    assert len(answer.embeddings) == 2 and answer.prompt_eval_count and answer.total_duration
    (one,) = vectors.embed("scripted", "the dog", dimensions=8).embeddings
    assert len(one) == 8 and sum(value**2 for value in one) == pytest.approx(1, abs=1e-5)
    older = vectors.embeddings("scripted", "the dog").embedding
    assert older == pytest.approx(answer.embeddings[0], abs=1e-5)
    assert vectors.embed("scripted", "").embeddings == []
    assert vectors.embeddings("scripted", "").embedding == []
    assert "embedding" in (vectors.show("scripted").capabilities or [])


def test_a_text_too_long_to_embed(vectors: ollama.Client) -> None:
    """Cut only where the client says so."""
    long = "the dog " * 100
    for truncate in (None, False):
        with pytest.raises(ollama.ResponseError, match=r"input\[1\]"):
            vectors.embed("scripted", ["x", long], truncate=truncate)
    answer = vectors.embed("scripted", long, truncate=True)
    assert answer.prompt_eval_count == 64
    with pytest.raises(ollama.ResponseError, match="prompt has"):
        vectors.embeddings("scripted", long)
