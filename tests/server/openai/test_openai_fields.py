"""Every field that OpenAI's own client has is served, refused by name, or ignored and named."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsBase as TextParams

import twostroke.server.openai
from tests.server.http_calls import USER, any_engine, post
from tests.server.scripted import ScriptedEngine
from twostroke.server.generation.request_log import LOGGER
from twostroke.server.openai.chat_request import ChatCompletionRequest
from twostroke.server.openai.field_limits import LIMITS
from twostroke.server.openai.generation_fields import SAMPLING_FIELDS
from twostroke.server.openai.text_completions.request import CompletionRequest

# What asks for something, where a number would be no answer to that.
VALUES: dict[str, Any] = {
    "model": "scripted",
    "prompt": "the dog",
    "messages": USER,
    "user": "joe",
    "safety_identifier": "joe",
    "prompt_cache_key": "joe",
    "prediction": {"type": "content", "content": "a dog"},
    "logit_bias": {"1": 1},
    "stop": "x",
    "echo": True,
    "reasoning_effort": "low",
    "tools": [],
    "tool_choice": "none",
    "parallel_tool_calls": False,
    "stream_options": {"include_usage": True},
    "response_format": {"type": "json_object"},
}
BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": USER},
    "completions": {"prompt": "the dog"},
}
ROUTES = [("chat/completions", name) for name in sorted(ChatParams.__annotations__)]
ROUTES += [("completions", name) for name in sorted(TextParams.__annotations__)]


def body_with(path: str, field: str) -> dict[str, Any]:
    value: Any = VALUES.get(field, 1)
    if path == "chat/completions" and field in ("logprobs", "top_logprobs"):
        return {**BODIES[path], "logprobs": True, field: True if field == "logprobs" else 1}
    if field in ("functions", "modalities"):
        value = [{"type": "function"}]
    if field == "n":
        value = 2
    return {**BODIES[path], field: value, "stream": field == "stream_options"}


@pytest.mark.parametrize(("path", "field"), ROUTES)
async def test_a_field_works_or_is_named(path: str, field: str) -> None:
    model = ChatCompletionRequest if path == "chat/completions" else CompletionRequest
    response = await post(
        ScriptedEngine(), path, body_with(path, field), served_model_name=("scripted",)
    )
    if field in model.model_fields or field in model.ignorable():
        assert response.status_code == 200, response.text
        # The scripted model's template reads no variable.
        ignored = field in model.ignorable() or field == "reasoning_effort"
        assert response.headers.get("x-ignored-fields") == (field if ignored else None)
    else:
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["param"] == field
        assert "is not supported by this server" in error["message"]


LABELS = {"user": "joe", "safety_identifier": "abc123", "prompt_cache_key": "shop\nforged line"}


@pytest.mark.parametrize("path", BODIES)
async def test_labels_are_in_the_engines_request_and_in_the_log(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = ScriptedEngine()
    with caplog.at_level("INFO", logger=LOGGER):
        await post(engine, path, {**BODIES[path], **LABELS})
        await post(engine, path, {**BODIES[path], "stream": True})
    assert [dict(request.labels) for request in engine.submitted] == [LABELS, {}]
    first, second = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    assert first.startswith(f"{engine.submitted[0].request_id} ended=stop prompt=")
    assert first.endswith(
        r" user='joe' safety_identifier='abc123' prompt_cache_key='shop\nforged line'"
    )
    assert "user" not in second


async def test_a_label_has_a_length() -> None:
    """And so has a salt, which is hashed for each sample: one of 30 MB took 34 ms each time."""
    for field in (*LABELS, "cache_salt"):
        assert (
            await post(any_engine(), "completions", {"prompt": "x", field: "a" * 512})
        ).status_code == 200
        response = await post(any_engine(), "completions", {"prompt": "x", field: "a" * 513})
        assert (response.status_code, response.json()["error"]["param"]) == (400, field)


@pytest.mark.parametrize("model", [ChatCompletionRequest, CompletionRequest])
def test_every_accepted_field_is_read(
    model: type[ChatCompletionRequest] | type[CompletionRequest],
) -> None:
    """By name, somewhere in the room of its API: a field that nothing reads would be ignored."""
    room = Path(twostroke.server.openai.__file__).parent
    paths = [
        path
        for kind in ("chat*", "generation*", "answer*", "text_completions/*.py")
        for path in room.glob(kind)
    ]
    source = "".join(path.read_text() for path in paths)
    for name in model.model_fields.keys() - set(SAMPLING_FIELDS):
        assert re.search(rf"\b(body|self)\.{name}\b", source), name


def test_the_api_document_has_the_range_of_every_sampling_field() -> None:
    flags = {"ignore_eos", "skip_special_tokens", "include_stop_str_in_output"}
    assert set(SAMPLING_FIELDS) - flags <= LIMITS.keys()
