"""The Responses API as users of the official client have it: items in, items out, tools, chains."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from langchain_core.messages import HumanMessage, ToolMessage

from tests.server.dialogues import langchain
from tests.server.openai.tools.test_tools import WEATHER
from tests.server.responses.responding import (
    EVERYTHING,
    FLAT_WEATHER,
    THINKING_HERMES,
    client_of,
    engine_that_says,
    last_prompt,
    sdk,
)
from tests.server.running import running_server, wait_until
from tests.server.scripted import Script, ScriptedEngine
from twostroke.core.errors import QueueFullError, RequestFailedError
from twostroke.core.request import FinishReason

TEXT = "the quick brown fox"


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(Script(max_model_len=4000, cached_tokens=3))


@pytest.fixture
def client(engine: ScriptedEngine) -> Iterator[openai.OpenAI]:
    with client_of(engine) as client:
        yield client


def test_a_text_in_and_a_text_out(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    response = client.responses.create(
        model="scripted",
        input="the dog",
        instructions="be short",
        metadata={"a": "b"},
        temperature=0.5,
        user="u",
        max_output_tokens=9,
    )
    assert (response.output_text, response.status) == (TEXT, "completed")
    assert last_prompt(engine) == "system: be short\nuser: the dog\nassistant: "
    assert engine.submitted[0].params.temperature == 0.5
    assert engine.submitted[0].params.max_tokens == 9
    assert engine.submitted[0].labels == {"user": "u"}
    assert response.usage is not None
    assert response.usage.input_tokens_details.cached_tokens == 3
    assert response.usage.total_tokens == len(engine.submitted[0].prompt_token_ids) + 4
    assert (response.metadata, response.temperature) == ({"a": "b"}, 0.5)
    assert (response.instructions, response.max_output_tokens) == ("be short", 9)


def test_items_in_all_their_forms(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    engine.tokenizer.chat_templates["default"] = ""  # read once, when the server begins
    items: Any = [
        {"role": "developer", "content": "be short"},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "message", "role": "assistant", "content": "b"},
        {
            "type": "message",
            "id": "msg_1",
            "status": "completed",
            "role": "assistant",
            "content": [
                {"type": "output_text", "text": "c", "annotations": []},
                {"type": "refusal", "refusal": "d"},
            ],
        },
        {"role": "user", "content": "e"},
    ]
    client.responses.create(model="scripted", input=items)
    assert last_prompt(engine) == (
        "system: be short\nuser: a\nassistant: b\nassistant: c\nd\nuser: e\nassistant: "
    )


def test_an_answer_cut_by_its_limit_is_incomplete(client: openai.OpenAI) -> None:
    response = client.responses.create(model="scripted", input="x", max_output_tokens=2)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    item: Any = response.output[0]
    assert (item.status, response.output_text) == ("incomplete", "the quick ")
    assert response.completed_at is None


def test_a_conversation_goes_on(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    """Each response brings all before it; instructions do not hold on."""
    previous = None
    for turn in ("one", "two", "three"):
        response = client.responses.create(
            model="scripted",
            input=turn,
            instructions=f"of {turn}",
            previous_response_id=previous,
        )
        previous = response.id
    assert last_prompt(engine) == (
        f"system: of three\nuser: one\nassistant: {TEXT}\nuser: two\nassistant: {TEXT}\n"
        "user: three\nassistant: "
    )


def test_output_sent_back_as_input(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    """As the client's own documentation does without ``store``."""
    items: list[Any] = [{"role": "user", "content": "one"}]
    for _ in range(2):
        raw = client.responses.with_raw_response.create(
            model="scripted", input=items, store=False, include=["reasoning.encrypted_content"]
        )
        assert "x-ignored-fields" not in raw.headers
        items += raw.parse().output
        items += [{"role": "user", "content": "two"}]
    assert last_prompt(engine) == f"user: one\nassistant: {TEXT}\nuser: two\nassistant: "


