"""pydantic-ai's agents, unchanged but for the address."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Literal

import openai
import pytest
import pytest_asyncio
from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

from tests.server.clients.conftest import TurnsEngine

QUESTION = "What is the KV cache?"
BRIEF = ModelSettings(max_tokens=60, temperature=0)
KINDS = (OpenAIChatModel, OpenAIResponsesModel)


class Gpu(BaseModel):
    """A device."""

    name: Literal["A100", "H100"]
    gigabytes: int = Field(ge=1, le=99)


@pytest_asyncio.fixture
async def clients() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def model(kind: type[Any], name: str, url: str, clients: AsyncExitStack) -> Any:
    client = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
    await clients.enter_async_context(client)
    return kind(name, provider=OpenAIProvider(openai_client=client))


@pytest.mark.parametrize("kind", KINDS)
async def test_text_whole_and_streamed(
    pilot_url: str, clients: AsyncExitStack, kind: type[Any]
) -> None:
    agent = Agent(await model(kind, "pilot", pilot_url, clients), system_prompt="Be brief.")
    whole = await agent.run(QUESTION, model_settings=BRIEF)
    assert whole.output and whole.usage.output_tokens > 0
    async with agent.run_stream(QUESTION, model_settings=BRIEF) as stream:
        pieces = [piece async for piece in stream.stream_text(delta=True, debounce_by=None)]
    assert len(pieces) > 1
    assert "".join(pieces) == whole.output
    again = await agent.run("And why?", message_history=whole.all_messages(), model_settings=BRIEF)
    assert again.usage.input_tokens > whole.usage.input_tokens


@pytest.mark.parametrize("kind", KINDS)
async def test_an_output_by_schema(
    pilot_url: str, clients: AsyncExitStack, kind: type[Any]
) -> None:
    """Whatever the model thinks of it, the answer has the form."""
    agent = Agent(await model(kind, "pilot", pilot_url, clients), output_type=NativeOutput(Gpu))
    answer = await agent.run("Name a GPU.", model_settings=BRIEF)
    assert isinstance(answer.output, Gpu)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_loop_with_a_tool(
    agent: TurnsEngine, agent_url: str, clients: AsyncExitStack, kind: type[Any]
) -> None:
    cities = []

    def get_weather(city: str) -> str:
        """The weather of a city."""
        cities.append(city)
        return "rain"

    answers = Agent(await model(kind, "scripted", agent_url, clients), tools=[get_weather])
    answer = await answers.run("Does it rain in Bern?")
    assert (answer.output, cities) == ("It rains in Bern.", ["Bern"])
    assert "The weather of a city." in agent.prompt(0)
    assert "tool: rain" in agent.prompt(1)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_output_by_a_tool(
    agent: TurnsEngine, agent_url: str, clients: AsyncExitStack, kind: type[Any]
) -> None:
    """The way that pydantic-ai takes by default: a call is required, and its arguments are it."""
    call = {"name": "final_result", "arguments": {"name": "H100", "gigabytes": 80}}
    agent.turns = [(f"<tool_call>\n{json.dumps(call)}\n</tool_call>",)]
    answers = Agent(await model(kind, "scripted", agent_url, clients), output_type=ToolOutput(Gpu))
    answer = await answers.run("Name a GPU.")
    assert answer.output == Gpu(name="H100", gigabytes=80)
    form = agent.submitted[0].params.structured_outputs
    assert form is not None and form.tool_calls is not None
    assert json.loads(form.tool_calls)["must_call"]


async def test_a_tool_and_an_output_by_schema(
    agent: TurnsEngine, agent_url: str, clients: AsyncExitStack
) -> None:
    """The model may call, or answer by the schema: both are offered in one request."""
    agent.turns = [agent.turns[0], ('{"name": "A100", "gigabytes": 40}',)]

    def get_weather(city: str) -> str:
        """The weather of a city."""
        return "rain"

    answers = Agent(
        await model(OpenAIChatModel, "scripted", agent_url, clients),
        tools=[get_weather],
        output_type=NativeOutput(Gpu),
    )
    assert (await answers.run("Name a GPU.")).output == Gpu(name="A100", gigabytes=40)
