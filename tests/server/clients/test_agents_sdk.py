"""OpenAI's Agents SDK, by Responses (its default) and by chat."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Literal

import openai
import pytest
import pytest_asyncio
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
    handoff,
)
from openai.types.responses import ResponseTextDeltaEvent
from pydantic import BaseModel

from tests.server.clients.conftest import TurnsEngine

KINDS = (OpenAIResponsesModel, OpenAIChatCompletionsModel)
QUIET = RunConfig(tracing_disabled=True)


class Gpu(BaseModel):
    """A device."""

    name: Literal["A100", "H100"]


@function_tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"rain in {city}"


@pytest_asyncio.fixture
async def sdk(agent_url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=agent_url, api_key="none", max_retries=0) as client:
        yield client


@pytest_asyncio.fixture
async def pilot(pilot_url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=pilot_url, api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("kind", KINDS)
async def test_text_and_an_output_by_schema(pilot: openai.AsyncOpenAI, kind: type[Any]) -> None:
    settings = ModelSettings(max_tokens=60, temperature=0)
    model = kind("pilot", pilot)
    plain = Agent("plain", instructions="Be brief.", model=model, model_settings=settings)
    answer = await Runner.run(plain, "What is the KV cache?", run_config=QUIET)
    assert answer.final_output
    formed = Agent("formed", model=model, model_settings=settings, output_type=Gpu)
    answer = await Runner.run(formed, "Name a GPU.", run_config=QUIET)
    assert isinstance(answer.final_output, Gpu)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_loop_with_a_tool(
    agent: TurnsEngine, sdk: openai.AsyncOpenAI, kind: type[Any]
) -> None:
    """Whose tool is strict, as the SDK's always are."""
    asking = Agent("asking", model=kind("scripted", sdk), tools=[get_weather])
    answer = await Runner.run(asking, "Does it rain in Bern?", run_config=QUIET)
    assert answer.final_output == "It rains in Bern."
    assert "tool: rain in Bern" in agent.prompt(1)
    form = agent.submitted[0].params.structured_outputs
    assert form is not None and form.tool_calls is not None
    assert json.loads(form.tool_calls)["functions"][0]["strict"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_streamed_loop(
    agent: TurnsEngine, sdk: openai.AsyncOpenAI, kind: type[Any]
) -> None:
    asking = Agent("asking", model=kind("scripted", sdk), tools=[get_weather])
    run = Runner.run_streamed(asking, "Does it rain in Bern?", run_config=QUIET)
    kinds, text = [], ""
    async for event in run.stream_events():
        if event.type == "run_item_stream_event":
            kinds.append(event.name)
        elif event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent):
            text += event.data.delta
    assert kinds == ["tool_called", "tool_output", "message_output_created"]
    assert text == run.final_output == "It rains in Bern."


@pytest.mark.parametrize("kind", KINDS)
async def test_a_handoff(agent: TurnsEngine, sdk: openai.AsyncOpenAI, kind: type[Any]) -> None:
    """One agent passes the conversation to another by a call of a tool."""
    call = {"name": "transfer_to_expert", "arguments": {}}
    agent.turns = [(f"<tool_call>\n{json.dumps(call)}\n</tool_call>",), ("I know.",)]
    expert = Agent("expert", instructions="You know.", model=kind("scripted", sdk))
    first = Agent("first", model=kind("scripted", sdk), handoffs=[handoff(expert)])
    answer = await Runner.run(first, "Does it rain?", run_config=QUIET)
    assert (answer.last_agent.name, answer.final_output) == ("expert", "I know.")
    assert "system: You know." in agent.prompt(1)