@pytest.mark.parametrize("engine", [engine_that_says(*EVERYTHING, template=THINKING_HERMES)])
def test_items_by_reference(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    """Output and input of stored responses, in any order; what is not stored is named."""
    first = client.responses.create(model="scripted", input="one", tools=[FLAT_WEATHER])
    given = client.responses.input_items.list(first.id).data
    call = next(item for item in first.output if item.type == "function_call")
    items: list[Any] = [
        {"type": "item_reference", "id": given[0].id},
        *({"type": "item_reference", "id": item.id} for item in first.output),
        {"type": "function_call_output", "call_id": call.call_id, "output": "rain"},
    ]
    client.responses.create(model="scripted", input=items, tools=[FLAT_WEATHER], store=False)
    prompt = last_prompt(engine)
    assert "user: oneassistant: I look. [get_weather Zürich]" in prompt
    assert "tool: rain" in prompt
    kept = client.responses.create(model="scripted", input=items[:1])
    listed = client.responses.input_items.list(kept.id).data
    assert [item.type for item in listed] == ["message"]
    client.responses.delete(first.id)
    with pytest.raises(openai.BadRequestError, match="which is not stored"):
        client.responses.create(model="scripted", input=items[1:2])


@pytest.mark.parametrize("engine", [engine_that_says(*EVERYTHING, template=THINKING_HERMES)])
def test_a_tool_loop(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    """Thought, text and calls are items; sent back with results they are one turn of the model."""
    items: list[Any] = [{"role": "user", "content": "hi"}]
    response = client.responses.create(model="scripted", input=items, tools=[FLAT_WEATHER])
    kinds = [item.type for item in response.output]
    assert kinds == ["reasoning", "message", "function_call", "function_call"]
    thought: Any = response.output[0]
    assert thought.content[0].text == "Rainy?"
    assert response.output_text == "I look. "
    calls: list[Any] = [item for item in response.output if item.type == "function_call"]
    assert [json.loads(call.arguments)["city"] for call in calls] == ["Zürich", "Bern"]
    assert response.usage is not None
    assert 0 < response.usage.output_tokens_details.reasoning_tokens < response.usage.output_tokens
    results = [
        {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        for call in calls
    ]
    shown = {"type": "function", "function": {k: v for k, v in FLAT_WEATHER.items() if k != "type"}}
    both: Any = (
        {"input": [*items, *response.output, *results]},
        {"input": results, "previous_response_id": response.id},
    )
    for fields in both:
        client.responses.create(model="scripted", tools=[FLAT_WEATHER], **fields)
        prompt = last_prompt(engine)
        assert (
            "assistant: I look. [get_weather Zürich][get_weather Bern]tool: sunnytool: sunny"
            in prompt
        )
        assert json.loads(prompt.removeprefix("tools: ").rpartition(" <tool_call>")[0]) == shown


@pytest.mark.parametrize(
    "engine", [engine_that_says('<tool_call>{"name": "no such?", "arguments": {}}</tool_call>')]
)
def test_a_call_of_a_tool_that_is_not_there_can_be_answered(
    client: openai.OpenAI, engine: ScriptedEngine
) -> None:
    """Whatever name the model makes up; else a conversation could not go on."""
    fields: Any = {"model": "scripted", "tools": [FLAT_WEATHER]}
    response = client.responses.create(input="hi", **fields)
    call: Any = response.output[0]
    result: Any = {
        "type": "function_call_output",
        "call_id": call.call_id,
        "output": "no such tool",
    }
    client.responses.create(input=[result], previous_response_id=response.id, **fields)
    client.responses.create(input=[call, result], **fields)
    assert "[no such? ]tool: no such tool" in last_prompt(engine)


@pytest.mark.parametrize("engine", [engine_that_says(*EVERYTHING, template=THINKING_HERMES)])
def test_choices_of_tools(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    other = {**FLAT_WEATHER, "name": "other"}
    fields: Any = {"model": "scripted", "input": "hi", "tools": [FLAT_WEATHER, other]}
    none = client.responses.create(**fields, tool_choice="none")
    assert {item.type for item in none.output} == {"reasoning", "message"}
    one = client.responses.create(**fields, parallel_tool_calls=False)
    assert [item.type for item in one.output].count("function_call") == 1
    choice: Any = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "other"}],
    }
    allowed = client.responses.create(**fields, tool_choice=choice)
    assert '"other"' in last_prompt(engine) and '"get_weather"' not in last_prompt(engine)
    assert allowed.to_dict()["tool_choice"] == choice
    assert len(allowed.tools) == 2
    named = client.responses.create(**fields, tool_choice={"type": "function", "name": "other"})
    assert named.to_dict()["tool_choice"] == {"type": "function", "name": "other"}
    assert engine.submitted[-1].params.structured_outputs is not None  # its call is enforced


def test_log_probabilities(client: openai.OpenAI) -> None:
    response = client.responses.create(
        model="scripted", input="x", include=["message.output_text.logprobs"], top_logprobs=2
    )
    part: Any = response.output[0]
    logprobs = part.content[0].logprobs
    assert (len(logprobs), logprobs[0].token) == (4, "the")
    assert [len(entry.top_logprobs) for entry in logprobs] == [2] * 4
    with client.responses.stream(model="scripted", input="x", top_logprobs=1) as stream:
        deltas = [event for event in stream if event.type == "response.output_text.delta"]
    assert [len(event.logprobs) for event in deltas] == [1] * 4


def test_truncation_leaves_out_the_oldest_turns(engine: ScriptedEngine) -> None:
    engine.script.max_model_len = 100
    items: Any = []
    for i in range(8):
        items += [{"role": "user", "content": f"question {i}"}]
        items += [{"role": "assistant", "content": f"answer {i}"}]
    items += [{"role": "user", "content": "last"}]
    with client_of(engine) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(model="scripted", input=items)
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")
        client.responses.create(model="scripted", input=items, truncation="auto")
    prompt = last_prompt(engine)
    assert "question 0" not in prompt and prompt.endswith("user: last\nassistant: ")


def test_errors_become_the_clients_own(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="gpt-5", input="x")
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="scripted", input="x", previous_response_id="resp_no")
    assert caught.value.code == "previous_response_not_found"
    assert caught.value.param == "previous_response_id"
    engine.script = Script(error=RequestFailedError("pass failed"), error_at=1)
    with pytest.raises(openai.InternalServerError, match="pass failed"):
        client.responses.create(model="scripted", input="x")
    events = list(client.responses.create(model="scripted", input="x", stream=True))
    last: Any = events[-1]
    assert (last.type, last.response.status) == ("response.failed", "failed")
    assert last.response.error.code == "server_error"
    assert "pass failed" in last.response.error.message
    engine.script = Script(refuse=QueueFullError("full"))
    with pytest.raises(openai.RateLimitError):
        client.responses.create(model="scripted", input="x", stream=True)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_client_that_leaves_ends_its_response(streamed: bool) -> None:
    engine = ScriptedEngine(Script(endless=True, seconds_per_step=0.005))
    with running_server(engine) as url, sdk(url) as client:
        if streamed:
            stream = client.responses.create(model="scripted", input="x", stream=True)
            assert next(iter(stream)).type == "response.created"
            stream.close()
        else:
            with pytest.raises(openai.APITimeoutError):
                client.responses.create(model="scripted", input="x", timeout=0.2)
        wait_until(lambda: len(engine.aborted) == 1)


