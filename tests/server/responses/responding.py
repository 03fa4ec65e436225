"""What the tests of the Responses API share: engines, the official client, and raw events."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openai

from tests.server.openai.tools.test_tools import HERMES
from tests.server.running import running_server
from tests.server.scripted import Script, ScriptedEngine
from twostroke.gateway.gateway import Gateway

FLAT_WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
# Thinks, says something, and calls twice; the pieces break in the middle of each part.
EVERYTHING = (
    "<thi",
    "nk>\nRain",
    "y?\n</th",
    "ink>\n\nI look. <tool",
    '_call>\n{"name": "get_weather", "arg',
    'uments": {"city": "Zür',
    'ich"}}\n</tool_call>\n<tool_call>{"name": "get_weather",',
    ' "arguments": {"city": "Bern"}}</tool_call>',
)
THINKING_HERMES = HERMES + "{# models of this template write <think> #}"


def engine_that_says(*pieces: str, template: str = HERMES, **script: Any) -> ScriptedEngine:
    return ScriptedEngine(
        Script(pieces=pieces, **{"max_model_len": 4000, **script}), template=template
    )


@contextmanager
def client_of(
    engine: ScriptedEngine, gateway: Gateway | None = None, **options: Any
) -> Iterator[openai.OpenAI]:
    with running_server(engine, gateway=gateway, **options) as url, sdk(url) as client:
        yield client


def sdk(url: str, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=url + "/v1", api_key=key, max_retries=0)


def last_prompt(engine: ScriptedEngine) -> str:
    return engine.tokenizer.decode(engine.submitted[-1].prompt_token_ids)
