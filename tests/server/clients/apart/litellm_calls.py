"""LiteLLM as its users call it: ``openai/`` models at an ``api_base``, router, tools, responses."""

import asyncio
import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from pydantic import BaseModel, ConfigDict

PILOT, AGENT = sys.argv[1:3]
QUESTION = [{"role": "user", "content": "What is the KV cache?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
HERE = {"model": "openai/pilot", "api_base": PILOT, "api_key": "none", "max_tokens": 60}
TOOLS = {"model": "openai/scripted", "api_base": AGENT, "api_key": "none", "tools": [WEATHER]}


class Gpu(BaseModel):
    model_config = ConfigDict(extra="forbid")
    ok: bool


def text_whole_and_streamed() -> None:
    whole = litellm.completion(messages=QUESTION, temperature=0, **HERE)
    chunks = list(litellm.completion(messages=QUESTION, temperature=0, stream=True, **HERE))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content and len(chunks) > 3, text
    assert litellm.stream_chunk_builder(chunks).choices[0].message.content == text
    assert whole.usage.completion_tokens > 0


def a_form() -> None:
    answer = litellm.completion(messages=QUESTION, response_format=Gpu, **HERE)
    Gpu.model_validate_json(answer.choices[0].message.content)


def a_tool_loop() -> None:
    messages = [{"role": "user", "content": "Does it rain in Bern?"}]
    message = litellm.completion(messages=messages, **TOOLS).choices[0].message
    (call,) = message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Bern"}
    # The whole message goes back, with LiteLLM's own fields in it.
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    answer = litellm.completion(messages=messages, **TOOLS)
    assert answer.choices[0].message.content == "It rains in Bern."


def a_context_that_overflows_falls_back() -> None:
    router = litellm.Router(
        model_list=[
            {"model_name": name, "litellm_params": {**HERE, "model": "openai/pilot"}}
            for name in ("small", "large")
        ],
        context_window_fallbacks=[{"small": ["large"]}],
        num_retries=0,
    )
    assert router.completion(model="small", messages=QUESTION).choices
    too_long = [{"role": "user", "content": "block " * 20_000}]
    try:
        litellm.completion(messages=too_long, **HERE)
        raise AssertionError("the context did not overflow")
    except litellm.ContextWindowExceededError:
        pass


def responses() -> None:
    fields = {name: value for name, value in HERE.items() if name != "max_tokens"}
    answer = litellm.responses(input="What is the KV cache?", max_output_tokens=40, **fields)
    assert answer.output[0].content[0].text
    events = list(litellm.responses(input="hi", max_output_tokens=9, stream=True, **fields))
    assert events[-1].type in ("response.completed", "response.incomplete"), events[-1].type


def messages_of_anthropic() -> None:
    """LiteLLM's way to Anthropic's dialect, at our address."""
    answer = litellm.completion(
        model="anthropic/pilot",
        messages=QUESTION,
        api_base=PILOT.removesuffix("/v1"),
        api_key="none",
        max_tokens=40,
    )
    assert answer.choices[0].message.content


async def asynchronous() -> None:
    answers = await asyncio.gather(
        *(litellm.acompletion(messages=QUESTION, **HERE) for _ in range(3))
    )
    assert all(answer.choices[0].message.content for answer in answers)


a_tool_loop()
text_whole_and_streamed()
a_form()
a_context_that_overflows_falls_back()
responses()
messages_of_anthropic()
asyncio.run(asynchronous())
