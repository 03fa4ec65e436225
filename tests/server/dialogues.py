"""Templates, answers and streams that tests of several dialects share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx

from tests.server.scripted import ScriptedEngine

if TYPE_CHECKING:
    from langchain_openai import ChatOpenAI

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
CALLS = (
    "I look. <tool",
    '_call>\n{"name": "get_weather", "arg',
    'uments": {"city": "Zür',
    'ich"}}\n</tool_call>\n<tool_call>{"name": "get_weather",',
    ' "arguments": {"city": "Bern"}}</tool_call>',
)


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


@contextmanager
def langchain(url: str, model: str, **options: Any) -> Iterator[ChatOpenAI]:
    """LangChain's client of a server."""
    from langchain_openai import ChatOpenAI

    with httpx.Client() as connections:
        yield ChatOpenAI(
            base_url=url + "/v1",
            api_key="x",  # type: ignore[arg-type]
            model=model,
            http_client=connections,
            max_retries=0,
            **options,
        )
