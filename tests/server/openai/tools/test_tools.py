"""Tools in chat: what the template gets, what answers become, streamed and whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from tests.server.dialogues import CALLS, langchain
from tests.server.running import running_server
from tests.server.scripted import Script, ScriptedEngine

HERMES = """\
{% if tools %}tools: {% for t in tools %}{{ t | tojson }} {% endfor %}<tool_call> is the form
{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}\
{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments.city }}]{% endfor %}
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""
THINKING = "{% for m in messages %}{{ m.content }}{% endfor %}<think>\n"
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def engine_that_says(*pieces: str, template: str = HERMES) -> ScriptedEngine:
    return ScriptedEngine(Script(pieces=pieces, max_model_len=2000), template=template)


@pytest.fixture
def engine() -> ScriptedEngine:
    return engine_that_says(*CALLS)


@pytest.fixture
def url(engine: ScriptedEngine) -> Iterator[str]:
    with running_server(engine) as url:
        yield url


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url + "/v1", api_key="x", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    messages = [{"role": "user", "content": "hi"}]
    return client.chat.completions.create(
        **{"model": "scripted", "messages": messages, "tools": [WEATHER], **fields}
    )


def test_calls_of_a_whole_answer(client: openai.OpenAI) -> None:
    choice = ask(client).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I look. "
    calls = choice.message.tool_calls
    assert [call.function.name for call in calls] == ["get_weather"] * 2
    assert [json.loads(call.function.arguments)["city"] for call in calls] == ["Zürich", "Bern"]
    assert len({call.id for call in calls}) == 2


def test_a_stream_gives_the_same_calls(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="scripted",
        messages=[{"role": "user", "content": "hi"}],
        tools=[WEATHER],  # type: ignore[list-item]
    ) as stream:
        events = list(stream)
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls"
    calls = final.message.tool_calls or []
    assert [json.loads(call.function.arguments)["city"] for call in calls] == ["Zürich", "Bern"]
    deltas = [e for e in events if e.type == "tool_calls.function.arguments.delta"]
    assert len(deltas) > 2  # the first call's arguments come in two steps


def test_no_white_space_comes_between_calls(client: openai.OpenAI) -> None:
    """Agents show each content of a stream: a line feed between two calls was a message."""
    chunks = list(ask(client, stream=True))
    texts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices[0].delta.content]
    assert texts == ["I look. "]
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("engine", [engine_that_says(*CALLS, " \n Now", " I wait.\n")])
def test_text_behind_calls_keeps_its_white_space(client: openai.OpenAI) -> None:
    text = "I look.  \n Now I wait.\n"
    assert ask(client).choices[0].message.content == text
    deltas = [chunk.choices[0].delta.content or "" for chunk in ask(client, stream=True)]
    assert "".join(deltas) == text


def test_the_template_gets_the_tools(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    ask(client)
    ask(client, tool_choice="none")
    first, second = (
        engine.tokenizer.decode(request.prompt_token_ids) for request in engine.submitted
    )
    assert json.loads(first.removeprefix("tools: ").splitlines()[0].rpartition("} ")[0] + "}") == (
        WEATHER
    )
    assert second.startswith("user: hi")


def test_with_tool_choice_none_a_call_is_text(client: openai.OpenAI) -> None:
    choice = ask(client, tool_choice="none").choices[0]
    assert choice.message.content == "".join(CALLS) and choice.message.tool_calls is None
    assert choice.finish_reason == "stop"


def test_without_parallel_calls_there_is_one(client: openai.OpenAI) -> None:
    message = ask(client, parallel_tool_calls=False).choices[0].message
    assert [json.loads(c.function.arguments)["city"] for c in message.tool_calls] == ["Zürich"]


def test_langchain_sends_calls_and_results_back(engine: ScriptedEngine, url: str) -> None:
    with langchain(url, "scripted") as client:
        model = client.bind_tools([WEATHER])
        answer = model.invoke([HumanMessage("hi")])
        assert isinstance(answer, AIMessage)
        assert [call["args"] for call in answer.tool_calls] == [
            {"city": "Zürich"},
            {"city": "Bern"},
        ]
        results = [ToolMessage("sunny", tool_call_id=c["id"]) for c in answer.tool_calls]
        model.invoke([HumanMessage("hi"), answer, *results])
    prompt = engine.tokenizer.decode(engine.submitted[-1].prompt_token_ids)
    assert "[get_weather Zürich][get_weather Bern]tool: sunnytool: sunny" in prompt


@pytest.mark.parametrize(
    "engine", [engine_that_says("Well", ".\n</thi", "nk>\n\n4", "2", template=THINKING)]
)
def test_thoughts_are_apart(client: openai.OpenAI) -> None:
    message = ask(client, tools=[]).choices[0].message
    assert (message.reasoning_content, message.reasoning, message.content) == (
        "Well.",
        "Well.",
        "42",
    )
    deltas = [chunk.choices[0].delta for chunk in ask(client, tools=[], stream=True)]
    thought = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert (thought, "".join(delta.content or "" for delta in deltas)) == ("Well.", "42")
    hidden = ask(client, tools=[], extra_body={"include_reasoning": False}).choices[0].message
    assert hidden.content == "42" and not hasattr(hidden, "reasoning_content")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "other"}}},
            "tool_choice",
        ),
    ],
)
def test_what_is_refused(client: openai.OpenAI, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, **fields)
    assert caught.value.param == param


@pytest.mark.parametrize("engine", [engine_that_says("hi", template="{{ messages[0].content }}")])
def test_a_model_without_a_form_for_calls_says_so(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="--tool-call-parser"):
        ask(client)
    assert ask(client, tool_choice="none").choices[0].message.content == "hi"
