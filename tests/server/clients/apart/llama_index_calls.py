"""LlamaIndex by ``OpenAILike``: chat, completion, streams, structured output, an agent."""

import asyncio
import sys
from typing import Literal

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

PILOT, AGENT = sys.argv[1:3]
QUESTION = [ChatMessage(role="user", content="What is the KV cache?")]


class Gpu(BaseModel):
    """A device."""

    name: Literal["A100", "H100"]


def here(**options: object) -> OpenAILike:
    return OpenAILike(
        model="pilot",
        api_base=PILOT,
        api_key="none",
        context_window=8192,
        is_chat_model=True,
        max_tokens=60,
        temperature=0,
        max_retries=0,
        **options,
    )


def chat_and_completion() -> None:
    whole = here().chat(QUESTION).message.content
    deltas = [chunk.delta or "" for chunk in here().stream_chat(QUESTION)]
    assert whole and "".join(deltas) == whole and len(deltas) > 3
    assert here().complete("The KV cache").text
    plain = OpenAILike(
        model="pilot", api_base=PILOT, api_key="none", is_chat_model=False, max_tokens=20
    )
    assert plain.complete("The KV cache").text
    assert "".join(chunk.delta or "" for chunk in plain.stream_complete("The KV cache"))


def a_form() -> None:
    llm = here(should_use_structured_outputs=True)
    assert isinstance(llm.structured_predict(Gpu, PromptTemplate("Name a GPU.")), Gpu)


async def an_agent() -> None:
    cities = []

    def get_weather(city: str) -> str:
        """The weather of a city."""
        cities.append(city)
        return "rain"

    llm = OpenAILike(
        model="scripted",
        api_base=AGENT,
        api_key="none",
        context_window=8000,
        is_chat_model=True,
        is_function_calling_model=True,
        max_retries=0,
    )
    answer = await FunctionAgent(tools=[get_weather], llm=llm).run("Does it rain in Bern?")
    assert (str(answer), cities) == ("It rains in Bern.", ["Bern"]), (str(answer), cities)


asyncio.run(an_agent())
chat_and_completion()
a_form()
