"""The operator's template, variables, sampling defaults and usage hold under every dialect."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.server.http_calls import USER, client_for
from tests.server.scripted import Script, ScriptedEngine
from twostroke.core.operator.chat_template_config import ChatTemplateConfig
from twostroke.engine.executor import ExecutorInfo
from twostroke.text.own_template import apply_template

OWN = "OWN{{ ' thinks' if enable_thinking else '' }}: {{ messages[0].content }}"
MESSAGES: dict[str, Any] = {"messages": USER}
CHATS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {**MESSAGES, "max_tokens": 50},
    "/v1/responses": {"input": "the dog", "max_output_tokens": 50},
    "/v1/messages": {**MESSAGES, "model": "scripted", "max_tokens": 50},
    "/api/chat": {**MESSAGES, "model": "scripted", "options": {"num_predict": 50}},
    "/api/generate": {"prompt": "the dog", "model": "scripted", "options": {"num_predict": 50}},
}


@dataclass
class Configured(ScriptedEngine):
    """With the flags of an operator."""

    @property
    def info(self) -> ExecutorInfo:
        return replace(super().info, sampling_defaults={"temperature": 0.25}, max_new_tokens=9)


def engine() -> Configured:
    made = Configured(Script(max_model_len=1000))
    variables = json.dumps({"enable_thinking": True})
    flags = ChatTemplateConfig(chat_template=OWN, default_chat_template_kwargs=variables)
    apply_template(made.tokenizer, flags)
    return made


@pytest.mark.parametrize("path", CHATS)
async def test_every_dialect_obeys(path: str) -> None:
    configured = engine()
    async with client_for(configured, served_model_name=("scripted",)) as client:
        answer = await client.post(path, json=CHATS[path])
        assert answer.status_code == 200, answer.text
    (request,) = configured.submitted
    assert configured.tokenizer.decode(request.prompt_token_ids) == "OWN thinks: the dog"
    assert request.params.temperature == 0.25


async def test_a_request_says_otherwise() -> None:
    configured = engine()
    fields = {"chat_template_kwargs": {"enable_thinking": False}, "temperature": 1}
    async with client_for(configured) as client:
        await client.post("/v1/chat/completions", json=MESSAGES | fields)
    (request,) = configured.submitted
    assert configured.tokenizer.decode(request.prompt_token_ids) == "OWN: the dog"
    assert request.params.temperature == 1


async def test_counts_and_descriptions_follow() -> None:
    configured = engine()
    num_tokens = len(configured.tokenizer.encode("OWN thinks: the dog"))
    async with client_for(configured, served_model_name=("scripted",)) as client:
        counted = await client.post("/tokenize", json=MESSAGES)
        assert counted.json()["count"] == num_tokens
        body = {**MESSAGES, "model": "scripted"}
        counted = await client.post("/v1/messages/count_tokens", json=body)
        assert counted.json()["input_tokens"] == num_tokens
        assert (await client.get("/tokenizer_info")).json()["chat_template"] == OWN
        shown = (await client.post("/api/show", json={"model": "scripted"})).json()
        assert shown["template"] == OWN and "num_predict" in shown["parameters"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("options", [None, {"include_usage": False}])
async def test_usage_whether_asked_for_or_not(path: str, options: dict[str, bool] | None) -> None:
    body = {"stream": True, "stream_options": options, **MESSAGES}
    if path == "/v1/completions":
        body = {"stream": True, "stream_options": options, "prompt": "the dog"}
    for forced in (False, True):
        async with client_for(ScriptedEngine(), enable_force_include_usage=forced) as client:
            lines = (await client.post(path, json=body)).text.splitlines()
        last = json.loads([line for line in lines if line.startswith("data: {")][-1][6:])
        assert (last.get("usage") is not None and last["choices"] == []) is forced