def test_a_stop_string_of_ours(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    """Fields beyond OpenAI's, as in chat."""
    engine.script.finish_reason = FinishReason.STOP
    client.responses.create(
        model="scripted", input="x", extra_body={"stop": ["fox"], "top_k": 3, "seed": 5}
    )
    params = engine.submitted[0].params
    assert (params.stop, params.top_k, params.seed) == (("fox",), 3, 5)


@pytest.mark.parametrize("engine", [engine_that_says(*EVERYTHING, template=THINKING_HERMES)])
@pytest.mark.parametrize("chained", [False, True])
def test_langchain_by_way_of_responses(engine: ScriptedEngine, chained: bool) -> None:
    options = {"use_responses_api": True, "use_previous_response_id": chained}
    with running_server(engine) as url, langchain(url, "scripted", **options) as client:
        model = client.bind_tools([WEATHER])
        answer: Any = model.invoke([HumanMessage("hi")])
        assert [call["args"]["city"] for call in answer.tool_calls] == ["Zürich", "Bern"]
        results = [ToolMessage("sunny", tool_call_id=call["id"]) for call in answer.tool_calls]
        model.invoke([HumanMessage("hi"), answer, *results])
        turn = "user: hiassistant: I look. [get_weather Zürich][get_weather Bern]tool: sunny"
        assert turn in last_prompt(engine)
        streamed: Any = None
        for chunk in model.stream([HumanMessage("hi")]):
            streamed = chunk if streamed is None else streamed + chunk
        assert [call["args"] for call in streamed.tool_calls] == [
            call["args"] for call in answer.tool_calls
        ]


async def test_the_async_client(engine: ScriptedEngine) -> None:
    with running_server(engine) as url:
        client = openai.AsyncOpenAI(base_url=url + "/v1", api_key="none")
        async with client, client.responses.stream(model="scripted", input="x") as stream:
            assert (await stream.get_final_response()).output_text == TEXT
