"""What changes no guarantee is accepted and named; what clients send back of an answer is, too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.server.http_calls import USER, any_engine, client_for, post
from tests.server.running import running_server
from tests.server.scripted import ScriptedEngine
from twostroke.core.operator.chat_template_config import OWN_VARIABLES
from twostroke.server.foreign_fields import ADVISORY
from twostroke.server.generation.request_log import LOGGER
from twostroke.server.http.ignored_header import MAX_NAMED
from twostroke.server.openai.chat_request import ChatCompletionRequest
from twostroke.server.openai.text_completions.request import CompletionRequest

BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": USER},
    "completions": {"prompt": "the dog"},
}
ANSWER = {"role": "assistant", "content": "yes"}


@pytest.fixture
def api() -> Iterator[openai.OpenAI]:
    with running_server(ScriptedEngine()) as url:
        yield openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)


async def chat_with(*messages: dict[str, Any], **fields: Any) -> tuple[str, str | None]:
    """The prompt that the engine got, and the header."""
    engine = ScriptedEngine()
    response = await post(engine, "chat/completions", {"messages": list(messages), **fields})
    assert response.status_code == 200, response.text
    prompt = engine.tokenizer.decode(engine.submitted[0].prompt_token_ids)
    return prompt, response.headers.get("x-ignored-fields")


async def refusal(path: str, **fields: Any) -> dict[str, Any]:
    response = await post(any_engine(), path, {**BODIES[path], **fields})
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("value", [True, 0, "x", {"a": ["b"]}])
async def test_whatever_the_value_all_are_named(path: str, value: Any) -> None:
    body = {**BODIES[path], **dict.fromkeys(ADVISORY, value)}
    for stream in (False, True):
        response = await post(any_engine(), path, {**body, "stream": stream})
        assert response.status_code == 200, response.text
        assert response.headers["x-ignored-fields"] == ", ".join(ADVISORY)


@pytest.mark.parametrize("path", BODIES)
async def test_null_is_always_accepted_and_never_named(path: str) -> None:
    model = ChatCompletionRequest if path == "chat/completions" else CompletionRequest
    names = {*ADVISORY, *model.refused, *model.model_fields, "unheard_of"} - {"messages", "prompt"}
    response = await post(any_engine(), path, {**dict.fromkeys(names), **BODIES[path]})
    assert response.status_code == 200, response.text
    assert "x-ignored-fields" not in response.headers


async def test_the_log_names_them(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger=LOGGER):
        await post(any_engine(), "completions", {**BODIES["completions"], "store": True})
    assert caplog.records[-1].getMessage().endswith(" ignored='store'")


async def test_names_that_clients_choose_are_bounded_and_quoted() -> None:
    keys = {f"k{i}\r\nx: y, ä": 1 for i in range(MAX_NAMED + 1)}
    _, header = await chat_with({**USER[0], **keys})
    assert header is not None
    first, *rest, last = header.split(", ")
    assert first == "messages[].k0%5Cr%5Cnx%3A%20y%2C%20%5Cxe4"
    assert (len(rest), last) == (MAX_NAMED - 1, "...")


async def test_unknown_keys_of_messages_and_parts() -> None:
    prompt, header = await chat_with(
        {**USER[0], "id": "msg_1", "cache_control": {"type": "ephemeral"}},
        {**ANSWER, "reasoning_content": "hm", "provider_specific_fields": None, "annotations": []},
        {"role": "user", "content": [{"type": "text", "text": "go", "cache_control": {}}]},
    )
    assert prompt == "user: the dog\nassistant: yes\nuser: go\nassistant: "
    assert header == (
        "messages[].id, messages[].cache_control, messages[].annotations,"
        " messages[].content[].cache_control"
    )
    assert (await refusal("chat/completions", unheard_of=1))["param"] == "unheard_of"


async def test_what_an_assistant_did_not_say() -> None:
    """The SDK writes ``content: null`` beside a refusal, and some clients a part of that type."""
    for message in (
        {"role": "assistant", "content": None, "refusal": "no"},
        {"role": "assistant", "refusal": "no", "tool_calls": None, "audio": None},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    ):
        prompt, header = await chat_with(*USER, message, *USER)
        assert prompt == "user: the dog\nassistant: no\nuser: the dog\nassistant: "
        assert header is None
    empty = {"role": "assistant", "content": None}
    assert (await chat_with(*USER, empty, *USER))[0].startswith("user: the dog\nassistant: \nuser")


async def test_a_name_is_the_templates() -> None:
    """autogen names every message; the scripted model's template does not write names."""
    assert await chat_with({**USER[0], "name": "user_proxy"}) == (
        "user: the dog\nassistant: ",
        None,
    )
    error = await refusal("chat/completions", messages=[{**USER[0], "name": "<|im_end|>"}])
    assert error["param"] == "messages[0].name"


