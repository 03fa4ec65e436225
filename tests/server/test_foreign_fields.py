"""Fields of other servers, on every dialect: ignored and named, or taken for their counterparts."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from tests.server.http_calls import USER, any_engine, client_for, post
from tests.server.scripted import Script, ScriptedEngine
from twostroke.core.sampling_params import SamplingParams
from twostroke.server.foreign_fields import ADVISORY, COUNTERPARTS

ADVICE: dict[str, Any] = {
    "client_metadata": {"session": "x"},
    "provider": {"order": ["a"]},
    "usage": {"include": True},
    "betas": ["x"],
}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/completions": {"prompt": "the dog"},
    "/v1/responses": {"input": "the dog"},
    "/v1/responses/input_tokens": {"input": "the dog"},
    "/v1/responses/compact": {"input": "the dog"},
    "/v1/conversations": {},
    "/v1/messages": {"messages": USER, "max_tokens": 5},
    "/v1/messages/count_tokens": {"messages": USER},
    "/tokenize": {"prompt": "the dog"},
    "/api/chat": {"messages": USER, "stream": False},
    "/api/generate": {"prompt": "the dog", "stream": False},
    "/api/show": {"model": "scripted"},
}


@cache
def long_engine() -> ScriptedEngine:
    return ScriptedEngine(Script(max_model_len=4000))


async def call(path: str, engine: ScriptedEngine | None = None, **fields: Any) -> Any:
    async with client_for(engine or long_engine()) as client:
        return await client.post(path, json={**BODIES[path], **fields})


async def params_of(path: str, **fields: Any) -> SamplingParams:
    engine = ScriptedEngine(Script(pieces=("{}",), max_model_len=4000))
    answer = await call(path, engine, **fields)
    assert answer.status_code == 200, answer.text
    return engine.submitted[0].params


async def refusal(path: str, **fields: Any) -> dict[str, Any]:
    answer = await call(path, **fields)
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


@pytest.mark.parametrize("path", BODIES)
async def test_advice_is_ignored_and_named_on_every_dialect(path: str) -> None:
    answer = await call(path, **ADVICE)
    assert answer.status_code == 200, answer.text
    assert {*ADVICE} <= {*answer.headers["x-ignored-fields"].split(", ")}


@pytest.mark.parametrize("path", BODIES)
async def test_what_would_change_the_answer_is_still_refused(path: str) -> None:
    answer = await call(path, plugins=[{"id": "web"}])
    assert answer.status_code == 400, answer.text
    assert "plugins" in answer.text


async def test_embeddings_name_them_too() -> None:
    """The scripted engine embeds nothing, so the field is past the body's check then."""
    answer = await post(any_engine(), "embeddings", {"input": "x", **ADVICE})
    assert answer.status_code == 400 and "unknown field" not in answer.text
    unknown = await post(any_engine(), "embeddings", {"input": "x", "plugins": []})
    assert unknown.json()["error"]["param"] == "plugins"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_forms_of_the_answer(path: str) -> None:
    """Spelt as in SGLang and llama.cpp."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    text = json.dumps(schema)
    for fields, name, value in (
        ({"regex": "a+"}, "regex", "a+"),
        ({"grammar": 'root ::= "a"'}, "grammar", 'root ::= "a"'),
        ({"ebnf": 'root ::= "a"'}, "grammar", 'root ::= "a"'),
        ({"json_schema": schema}, "json", text),
        ({"json_schema": text}, "json", text),
        (
            {"response_format": {"type": "json_object", "schema": schema}},
            "json",
            json.dumps(schema),
        ),
        (
            {"response_format": {"type": "json_schema", "schema": schema}},
            "json",
            json.dumps(schema),
        ),
    ):
        form = (await params_of(path, **fields)).structured_outputs
        assert form is not None and getattr(form, name) == value, fields
    both = await refusal(path, regex="a", json_schema=schema)
    assert both["param"] == "structured_outputs"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
async def test_sampling_under_other_names(path: str) -> None:
    params = await params_of(path, repeat_penalty=1.5, random_seed=7)
    assert (params.repetition_penalty, params.seed) == (1.5, 7)
    same = await params_of(path, repeat_penalty=1.5, repetition_penalty=1.5)
    assert same.repetition_penalty == 1.5
    error = await refusal(path, repeat_penalty=1.5, repetition_penalty=1.2)
    assert error["param"] == "repeat_penalty" and "repetition_penalty" in error["message"]
    assert (await refusal(path, repeat_penalty="x"))["param"] == "repetition_penalty"
    null = await params_of(path, repeat_penalty=None, repetition_penalty=1.2)
    assert null.repetition_penalty == 1.2


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_thinking_is_a_variable_of_the_template(path: str) -> None:
    for fields in (
        {"enable_thinking": False},
        {"enable_thinking": False, "chat_template_kwargs": {"x": 1}},
    ):
        engine = ScriptedEngine(Script(max_model_len=4000))
        engine.tokenizer.chat_templates["default"] = "{{ enable_thinking }} {{ x }}"
        answer = await call(path, engine, **fields)
        assert answer.status_code == 200, answer.text
        prompt = engine.tokenizer.decode(engine.submitted[0].prompt_token_ids)
        assert prompt.startswith("False")
    error = await refusal(path, enable_thinking=True, chat_template_kwargs=5)
    assert error["param"] == "enable_thinking"


def test_no_field_is_both() -> None:
    assert not ADVISORY.keys() & COUNTERPARTS.keys()
    assert [*ADVISORY] == sorted(ADVISORY) and [*COUNTERPARTS] == sorted(COUNTERPARTS)


async def test_responses_take_the_forms_of_chat() -> None:
    """Clients of chat and of llama.cpp say the form of the text in their own fields."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    wrapped = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for fields in (
        {"json_schema": schema},
        {"json_schema": json.dumps(schema)},
        {"response_format": wrapped},
        {"response_format": {"type": "json_object", "schema": schema}},
        {"response_format": wrapped, "text": {"verbosity": "low"}},
    ):
        form = (await params_of("/v1/responses", **fields)).structured_outputs
        assert form is not None and form.json == json.dumps(schema), fields
    plain = await params_of("/v1/responses", response_format={"type": "text"})
    assert plain.structured_outputs is None
    both = {"json_schema": schema, "text": {"format": {"type": "text"}}}
    error = await refusal("/v1/responses", **both)
    assert error["param"] == "json_schema" and "text.format" in error["message"]
    for wrong in ({"json_schema": "{"}, {"response_format": 5}):
        error = await refusal("/v1/responses", **wrong)
        assert error["param"].startswith("text.format"), error


