"""Anthropic's own client against a real server on loopback; the engine is scripted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic.types import ToolUseBlock

from tests.server.anthropic.messages_calls import BODY, USER, WEATHER, engine_that_says
from tests.server.dialogues import CALLS, THINKING, prompt_of
from tests.server.running import running_server, wait_until
from tests.server.scripted import Script, ScriptedEngine
from twostroke.core.errors import (
    ModelLoadingError,
    QueueFullError,
    RequestFailedError,
)
from twostroke.gateway.gateway import Gateway
from twostroke.gateway.options import GatewayOptions

TEXT = "the quick brown fox"


def client(url: str, **options: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(**{"base_url": url, "api_key": "x", "max_retries": 0, **options})


@pytest.fixture
def engine() -> ScriptedEngine:
    return engine_that_says("the ", "quick ", "brown ", "fox")


@pytest.fixture
def api(engine: ScriptedEngine) -> Iterator[anthropic.Anthropic]:
    with running_server(engine, served_model_name=("scripted", "a/b")) as url, client(url) as api:
        yield api


def create(api: anthropic.Anthropic, **fields: Any) -> Any:
    return api.messages.create(**{**BODY, **fields})


def test_a_message(api: anthropic.Anthropic, engine: ScriptedEngine) -> None:
    engine.script.cached_tokens = 3
    answer = create(api, system="be brief", extra_body={"temperature": 0.5, "top_k": 3})
    assert answer.content[0].text == TEXT
    assert (answer.role, answer.model, answer.stop_reason) == ("assistant", "scripted", "end_turn")
    prompt = engine.submitted[0].prompt_token_ids
    usage = answer.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == len(prompt)
    assert (usage.cache_read_input_tokens, usage.output_tokens) == (3, 4)
    assert answer._request_id.startswith("req_") and answer.id.startswith("msg_")
    params = engine.submitted[0].params
    assert (params.temperature, params.top_k, params.max_tokens) == (0.5, 3, 50)
    assert prompt_of(engine) == "system: be brief|\nuser: hi|\nassistant: "


def test_the_stream_helper(api: anthropic.Anthropic) -> None:
    with api.messages.stream(**BODY) as stream:
        assert "".join(stream.text_stream) == TEXT
        final = stream.get_final_message()
    assert final.stop_reason == "end_turn" and final.usage.output_tokens == 4
    assert final.content[0].type == "text" and final.content[0].text == TEXT


async def test_the_async_client(engine: ScriptedEngine) -> None:
    with running_server(engine) as url:
        options: Any = {"base_url": url, "auth_token": "x", "max_retries": 0}
        async with (
            anthropic.AsyncAnthropic(**options) as api,
            api.messages.stream(**BODY) as stream,
        ):
            assert await stream.get_final_text() == TEXT


@pytest.mark.parametrize("engine", [engine_that_says(*CALLS)])
@pytest.mark.parametrize("streamed", [False, True])
def test_tools_round_trip(api: anthropic.Anthropic, engine: ScriptedEngine, streamed: bool) -> None:
    """The answer is sent back as the client has it, with the results."""
    fields: dict[str, Any] = {**BODY, "tools": [WEATHER]}
    if streamed:
        with api.messages.stream(**fields) as stream:
            kinds = [event.type for event in stream]
            answer: Any = stream.get_final_message()
        assert kinds.count("input_json") > 3
    else:
        answer = api.messages.create(**fields)
    assert answer.stop_reason == "tool_use"
    text, *calls = answer.content
    assert text.text == "I look. "
    assert all(isinstance(call, ToolUseBlock) for call in calls)
    assert [(call.name, call.input) for call in calls] == [
        ("get_weather", {"city": "Zürich"}),
        ("get_weather", {"city": "Bern"}),
    ]
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"} for call in calls
    ]
    turns = [*USER, answer.to_param(), {"role": "user", "content": results}]
    api.messages.create(**{**fields, "messages": turns})
    first, second = (call.id for call in calls)
    assert prompt_of(engine).endswith(
        "user: hi|\n"
        f"assistant: I look. [{first} get_weather Zürich][{second} get_weather Bern]|\n"
        f"tool: sunny[{first} get_weather]|\ntool: sunny[{second} get_weather]|\nassistant: "
    )


@pytest.mark.parametrize("engine", [engine_that_says(*CALLS)])
def test_the_tool_runner_runs_a_loop(api: anthropic.Anthropic, engine: ScriptedEngine) -> None:
    """The client's agent calls the function and sends the results, until no call is left."""
    asked: list[str] = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """The weather of a city."""
        asked.append(city)
        engine.script = Script(pieces=("sunny",), max_model_len=3000)
        return "sun"

    runner: Any = api.beta.messages.tool_runner(
        model="scripted", max_tokens=50, tools=[get_weather], messages=USER
    )
    final = runner.until_done()
    assert asked == ["Zürich", "Bern"] and final.content[0].text == "sunny"
    assert "tool: sun[" in prompt_of(engine)


