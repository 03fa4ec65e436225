"""LiteLLM by way of Ollama's API: ``ollama_chat/`` and ``ollama/`` models at an ``api_base``."""

import asyncio
import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from pydantic import BaseModel, ConfigDict

PILOT, AGENT = (url.removesuffix("/v1") for url in sys.argv[1:3])
QUESTION = [{"role": "user", "content": "What is the KV cache?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
HERE = {"model": "ollama_chat/pilot", "api_base": PILOT, "max_tokens": 60}
TOOLS = {"model": "ollama_chat/scripted", "api_base": AGENT, "tools": [WEATHER]}


class Gpu(BaseModel):
    model_config = ConfigDict(extra="forbid")
    ok: bool


def text_whole_and_streamed() -> None:
    whole = litellm.completion(messages=QUESTION, temperature=0, **HERE)
    chunks = list(litellm.completion(messages=QUESTION, temperature=0, stream=True, **HERE))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content and len(chunks) > 3, text
    assert whole.usage.completion_tokens > 0 and whole.usage.prompt_tokens > 0
    older = litellm.completion(messages=QUESTION, **{**HERE, "model": "ollama/pilot"})
    assert older.choices[0].message.content


def a_form() -> None:
    answer = litellm.completion(messages=QUESTION, response_format=Gpu, **HERE)
    Gpu.model_validate_json(answer.choices[0].message.content)


def a_tool_loop() -> None:
    messages = [{"role": "user", "content": "Does it rain in Bern?"}]
    message = litellm.completion(messages=messages, **TOOLS).choices[0].message
    (call,) = message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Bern"}, call
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    answer = litellm.completion(messages=messages, **TOOLS)
    assert answer.choices[0].message.content == "It rains in Bern."


def a_context_that_overflows_is_an_error() -> None:
    """Of this provider LiteLLM knows no overflow, so the sentence has to say it."""
    too_long = [{"role": "user", "content": "block " * 20_000}]
    try:
        litellm.completion(messages=too_long, **HERE)
        raise AssertionError("the context did not overflow")
    except litellm.BadRequestError as error:
        assert "maximum context length is 8192 tokens" in str(error), error


async def asynchronous() -> None:
    answers = await asyncio.gather(
        *(litellm.acompletion(messages=QUESTION, **HERE) for _ in range(3))
    )
    assert all(answer.choices[0].message.content for answer in answers)


a_tool_loop()
text_whole_and_streamed()
a_form()
a_context_that_overflows_is_an_error()
asyncio.run(asynchronous())
