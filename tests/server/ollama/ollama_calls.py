"""Scripted engines and bodies for tests of Ollama's dialect."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tests.server.http_calls import client_for
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
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALLS = (
    "I look. <tool",
    '_call>\n{"name": "get_weather", "arg',
    'uments": {"city": "Zür',
    'ich"}}\n</tool_call>\n<tool_call>{"name": "get_weather",',
    ' "arguments": {"city": "Bern"}}</tool_call>',
)
TEXT = "the quick brown fox"


def engine_that_says(*pieces: str, template: str = CHAT, **script: Any) -> ScriptedEngine:
    fields: dict[str, Any] = {"max_model_len": 3000, **script}
    if pieces:
        fields["pieces"] = pieces
    return ScriptedEngine(Script(**fields), template=template)


def prompt_of(engine: ScriptedEngine) -> str:
    """The text of the last prompt."""
    return engine.tokenizer.decode(engine.submitted[-1].prompt_token_ids, skip_special_tokens=False)


async def post(engine: ScriptedEngine, path: str, body: object, **options: Any) -> httpx.Response:
    """One request below ``/api/``."""
    async with client_for(engine, **{"served_model_name": ("scripted",), **options}) as client:
        content = body if isinstance(body, (str, bytes)) else json.dumps(body)
        headers = {"content-type": "application/json"}
        return await client.post(f"/api/{path}", content=content, headers=headers)


async def chat(engine: ScriptedEngine, **fields: Any) -> httpx.Response:
    """A whole answer, unless ``fields`` ask for a stream."""
    return await post(engine, "chat", {"messages": USER, "stream": False, **fields})


def lines_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The lines of a stream."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    assert response.text.endswith("\n")
    return [json.loads(line) for line in response.text.splitlines()]
