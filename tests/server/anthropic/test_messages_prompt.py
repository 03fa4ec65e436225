"""What the chat template gets of Anthropic's messages, and what of them is named as not read."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.anthropic.messages_calls import BODY, USER, WEATHER, engine_that_says
from tests.server.dialogues import CHAT, THINKING, prompt_of
from tests.server.http_calls import post
from tests.server.scripted import Script, ScriptedEngine

IGNORED = "x-ignored-fields"
NONE: list[Any] = []
TEMPLATE_WITH_ALL = CHAT + (
    "{{ enable_thinking }} {{ thinking }} {{ thinking_budget }} {{ reasoning_effort }}"
)


async def prompt_after(template: str = CHAT, **fields: Any) -> tuple[str, str]:
    """The prompt of a request, and the fields that its answer names as ignored."""
    engine = engine_that_says("ok", template=template)
    response = await post(engine, "messages", {**BODY, **fields})
    assert response.status_code == 200, response.text
    return prompt_of(engine), response.headers.get(IGNORED, "")


def text(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text} for text in texts]


CALL = {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Bern"}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "sun"}


@pytest.mark.parametrize(
    ("system", "shown"),
    [
        ("be brief", "system: be brief|\n"),
        (text("be", "brief"), "system: be\nbrief|\n"),
        ("", "system: |\n"),
        (NONE, ""),
        (None, ""),
    ],
)
async def test_system(system: Any, shown: str) -> None:
    prompt, _ = await prompt_after(system=system)
    assert prompt == shown + "user: hi|\nassistant: "


async def test_turns_of_one_role_are_one() -> None:
    turns = [
        {"role": "user", "content": "a"},
        {"role": "user", "content": text("b", "c")},
        {"role": "assistant", "content": "d"},
        {"role": "assistant", "content": [CALL]},
        {"role": "user", "content": [RESULT, *text("e")]},
        {"role": "system", "content": "f"},
        {"role": "user", "content": ""},
    ]
    prompt, _ = await prompt_after(messages=turns)
    assert prompt == (
        "user: a\nb\nc|\nassistant: d[t1 get_weather Bern]|\ntool: sun[t1 get_weather]|\n"
        "user: e|\nsystem: f|\nuser: |\nassistant: "
    )


async def test_results_of_tools() -> None:
    results = [
        {**RESULT, "content": text("a", "b")},
        {**RESULT, "tool_use_id": "t2", "content": None, "is_error": True},
        {**RESULT, "content": []},
    ]
    turns = [{"role": "assistant", "content": [CALL]}, {"role": "user", "content": results}]
    prompt, ignored = await prompt_after(messages=[*USER, *turns])
    assert prompt.endswith(
        "tool: a\nb[t1 get_weather]|\ntool: [t2 ]|\ntool: [t1 get_weather]|\nassistant: "
    )
    assert ignored == "messages[].content[].is_error"


async def test_thoughts_of_earlier_turns() -> None:
    thoughts = [
        {"type": "thinking", "thinking": "Hm.", "signature": "abc"},
        {"type": "redacted_thinking", "data": "xyz"},
    ]
    turns = [*USER, {"role": "assistant", "content": [*thoughts, *text("a")]}, *USER]
    prompt, ignored = await prompt_after(messages=turns)
    assert "assistant: a(Hm.)|" in prompt
    assert ignored == "messages[].content[].redacted_thinking"


async def test_an_answer_goes_on_with_the_last_turn() -> None:
    prompt, _ = await prompt_after(messages=[*USER, {"role": "assistant", "content": "The"}])
    assert prompt == "user: hi|\nassistant: The"


async def test_a_call_without_its_result_cannot_go_on() -> None:
    turns = [*USER, {"role": "assistant", "content": [CALL]}]
    response = await post(engine_that_says("ok"), "messages", {**BODY, "messages": turns})
    assert response.status_code == 400
    assert "tool_use without a tool_result" in response.json()["error"]["message"]


async def test_tools_are_functions_of_the_template() -> None:
    prompt, ignored = await prompt_after(
        tools=[{**WEATHER, "cache_control": {"type": "ephemeral"}, "type": "custom"}]
    )
    function = {"name": "get_weather", "description": WEATHER["description"]}
    for part in (*function.values(), '"parameters"', '"type": "function"'):
        assert part in prompt
    assert ignored == "tools[].cache_control"
    for choice in ({"type": "none"}, {"type": "none", "disable_parallel_tool_use": True}):
        prompt, _ = await prompt_after(tools=[WEATHER], tool_choice=choice)
        assert prompt.startswith("user: hi")


@pytest.mark.parametrize(
    ("fields", "shown", "ignored"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, "True True 9 ", ""),
        ({"thinking": {"type": "adaptive"}}, "True True  ", ""),
        ({"thinking": {"type": "disabled", "budget_tokens": 9}}, "False False  ", ""),
        ({"output_config": {"effort": "max"}}, "   high", ""),
        ({"output_config": {"effort": "low"}}, "   low", ""),
        ({}, "   ", ""),
    ],
)
async def test_thinking_is_a_variable_of_the_template(
    fields: dict[str, Any], shown: str, ignored: str
) -> None:
    prompt, named = await prompt_after(TEMPLATE_WITH_ALL, **fields)
    assert (prompt.removeprefix("user: hi|\nassistant: "), named) == (shown, ignored)


@pytest.mark.parametrize(
    ("template", "fields", "ignored"),
    [
        (CHAT, {"thinking": {"type": "disabled"}}, "thinking.type"),
        (
            CHAT,
            {"thinking": {"type": "enabled", "budget_tokens": 9}},
            "thinking.type, thinking.budget_tokens",
        ),
        (CHAT, {"output_config": {"effort": "low"}}, "output_config.effort"),
        # A model that thinks without being asked.
        ("<think>{{ messages[0].content }}", {"thinking": {"type": "adaptive"}}, ""),
        (THINKING, {"thinking": {"type": "disabled"}}, ""),
    ],
)
async def test_what_the_template_does_not_read_is_named(
    template: str, fields: dict[str, Any], ignored: str
) -> None:
    assert (await prompt_after(template, **fields))[1] == ignored


async def test_claude_codes_line_does_not_spoil_the_cache() -> None:
    """It differs in each request and would stand before all else."""
    line = "x-anthropic-billing-header: cc_version=2.1; cch=eb6c6;"
    prompt, ignored = await prompt_after(system=text(line, "be brief"))
    assert prompt.startswith("system: be brief|")
    assert ignored == "system.x-anthropic-billing-header"


@pytest.mark.parametrize("tools", [[], [WEATHER]])
async def test_the_count_is_that_of_the_prompt(tools: list[Any]) -> None:
    engine = engine_that_says("ok")
    fields = {"system": "be brief", "messages": USER, "tools": tools}
    counted = await post(engine, "messages/count_tokens", fields)
    await post(engine, "messages", {**BODY, **fields})
    assert counted.json() == {"input_tokens": len(engine.submitted[0].prompt_token_ids)}


async def test_the_context_bounds_the_answer() -> None:
    """As of Anthropic's newer models: not the request fails, the answer ends."""
    engine = ScriptedEngine(Script(max_model_len=100))
    response = await post(engine, "messages", {**BODY, "max_tokens": 10**9})
    params, prompt = engine.submitted[0].params, engine.submitted[0].prompt_token_ids
    assert params.max_tokens == 100 - len(prompt) and response.status_code == 200
    turns = [{"role": "user", "content": "dog " * 200}]
    for path, status in (("messages", 400), ("messages/count_tokens", 200)):
        fields = {} if "count" in path else {"max_tokens": 1}
        response = await post(engine, path, {"messages": turns, **fields})
        assert response.status_code == status, response.text
    response = await post(engine, "messages", {"messages": turns, "max_tokens": 1})
    message = response.json()["error"]["message"]
    # Clients look for these words, and shorten the conversation.
    assert message.startswith("prompt is too long: ") and " tokens > 99 maximum" in message


async def test_a_prompt_may_be_cached_without_an_answer() -> None:
    engine = engine_that_says("a", "b")
    response = await post(engine, "messages", {**BODY, "max_tokens": 0})
    message = response.json()
    assert (message["content"], message["stop_reason"]) == ([], "max_tokens")
    assert message["usage"]["output_tokens"] == 0
