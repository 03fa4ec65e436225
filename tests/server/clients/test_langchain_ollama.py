"""LangChain by way of Ollama's API, unchanged but for the address."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Literal

import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM
from pydantic import BaseModel, ConfigDict

from tests.server.clients.conftest import CALL, TurnsEngine
from tests.server.running import running_server
from tests.server.tiny import tiny_engine

QUESTION = "What is the KV cache?"


class Gpu(BaseModel):
    """A device."""

    model_config = ConfigDict(extra="forbid")
    name: Literal["A100", "H100"]


def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"rain in {city}"


Chat = Callable[..., ChatOllama]


@pytest.fixture
def closing() -> Iterator[Callable[[Any], None]]:
    """Has the client of a model closed in the end, which LangChain leaves open."""
    with ExitStack() as stack:
        yield lambda model: stack.enter_context(model._client)


@pytest.fixture
def chat(closing: Callable[[Any], None]) -> Chat:
    """Makes chats, each of which checks on its way that the model is listed."""

    def make(url: str, model: str = "pilot") -> ChatOllama:
        llm = ChatOllama(
            model=model,
            base_url=url.removesuffix("/v1"),
            temperature=0,
            num_predict=60,
            num_ctx=2048,
            validate_model_on_init=True,
        )
        closing(llm)
        return llm

    return make


def test_text_whole_and_streamed(
    pilot_url: str, chat: Chat, closing: Callable[[Any], None]
) -> None:
    llm = chat(pilot_url)
    whole = llm.invoke(QUESTION)
    pieces = [str(chunk.content) for chunk in llm.stream(QUESTION)]
    assert "".join(pieces) == whole.content and len(pieces) > 3
    assert whole.usage_metadata is not None and whole.usage_metadata["output_tokens"] > 0
    plain = OllamaLLM(model="pilot", base_url=pilot_url.removesuffix("/v1"), num_predict=20)
    closing(plain)
    assert plain.invoke(QUESTION)


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_a_form(
    pilot_url: str,
    agent: TurnsEngine,
    agent_url: str,
    chat: Chat,
    method: Literal["json_schema", "function_calling"],
) -> None:
    if method == "json_schema":
        answer = chat(pilot_url).with_structured_output(Gpu, method=method).invoke("Name a GPU.")
        assert isinstance(answer, Gpu)
        return
    agent.turns = [('<tool_call>{"name": "Gpu", "arguments": {"name": "H100"}}</tool_call>',)]
    answer = chat(agent_url, "scripted").with_structured_output(Gpu, method=method).invoke("?")
    assert answer == Gpu(name="H100")


def test_a_tool_loop(agent: TurnsEngine, agent_url: str, chat: Chat) -> None:
    llm = chat(agent_url, "scripted").bind_tools([get_weather])
    messages = [HumanMessage("Does it rain in Bern?")]
    answer = llm.invoke(messages)
    (call,) = answer.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Bern"})
    result = ToolMessage(get_weather(**call["args"]), tool_call_id=call["id"])
    assert llm.invoke([*messages, answer, result]).content == "It rains in Bern."
    assert "[get_weather Bern]tool: rain in Bern" in agent.prompt(1)


def test_calls_in_a_stream(agent: TurnsEngine, agent_url: str, chat: Chat) -> None:
    agent.turns = [CALL]
    chunks = list(chat(agent_url, "scripted").bind_tools([get_weather]).stream("hi"))
    calls = [call for chunk in chunks for call in getattr(chunk, "tool_calls", ())]
    assert [call["args"] for call in calls] == [{"city": "Bern"}]


def test_embeddings(closing: Callable[[Any], None]) -> None:
    with tiny_engine() as engine, running_server(engine, served_model_name=("tiny",)) as url:
        embeddings = OllamaEmbeddings(model="tiny", base_url=url)
        closing(embeddings)
        documents = embeddings.embed_documents(["the dog", "a fox"])
        assert embeddings.embed_query("the dog") == pytest.approx(documents[0], abs=1e-5)
