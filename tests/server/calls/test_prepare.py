"""One call under all dialects: it needs none of their types, and each makes the same of it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from tests.server.dialogues import CHAT
from tests.server.http_calls import client_for
from tests.server.scripted import Script, ScriptedEngine
from twostroke.core.errors import InvalidRequestError
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.sampling_params import SamplingParams
from twostroke.gateway.caller import Caller
from twostroke.server.calls.call import Call, CallableTool, CallableTools, Context
from twostroke.server.calls.prepare import PreparedCall, fit_answer, prepare
from twostroke.server.generation.field_names import FieldNames
from twostroke.server.state.served_model import ServedModel
from twostroke.text.context_material import ContextOptions, RankingTask
from twostroke.text.documents import Document

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}}
OPENING = {"add_generation_prompt": True, "continue_final_message": False}
HELLO = Call(
    messages=[{"role": "user", "content": "hi"}],
    rendering=OPENING,
    params=SamplingParams(max_tokens=5),
    form_names=FieldNames(pairs=(("tools", "functions"),)),
)
FUNCTION = {"name": "get_weather", "description": "of a city", "parameters": SCHEMA}
# The same question and the same tool, as each dialect asks.
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": "required",
        "max_tokens": 5,
    },
    "/v1/responses": {
        "input": "hi",
        "tools": [{"type": "function", **FUNCTION}],
        "tool_choice": "required",
        "max_output_tokens": 5,
    },
    "/v1/messages": {
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"name": "get_weather", "description": "of a city", "input_schema": SCHEMA}],
        "tool_choice": {"type": "any"},
        "max_tokens": 5,
    },
    "/api/chat": {
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "function": FUNCTION}],
        "options": {"num_predict": 5},
    },
}


def chatting() -> ScriptedEngine:
    return ScriptedEngine(Script(max_model_len=3000), template=CHAT)


def prepared(call: Call) -> PreparedCall:
    model = ServedModel(chatting().loaded_model(), ("m",))
    return asyncio.run(prepare(model, call, "call-1", Caller()))


def text_of(call: PreparedCall) -> str:
    return chatting().tokenizer.decode(call.prompt.token_ids, skip_special_tokens=False)


def test_a_call_that_no_dialect_made_is_prepared() -> None:
    call = replace(HELLO, priority=3, cache_salt="s", ttft_target=0.5, prediction="fox")
    request = prepared(replace(call, labels={"user": "u"})).request
    assert (request.request_id, request.priority, request.cache_salt) == ("call-1", 3, "s")
    assert (request.ttft_target, request.labels) == (0.5, {"user": "u"})
    assert request.params == call.params and request.prediction_token_ids
    assert text_of(prepared(call)) == "user: hi|\nassistant: "
    assert prepared(replace(call, truncate_to=2)).prompt.token_ids == request.prompt_token_ids[-2:]


def test_its_form_is_compiled_and_refused_in_the_names_that_it_brings() -> None:
    tool = CallableTool("get_weather", SCHEMA, "tools[0].parameters", strict=False)
    calls = CallableTools([tool, tool._replace(name="other")], must_call=True, only="other")
    asked = prepared(replace(HELLO, tools=calls)).request.params.structured_outputs
    assert asked is not None and asked.tool_calls is not None
    form = json.loads(asked.tool_calls)
    assert [function["name"] for function in form["functions"]] == ["other"]
    assert (form["must_call"], form["max_calls"]) == (True, 1)
    unknown = {"type": "object", "properties": {"a": {"type": "no"}}}
    bad = CallableTools([tool._replace(parameters=unknown, strict=True)], True, None)
    with pytest.raises(InvalidRequestError) as caught:
        prepared(replace(HELLO, tools=bad))
    assert caught.value.param == "functions[0].parameters"


def test_its_documents_are_ranked_by_the_function_that_it_brings() -> None:
    asked: list[tuple[RankingTask, str]] = []

    async def rank(task: RankingTask, caller: Caller, request_id: str) -> tuple[list[float], str]:
        asked.append((task, request_id))
        return [1.0, 2.0], "judge"

    documents = [Document(text=text, id=text) for text in ("dog", "fox")]
    options = ContextOptions(document_order="score")
    context = Context(documents=documents, options=options, max_tokens=None, rank=rank)
    call = prepared(replace(HELLO, context=context))
    ((task, name),) = asked
    assert ([text.strip() for text in task.texts], name) == (["dog", "fox"], "call-1")
    assert call.prompt.report is not None and call.prompt.report.ranker == "judge"
    assert text_of(call).index("fox") < text_of(call).index("dog")


def test_an_answer_may_fill_the_context_after_its_prompt() -> None:
    model = ServedModel(chatting().loaded_model(), ("m",))
    params = SamplingParams(max_tokens=None)
    request = GenerationRequest(request_id="r", prompt_token_ids=[1] * 2990, params=params)
    assert fit_answer(model, request, 500).params.max_tokens == 10
    assert fit_answer(model, request, 4).params.max_tokens == 4
    full = replace(request, prompt_token_ids=[1] * 3000)
    assert fit_answer(model, full, 4) is full


async def test_dialects_that_ask_the_same_make_the_same_request() -> None:
    asked: dict[str, GenerationRequest] = {}
    for path, body in BODIES.items():
        engine = chatting()
        async with client_for(engine) as client:
            response = await client.post(path, json=body)
        assert response.status_code == 200, response.text
        (asked[path],) = engine.submitted
    first = asked["/v1/chat/completions"]
    for path, request in asked.items():
        assert request.prompt_token_ids == first.prompt_token_ids, path
        # Of Ollama's API no call can be demanded; Messages have a name of their own for a schema.
        if path == "/v1/responses":
            assert request.params == first.params
        assert request.params.max_tokens == 5