async def test_messages_take_the_switch_of_thinking() -> None:
    engine = ScriptedEngine(Script(max_model_len=4000))
    engine.tokenizer.chat_templates["default"] = "{{ enable_thinking }}"
    answer = await call("/v1/messages", engine, enable_thinking=False)
    assert answer.status_code == 200, answer.text
    prompt = engine.tokenizer.decode(engine.submitted[0].prompt_token_ids)
    assert prompt.startswith("False")
    both = {"enable_thinking": True, "thinking": {"type": "disabled"}}
    error = await refusal("/v1/messages", **both)
    assert "enable_thinking" in error["message"] and "thinking.type" in error["message"]
    assert "thinking.type" in (await refusal("/v1/messages", enable_thinking="x"))["message"]


@pytest.mark.parametrize("path", [path for path in BODIES if path != "/v1/chat/completions"])
async def test_what_another_route_takes_has_a_hint(path: str) -> None:
    """A bare "unknown field" would not say that the field exists, and where."""
    for name in COUNTERPARTS:
        answer = await call(path, None, **{name: {}})
        if "unknown field" in answer.text:
            assert "Hint" in answer.text, (name, answer.text)


async def test_hints_name_what_the_route_has() -> None:
    for path, name, hint in (
        ("/v1/responses", "regex", "text.format"),
        ("/v1/responses", "guided_json", "text.format"),
        ("/v1/responses", "messages", "send input"),
        ("/v1/messages", "json_schema", "output_config.format"),
        ("/v1/completions", "enable_thinking", "/v1/chat/completions"),
        ("/api/chat", "repeat_penalty", "options.repeat_penalty"),
    ):
        answer = await call(path, None, **{name: {"x": 1}})
        assert answer.status_code == 400 and f"unknown field '{name}'" in answer.text, answer.text
        assert hint in answer.text, (path, answer.text)
