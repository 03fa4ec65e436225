"""LangChain's client for OpenAI-compatible servers, unchanged but for the address."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAI

from tests.server.running import running_server
from tests.server.scripted import ScriptedEngine

TEXT = "the quick brown fox"
MESSAGES = [
    SystemMessage("be brief"),
    HumanMessage("hi"),
    AIMessage("hello"),
    HumanMessage("the dog"),
]


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest_asyncio.fixture
async def server(engine: ScriptedEngine) -> AsyncIterator[dict[str, Any]]:
    # Its own connections, since LangChain would keep those it makes for as long as the process
    # lives.
    async with httpx.AsyncClient() as asynchronous:
        with running_server(engine) as url, httpx.Client() as synchronous:
            clients = {"http_client": synchronous, "http_async_client": asynchronous}
            yield {
                "base_url": url + "/v1",
                "api_key": "none",
                "model": "scripted",
                "max_retries": 0,
                **clients,
            }


def test_a_conversation(engine: ScriptedEngine, server: dict[str, Any]) -> None:
    answer = ChatOpenAI(**server, temperature=0.5, seed=3, extra_body={"top_k": 5}).invoke(MESSAGES)
    assert answer.content == TEXT
    assert answer.usage_metadata is not None and answer.usage_metadata["output_tokens"] == 4
    assert answer.response_metadata["finish_reason"] == "stop"
    request = engine.submitted[0]
    assert (request.params.temperature, request.params.seed, request.params.top_k) == (0.5, 3, 5)
    prompt = engine.tokenizer.decode(request.prompt_token_ids)
    assert prompt == "system: be brief\nuser: hi\nassistant: hello\nuser: the dog\nassistant: "


def test_a_stream(server: dict[str, Any]) -> None:
    chunks = list(ChatOpenAI(**server, stream_usage=True).stream(MESSAGES))
    assert "".join(str(chunk.content) for chunk in chunks) == TEXT
    counts = [chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata]
    assert counts == [4]


async def test_batches_and_async_streams(server: dict[str, Any]) -> None:
    model = ChatOpenAI(**server)
    answers = await model.abatch([MESSAGES] * 3)
    assert [answer.content for answer in answers] == [TEXT] * 3
    assert "".join([str(chunk.content) async for chunk in model.astream(MESSAGES)]) == TEXT


def test_log_probabilities_and_stops(engine: ScriptedEngine, server: dict[str, Any]) -> None:
    model = ChatOpenAI(**server, logprobs=True, top_logprobs=2)
    answer = model.invoke(MESSAGES, stop=["END"])
    assert len(answer.response_metadata["logprobs"]["content"]) == 4
    assert list(engine.submitted[0].params.stop) == ["END"]


def test_text_completions(server: dict[str, Any]) -> None:
    model = OpenAI(**server, n=2, best_of=2, max_tokens=8)
    assert model.invoke("the dog") == TEXT
    assert "".join(OpenAI(**server, max_tokens=8).stream("the dog")) == TEXT


def test_what_is_not_supported_is_said(server: dict[str, Any]) -> None:
    tools = ChatOpenAI(**server).bind_tools(
        [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    )
    with pytest.raises(openai.BadRequestError, match="no form for tool calls"):
        tools.invoke(MESSAGES)


def test_the_answer_goes_back_on_turn_two(engine: ScriptedEngine, server: dict[str, Any]) -> None:
    """With all that LangChain keeps of it, names and parameters that only some models know."""
    chat = ChatOpenAI(**server, reasoning_effort="low", metadata={"a": "b"}, verbosity="low")
    messages: list[Any] = [HumanMessage("the dog", name="alice")]
    for _ in range(2):
        answer = chat.invoke(messages)
        messages += [answer, HumanMessage("go on", id="x", additional_kwargs={"k": 1})]
    prompt = engine.tokenizer.decode(engine.submitted[1].prompt_token_ids)
    assert prompt == f"user: the dog\nassistant: {TEXT}\nuser: go on\nassistant: "
