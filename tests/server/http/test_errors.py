"""Whatever a client does wrong, or the engine, gets the right status in OpenAI's shape."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

import httpx
import pytest

from tests.server.http_calls import USER, any_engine, client_for, post
from tests.server.scripted import Script, ScriptedEngine
from twostroke.core import errors
from twostroke.core.config import SchedulerConfig
from twostroke.engine.clients.loaded_model import LoadedModel
from twostroke.server.application import create_app
from twostroke.server.http.errors import ERROR_RULES, error_rule

CHAT = {"messages": USER}
TEXT = {"prompt": "the dog"}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("chat/completions", {**CHAT, "foo": 1}, "foo"),
        ("chat/completions", {}, "messages"),
        ("chat/completions", {"messages": []}, "messages"),
        ("chat/completions", {"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ("chat/completions", {"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ("chat/completions", {"messages": [{**USER[0], "name": "<joe>"}]}, "messages[0].name"),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
        ),
        ("chat/completions", {**CHAT, "tools": [{"type": "function"}]}, "tools[0].function"),
        (
            "chat/completions",
            {**CHAT, "response_format": {"type": "json_schema"}},
            "response_format.json_schema",
        ),
        ("chat/completions", {**CHAT, "echo": True}, "echo"),
        ("chat/completions", {**CHAT, "echo": 0}, "echo"),
        ("chat/completions", {**CHAT, "audio": {}}, "audio"),
        ("chat/completions", {**CHAT, "top_logprobs": 2}, "top_logprobs"),
        ("chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ("chat/completions", {**CHAT, "max_completion_tokens": 0}, "max_completion_tokens"),
        (
            "chat/completions",
            {**CHAT, "max_completion_tokens": 3, "max_tokens": 4},
            "max_completion_tokens",
        ),
        ("chat/completions", {**CHAT, "stream_options": {"include_usage": True}}, "stream_options"),
        (
            "chat/completions",
            {**CHAT, "stream": True, "stream_options": {"x": 1}},
            "stream_options.x",
        ),
        ("chat/completions", {**CHAT, "temperature": "hot"}, "temperature"),
        ("chat/completions", {**CHAT, "temperature": -1}, "temperature"),
        ("chat/completions", {**CHAT, "n": 1.5}, "n"),
        ("chat/completions", {**CHAT, "n": True}, "n"),
        ("chat/completions", {**CHAT, "stream": "yes"}, "stream"),
        ("chat/completions", {**CHAT, "logit_bias": {"x": 1}}, "logit_bias"),
        ("chat/completions", {**CHAT, "logit_bias": {"9999": 1}}, "logit_bias"),
        ("chat/completions", {**CHAT, "stop": [1]}, "stop[0]"),
        ("chat/completions", {**CHAT, "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ("chat/completions", {**CHAT, "stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        ("chat/completions", {**CHAT, "foo[": 1}, "foo["),
        ("chat/completions", {**CHAT, "str": 1}, "str"),
        ("chat/completions", {**CHAT, ".x": 1}, ".x"),
        ("chat/completions", {**CHAT, "documents": [{"text": "x", "str": 1}]}, "documents[0].str"),
        ("chat/completions", {**CHAT, "priority": 1}, "priority"),
        ("chat/completions", {**CHAT, "stop": "\ud800"}, "stop"),
        ("chat/completions", {**CHAT, "bad_words": ["\ud800"]}, "bad_words"),
        ("chat/completions", {**CHAT, "cache_salt": "\ud800"}, "cache_salt"),
        (
            "chat/completions",
            {"messages": [*USER, {"role": "user", "content": "a\ud800"}]},
            "messages[1].content",
        ),
        ("completions", {"prompt": ["a", "\ud800"]}, "prompt"),
        ("completions", {"prompt": ["a"] * 250, "n": 5}, "n"),
        ("completions", {**TEXT, "suffix": "x"}, "suffix"),
        ("completions", {**TEXT, "best_of": 2}, "best_of"),
        ("completions", {**TEXT, "max_tokens": -1}, "max_tokens"),
        ("completions", {"prompt": []}, "prompt"),
        ("completions", {"prompt": ""}, "prompt"),
        ("completions", {"prompt": [["x"]]}, "prompt[0][0]"),
        ("completions", {"prompt": "x" * 200}, "prompt"),
    ],
)
async def test_bad_fields_are_named(path: str, body: dict[str, Any], param: str) -> None:
    engine = ScriptedEngine()
    response = await post(engine, path, body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert not engine.submitted


async def test_neutral_values_of_unsupported_fields_pass() -> None:
    neutral = {
        "tools": [],
        "tool_choice": "auto",
        "response_format": {"type": "text"},
        "store": False,
        "audio": None,
    }
    response = await post(
        ScriptedEngine(), "chat/completions", {**CHAT, **neutral, "modalities": ["text"]}
    )
    assert response.status_code == 200
    assert (
        await post(any_engine(), "completions", {**TEXT, "n": 2, "best_of": 2})
    ).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("chat/completions", '{"messages": []}', "messages is empty. Hint: send at least one"),
        (
            "chat/completions",
            '{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}',
            "text only",
        ),
        ("completions", '{"\\ud800": 1}', "the body holds a key that is not Unicode"),
        (
            "completions",
            '{"prompt": "x", "n": %s}' % ("9" * 5000),
            "the body is not valid JSON in UTF-8",
        ),
        (
            "completions",
            '{"prompt": "x", "priority": 1}',
            "start the server with --policy priority",
        ),
    ],
)
async def test_messages_say_what_to_change(path: str, body: str, message: str) -> None:
    error = (await post(any_engine(), path, body)).json()["error"]
    assert message in error["message"]
    assert error["code"] == "invalid_value"


async def test_priority_under_its_policy() -> None:
    engine = ScriptedEngine(scheduler_config=SchedulerConfig(policy="priority"))
    assert (await post(engine, "completions", {**TEXT, "priority": 3})).status_code == 200
    assert engine.submitted[0].priority == 3
    assert (await post(any_engine(), "completions", {**TEXT, "priority": 0})).status_code == 200


@pytest.mark.parametrize(
    "body", ["{bad", "[]", "3", "null", "", b"\xff\xfe", '{"prompt": "\\ud800"}', "[" * 5000]
)
async def test_malformed_bodies(body: str | bytes) -> None:
    response = await post(any_engine(), "completions", body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["type"] == "invalid_request_error"


async def test_body_limit() -> None:
    def pieces() -> Any:
        async def generate() -> Any:
            for _ in range(5):
                yield b" " * 1000

        return generate()

    engine = ScriptedEngine()
    async with client_for(engine, max_body_size=4096) as client:
        announced = await client.post("/v1/completions", content=b" " * 5000)
        chunked = await client.post(
            "/v1/completions", content=pieces(), headers={"content-type": "application/json"}
        )
        small = await client.post("/v1/completions", json=TEXT)
    for response in (announced, chunked):
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "body_too_large"
        assert "--max-body-size" in response.json()["error"]["message"]
    assert small.status_code == 200


async def test_unknown_model_route_and_method() -> None:
    async with client_for(ScriptedEngine()) as client:
        model = await client.post("/v1/completions", json={**TEXT, "model": "gpt-5"})
        route = await client.post("/v1/nothing", json={})
        method = await client.get("/v1/completions")
    assert (model.status_code, model.json()["error"]["code"]) == (404, "model_not_found")
    assert (route.status_code, route.json()["error"]["code"]) == (404, "not_found")
    assert (method.status_code, method.json()["error"]["code"]) == (405, "method_not_allowed")


async def test_too_long_for_the_context_names_the_chat_field() -> None:
    response = await post(
        ScriptedEngine(), "chat/completions", {"messages": [{"role": "user", "content": "x" * 200}]}
    )
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert "Hint: shorten it" in error["message"]


@pytest.mark.parametrize(
    ("path", "param"), [("completions", "prompt"), ("chat/completions", "messages")]
)
async def test_what_cannot_fit_is_refused_before_it_is_encoded(
    path: str, param: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = ScriptedEngine()
    monkeypatch.setattr(engine.tokenizer, "encode", lambda *_, **__: 1 / 0)
    text = "the dog " * 10_000
    body = (
        {"messages": [{"role": "user", "content": text}]}
        if param == "messages"
        else {"prompt": text}
    )
    error = (await post(engine, path, body)).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)
    monkeypatch.undo()
    assert (await post(engine, path, {**body, "truncate_prompt_tokens": 5})).status_code == 200


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.QueueFullError("full"), 429, "queue_full"),
        (errors.ShuttingDownError("draining"), 503, "shutting_down"),
        (errors.EngineDeadError("dead"), 503, "engine_dead"),
        (errors.RequestFailedError("pass failed"), 500, "request_failed"),
    ],
)
async def test_refusals_of_the_engine(error: errors.TwostrokeError, status: int, code: str) -> None:
    response = await post(
        ScriptedEngine(Script(refuse=error)), "chat/completions", {**CHAT, "stream": True}
    )
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert ("retry-after" in response.headers) == (status in (429, 503))


@pytest.mark.parametrize("streamed", [False, True])
async def test_failure_before_the_first_token_has_its_status(streamed: bool) -> None:
    engine = ScriptedEngine(Script(error=errors.NonFiniteLogitsError("NaN logits")))
    response = await post(engine, "chat/completions", {**CHAT, "stream": streamed})
    assert (response.status_code, response.json()["error"]["code"]) == (500, "non_finite_logits")
    assert engine.aborted == [engine.submitted[0].request_id]


async def test_failure_in_mid_stream_is_an_event() -> None:
    engine = ScriptedEngine(Script(error=errors.RequestFailedError("pass failed"), error_at=2))
    response = await post(engine, "chat/completions", {**CHAT, "stream": True})
    assert response.status_code == 200
    *_, error, done, end = response.text.split("\n\n")
    assert error.startswith('data: {"error":{"message":"pass failed"')
    assert (done, end) == ("data: [DONE]", "")


async def test_several_prompts_stop_together() -> None:
    """A prompt that is refused leaves none of its neighbours running."""
    engine = ScriptedEngine()
    response = await post(engine, "completions", {"prompt": ["the dog", "x" * 200]})
    assert response.status_code == 400
    assert engine.aborted == [engine.submitted[0].request_id]


async def test_while_loading_and_after_a_failed_load() -> None:
    loading: Future[LoadedModel] = Future()
    app = create_app(loading)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client,
    ):
        health = await client.get("/health")
        work = await client.post("/v1/completions", json=TEXT)
        assert (health.status_code, health.json()["status"]) == (503, "loading")
        assert (work.status_code, work.json()["error"]["code"]) == (503, "model_loading")
        assert "retry-after" in work.headers
        loading.set_exception(errors.ModelLoadError("no weights"))
        async with asyncio.timeout(5):
            while (health := await client.get("/health")).json()["status"] == "loading":
                await asyncio.sleep(0.01)
        assert (health.status_code, health.json()["status"]) == (503, "unhealthy")
        assert "no weights" in health.json()["reason"]


def test_every_error_has_a_rule() -> None:
    classes = [
        cls
        for cls in vars(errors).values()
        if isinstance(cls, type) and issubclass(cls, errors.TwostrokeError)
    ]
    assert len(classes) > 5
    for cls in classes:
        error = cls.__new__(cls)
        assert error_rule(error) is next(ERROR_RULES[c] for c in cls.__mro__ if c in ERROR_RULES)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/completions", {**TEXT, "foo": 1}, 400),
        ("POST", "/v1/completions", {"prompt": "x" * 200}, 400),
        ("POST", "/v1/completions", {**TEXT, "model": "other"}, 404),
        ("GET", "/v1/completions", None, 405),
        ("GET", "/nothing", None, 404),
        ("POST", "/v1/completions", {"prompt": "x" * 5000}, 413),
        ("GET", "/health", None, 200),
    ],
)
async def test_every_answer_names_its_request(
    method: str, path: str, body: Any, status: int
) -> None:
    async with client_for(ScriptedEngine(), max_body_size=4096) as client:
        responses = [await client.request(method, path, json=body) for _ in range(2)]
    assert [response.status_code for response in responses] == [status] * 2
    assert len({response.headers["x-request-id"] for response in responses}) == 2


async def test_a_failure_is_logged_under_the_name_that_the_client_sees(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = ScriptedEngine(Script(error=errors.NonFiniteLogitsError("NaN logits")))
    failed = await post(engine, "chat/completions", CHAT)
    assert failed.headers["x-request-id"] == engine.submitted[0].request_id
    assert failed.headers["x-request-id"] in caplog.text
    bug: Any = ValueError("a bug")
    unforeseen = await post(ScriptedEngine(Script(refuse=bug)), "completions", TEXT)
    assert unforeseen.status_code == 500
    assert unforeseen.headers["x-request-id"] in caplog.text


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("completions", '{"prompt": "x", "max_tokens": 1, "max_tokens": 2}', "max_tokens"),
        (
            "chat/completions",
            '{"messages": [{"role": "user", "content": "a", "content": "b"}]}',
            "content",
        ),
    ],
)
async def test_a_key_that_is_there_twice_is_refused(path: str, body: str, param: str) -> None:
    response = await post(any_engine(), path, body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("path", "fields", "culprit"),
    [
        ("completions", {"logit_bias": {"1": 1, "abc": 2}}, "the key 'abc'"),
        ("completions", {"logit_bias": {"1": 1, "7": 200}}, "got {7: 200"),
        ("completions", {"logit_bias": {"999": 1}}, "token 999"),
        ("completions", {"prompt": [1, 999, 2]}, "token 999"),
        ("completions", {"prompt": [1, -4]}, "token -4"),
        ("completions", {"stop": ""}, "got ''"),
        ("completions", {"stop": ["x", ""]}, "got ''"),
        ("chat/completions", {"messages": [{"role": "assistent", "content": "x"}]}, "'assistent'"),
        (
            "chat/completions",
            {"messages": [*USER, {"role": "user", "content": None}]},
            "messages[1].content is null",
        ),
        ("chat/completions", {"messages": [{"role": "user"}]}, "messages[0].content is missing"),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "text", "text": None}]}]},
            "messages[0].content[0].text is null",
        ),
    ],
)
async def test_the_culprit_is_in_the_message(
    path: str, fields: dict[str, Any], culprit: str
) -> None:
    body = {**(TEXT if path == "completions" else CHAT), **fields}
    message = (await post(any_engine(), path, body)).json()["error"]["message"]
    assert culprit in message
    assert "text only" not in message and "(''" not in message