@pytest.mark.parametrize(
    "engine", [engine_that_says("Well", ".\n</think>\n4", "2", template=THINKING)]
)
def test_thoughts_are_blocks(api: anthropic.Anthropic) -> None:
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    with api.messages.stream(**BODY, thinking=thinking) as stream:
        kinds = [event.type for event in stream]
        final: Any = stream.get_final_message()
    assert "thinking" in kinds and kinds.index("signature") < kinds.index("text")
    assert [block.type for block in final.content] == ["thinking", "text"]
    assert final.content[0].thinking == "Well." and final.content[0].signature
    assert final.content[1].text == "42"
    whole = create(api, thinking=thinking)
    assert whole.content[0] == final.content[0] and whole.content[1].text == "42"
    turns = [*USER, whole.to_param(), *USER]
    assert create(api, messages=turns).stop_reason == "end_turn"
    omitted = create(api, thinking={**thinking, "display": "omitted"})
    assert omitted.content[0].thinking == ""
    assert omitted.content[0].signature == whole.content[0].signature


def test_the_count_of_tokens(api: anthropic.Anthropic, engine: ScriptedEngine) -> None:
    fields: dict[str, Any] = {"system": "be brief", "tools": [WEATHER]}
    counted: Any = api.messages.count_tokens(model="scripted", messages=USER, **fields)
    assert counted.input_tokens == create(api, **fields).usage.input_tokens
    assert len(engine.submitted) == 1


def test_models(api: anthropic.Anthropic) -> None:
    assert [model.id for model in api.models.list()] == ["scripted", "a/b"]
    assert [model.id for model in api.models.list(limit=1)] == ["scripted", "a/b"]  # two pages
    page = api.models.list(limit=1, before_id="a/b")
    assert ([model.id for model in page.data], page.has_more) == (["scripted"], False)
    one = api.models.retrieve("scripted")
    assert (one.type, one.display_name, one.max_input_tokens) == ("model", "scripted", 3000)
    assert one.created_at.tzinfo is not None
    with pytest.raises(anthropic.NotFoundError):
        api.models.retrieve("claude")
    with pytest.raises(anthropic.BadRequestError, match="after_id"):
        api.models.list(after_id="claude")


@pytest.mark.parametrize(
    ("error", "expected", "kind"),
    [
        (QueueFullError("full"), anthropic._exceptions.OverloadedError, "overloaded_error"),
        (ModelLoadingError("later"), anthropic.ServiceUnavailableError, "api_error"),
        (RequestFailedError("pass failed"), anthropic.InternalServerError, "api_error"),
        (RuntimeError("secret"), anthropic.InternalServerError, "api_error"),
    ],
)
def test_errors_become_the_clients_own(
    api: anthropic.Anthropic, engine: ScriptedEngine, error: Any, expected: Any, kind: str
) -> None:
    engine.script.refuse = error
    with pytest.raises(expected) as caught:
        create(api)
    assert caught.value.type == kind
    assert caught.value.request_id == caught.value.body["request_id"]
    assert "secret" not in str(caught.value)


def test_mistakes_become_the_clients_own(api: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        create(api, model="claude")
    assert missing.value.type == "not_found_error"
    with pytest.raises(anthropic.BadRequestError, match="stop_sequences must be") as bad:
        create(api, stop_sequences=[""])
    assert bad.value.type == "invalid_request_error"


def test_an_error_in_mid_stream(api: anthropic.Anthropic, engine: ScriptedEngine) -> None:
    engine.script.error, engine.script.error_at = RequestFailedError("pass failed"), 2
    texts: list[str] = []
    with (
        pytest.raises(anthropic.APIStatusError, match="pass failed"),
        api.messages.stream(**BODY) as stream,
    ):
        texts.extend(stream.text_stream)
    assert texts == ["the ", "quick "]


@pytest.mark.parametrize("header", [{"x-api-key": "sk-1"}, {"authorization": "Bearer sk-1"}])
def test_keys_go_by_either_header(header: dict[str, str]) -> None:
    gateway = Gateway(GatewayOptions(api_key=("sk-1",), requests_per_minute=2))
    with running_server(ScriptedEngine(), gateway=gateway) as url:
        with client(url, api_key="sk-2") as api, pytest.raises(anthropic.AuthenticationError):
            create(api)
        with client(url, api_key=None, default_headers=header) as api:
            assert create(api).stop_reason == "end_turn"
            create(api)
            with pytest.raises(anthropic.RateLimitError) as caught:
                create(api)
    assert caught.value.type == "rate_limit_error"
    assert int(caught.value.response.headers["retry-after"]) > 0


def test_leaving_a_stream_aborts_it() -> None:
    engine = ScriptedEngine(Script(endless=True, seconds_per_step=0.005))
    with running_server(engine) as url, client(url) as api:
        with api.messages.stream(**BODY) as stream:
            assert next(iter(stream)).type == "message_start"
            assert not engine.aborted
        wait_until(lambda: engine.aborted == [engine.submitted[0].request_id])
