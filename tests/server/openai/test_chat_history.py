"""What clients send back of former turns: thoughts, calls that were cut off, roles of their own."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.http_calls import USER, post
from tests.server.openai.tools.test_tools import WEATHER
from tests.server.scripted import Script, ScriptedEngine

TEMPLATE = """\
{% if tools %}<tool_call>{% endif %}{% for m in messages %}\
{% if m.role == "ipython" or m['role'] in ["observation"] %}[{{ m.role }} {{ m.content }}]\
{% elif m.role == "critic" %}{{ raise_exception("critics come last") }}\
{% else %}{{ m.role }}{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}: \
{{ m.content }}{% for c in m.tool_calls or [] %}\
<{{ c.function.name }} {{ c.function.arguments.city }}>{% endfor %}
{% endif %}{% endfor %}"""


def call(call_id: str, arguments: str) -> dict[str, Any]:
    function = {"name": "get_weather", "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


async def chat_with(*messages: dict[str, Any], **fields: Any) -> tuple[str, str | None]:
    """The prompt that the engine got, and the header."""
    engine = ScriptedEngine(Script(max_model_len=2000), template=TEMPLATE)
    body = {"messages": list(messages), **fields}
    response = await post(engine, "chat/completions", body)
    assert response.status_code == 200, response.text
    prompt = engine.tokenizer.decode(engine.submitted[0].prompt_token_ids)
    return prompt, response.headers.get("x-ignored-fields")


async def refusal(**fields: Any) -> dict[str, Any]:
    engine = ScriptedEngine(Script(max_model_len=2000), template=TEMPLATE)
    response = await post(engine, "chat/completions", {"messages": USER, **fields})
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_a_former_thought_goes_to_the_template_under_either_name(name: str) -> None:
    prompt, header = await chat_with(*USER, {"role": "assistant", "content": "yes", name: "hm"})
    assert "assistant(hm): yes" in prompt and header is None


async def test_a_call_that_was_cut_off_is_left_out_and_named() -> None:
    """The client's answer ran into max_tokens: without the call the conversation goes on."""
    calls = [call("a", '{"city": "Bern"}'), call("b", '{"city": "Zü'), call("c", "")]
    prompt, header = await chat_with(
        *USER,
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "a", "content": "rain"},
        {"role": "tool", "tool_call_id": "b", "content": "no such city"},
        {"role": "assistant", "content": None, "tool_calls": [call("d", "{")]},
        *USER,
        tools=[WEATHER],
    )
    assert "<get_weather Bern><get_weather >" in prompt and prompt.count("<get_weather") == 2
    assert "tool: rain" in prompt and "no such city" not in prompt
    assert header == "messages[1].tool_calls[1], messages[3], messages[4].tool_calls[0]"


async def test_arguments_that_are_whole_and_no_object_are_still_refused() -> None:
    turn = {"role": "assistant", "content": None, "tool_calls": [call("a", "[1]")]}
    error = await refusal(messages=[*USER, turn])
    assert error["param"] == "messages[1].tool_calls[0].function.arguments"


@pytest.mark.parametrize("role", ["ipython", "observation"])
async def test_a_role_that_the_template_knows_reaches_it(role: str) -> None:
    prompt, _ = await chat_with(*USER, {"role": role, "content": "4"})
    assert f"[{role} 4]" in prompt
    documents = [{"text": "a text"}]
    prompt, _ = await chat_with(*USER, {"role": role, "content": "4"}, documents=documents)
    assert f"[{role} 4]" in prompt


async def test_a_role_that_the_template_refuses_or_does_not_know_is_an_error() -> None:
    error = await refusal(messages=[{"role": "critic", "content": "bad"}, *USER])
    assert "critics come last" in error["message"]
    error = await refusal(messages=[{"role": "king", "content": "x"}])
    assert "ipython" in error["message"] and error["param"] == "messages[0].role"
    error = await refusal(messages=[{"role": "<|x|>", "content": "x"}])
    assert error["param"] == "messages[0].role"


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({"functions": [WEATHER["function"]]}, "send each in tools"),
        ({"function_call": {"name": "get_weather"}}, "send tool_choice"),
        ({"messages": [{"role": "function", "name": "f", "content": "4"}]}, "role tool"),
        (
            {"messages": [{"role": "assistant", "function_call": {"name": "f", "arguments": ""}}]},
            "send it in tool_calls",
        ),
    ],
)
async def test_functions_of_old_are_refused_with_what_took_their_place(
    fields: dict[str, Any], hint: str
) -> None:
    assert hint in (await refusal(**fields))["message"]
