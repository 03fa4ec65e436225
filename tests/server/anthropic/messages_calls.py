"""Scripted engines, bodies and event streams for tests of Anthropic's dialect."""

from __future__ import annotations

import json
from typing import Any

from tests.server.scripted import Script, ScriptedEngine

CHAT = """\
{% if tools %}tools: {{ tools | tojson }}
{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}\
{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}\
{% for c in m.tool_calls or [] %}[{{ c.id }} {{ c.function.name }}\
 {{ c.function.arguments.city }}]{% endfor %}\
{% if m.tool_call_id %}[{{ m.tool_call_id }} {{ m.name }}]{% endif %}|
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}\
{# <tool_call> is the form #}"""
THINKING = """\
{% for m in messages %}{{ m.role }}: {{ m.content }}
{% endfor %}{% if enable_thinking is defined and not enable_thinking %}<think></think>\
{% else %}<think>
{% endif %}"""
USER: list[Any] = [{"role": "user", "content": "hi"}]
WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALLS = (
    "I look. <tool",
    '_call>\n{"name": "get_weather", "arg',
    'uments": {"city": "Zür',
    'ich"}}\n</tool_call>\n<tool_call>{"name": "get_weather",',
    ' "arguments": {"city": "Bern"}}</tool_call>',
)
BODY: dict[str, Any] = {"model": "scripted", "max_tokens": 50, "messages": USER}


def engine_that_says(*pieces: str, template: str = CHAT, **script: Any) -> ScriptedEngine:
    longer = {"max_model_len": 3000, **script}
    return ScriptedEngine(Script(pieces=pieces, **longer), template=template)


def prompt_of(engine: ScriptedEngine) -> str:
    """The text of the last prompt."""
    return engine.tokenizer.decode(engine.submitted[-1].prompt_token_ids, skip_special_tokens=False)


def events_of(text: str) -> list[dict[str, Any]]:
    """The events of a stream, each under the name of its type, with nothing else in between."""
    *frames, end = text.split("\n\n")
    assert end == ""
    events = []
    for frame in frames:
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events