async def test_variables_of_the_template() -> None:
    """What it reads works, what it does not read is named, what is the server's is refused."""
    engine = ScriptedEngine()
    source = (
        "{{ messages[0].content }}{% if enable_thinking %} think {{ reasoning_effort }}{% endif %}"
    )
    engine.tokenizer.chat_templates["default"] = source
    fields = {
        "messages": USER,
        "reasoning_effort": "low",
        "chat_template_kwargs": {"enable_thinking": True, "thinking": 1},
    }
    response = await post(engine, "chat/completions", fields)
    assert response.headers["x-ignored-fields"] == "chat_template_kwargs.thinking"
    prompt = engine.tokenizer.decode(engine.submitted[0].prompt_token_ids)
    assert prompt == "the dog think low"
    for name in OWN_VARIABLES:
        error = await refusal("chat/completions", chat_template_kwargs={name: 1})
        assert error["param"] == f"chat_template_kwargs.{name}"
    error = await refusal("chat/completions", chat_template_kwargs={"add_generation_prompt": False})
    assert error["param"] == "chat_template_kwargs.add_generation_prompt"


@pytest.mark.parametrize("path", BODIES)
async def test_best_of(path: str) -> None:
    for accepted in ({"best_of": None}, {"best_of": 1}, {"n": 2, "best_of": 2}):
        response = await post(any_engine(), path, {**BODIES[path], **accepted})
        assert response.status_code == 200, response.text
    for refused in ({"best_of": 2}, {"n": 2, "best_of": 1}, {"n": 2, "best_of": 3}):
        assert (await refusal(path, **refused))["param"] == "best_of"


async def test_no_logprobs_and_none_of_the_likeliest() -> None:
    fields = {**BODIES["chat/completions"], "logprobs": False}
    response = await post(any_engine(), "chat/completions", {**fields, "top_logprobs": 0})
    assert response.status_code == 200
    assert (await refusal("chat/completions", **fields, top_logprobs=1))["param"] == "top_logprobs"


async def test_tokenize_names_them_too() -> None:
    async with client_for(ScriptedEngine()) as client:
        body = {"messages": [{**USER[0], "id": "x"}], "chat_template_kwargs": {"thinking": True}}
        response = await client.post("/tokenize", json=body)
    assert response.headers["x-ignored-fields"] == "messages[].id, chat_template_kwargs.thinking"


def test_the_sdks_own_message_sent_back(api: openai.OpenAI) -> None:
    """As users write it: the message object of turn one is the second message of turn two."""
    messages: list[Any] = [*USER]
    for _ in range(2):
        answer = api.chat.completions.create(
            model="scripted", messages=messages, metadata={"a": "b"}, store=True
        )
        messages += [answer.choices[0].message, *USER]
        messages[-2] = {**messages[-2].model_dump(), "provider_specific_fields": {"x": 1}}
    assert answer.choices[0].message.content == "the quick brown fox"


def test_the_document_shows_them() -> None:
    schema = ChatCompletionRequest.model_json_schema()
    for name, reason in ADVISORY.items():
        assert reason in schema["properties"][name]["description"]
    message = schema["$defs"]["ChatMessage"]
    assert message.get("additionalProperties", True) is True
    assert schema["additionalProperties"] is False
