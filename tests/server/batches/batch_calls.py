"""Files of requests, and waiting for batches, for the tests of this folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anthropic
import httpx
import openai

from tests.server.running import running_server, wait_until
from tests.server.scripted import Script, ScriptedEngine

CHAT: Any = "/v1/chat/completions"
MESSAGES = "/v1/messages"
ENDED = ("completed", "failed", "expired", "cancelled")


def chat_body(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **fields}


def line(custom_id: str, url: str = CHAT, body: dict[str, Any] | None = None) -> bytes:
    fields = {"custom_id": custom_id, "method": "POST", "url": url}
    return json.dumps({**fields, "body": body or chat_body(custom_id)}).encode() + b"\n"


def lines(count: int, **body: Any) -> bytes:
    return b"".join(line(f"c{i}", body=chat_body(f"c{i}", **body)) for i in range(count))


def message_requests(count: int, **params: Any) -> list[Any]:
    fields = {"model": "scripted", "max_tokens": 5, **params}
    return [
        {"custom_id": f"c{i}", "params": {**chat_body(f"c{i}"), **fields}} for i in range(count)
    ]


def quick_engine(**script: Any) -> ScriptedEngine:
    """Its answers take no time, and its context any line."""
    return ScriptedEngine(Script(**{"max_model_len": 3000, **script}))


@contextmanager
def openai_client(url: str, key: str = "x") -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as api:
        yield api


@contextmanager
def anthropic_client(url: str, key: str = "x") -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=url, api_key=key, max_retries=0) as api:
        yield api


@contextmanager
def served(engine: ScriptedEngine, **options: Any) -> Iterator[str]:
    with running_server(engine, **options) as url:
        yield url


def begin(api: openai.OpenAI, content: bytes, endpoint: Any = CHAT, **fields: Any) -> Any:
    """A batch over a new file."""
    file = api.files.create(file=("in.jsonl", content), purpose="batch")
    return api.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window="24h", **fields
    )


def ended(api: openai.OpenAI, batch: Any) -> Any:
    """The batch, once it has ended."""
    return once(lambda: api.batches.retrieve(batch.id), lambda batch: batch.status in ENDED)


def messages_ended(api: anthropic.Anthropic, batch: Any) -> Any:
    retrieve = api.messages.batches.retrieve
    return once(lambda: retrieve(batch.id), lambda batch: batch.processing_status == "ended")


def once(read: Callable[[], Any], condition: Callable[[Any], bool], seconds: float = 60) -> Any:
    """The first value that meets a condition."""
    found: list[Any] = [None]

    def look() -> bool:
        found[0] = read()
        return condition(found[0])

    wait_until(look, seconds)
    return found[0]


def outputs_of(api: openai.OpenAI, file_id: str | None) -> dict[str, dict[str, Any]]:
    """The lines of a file of output, by their custom_ids."""
    assert file_id is not None
    parsed = [json.loads(text) for text in api.files.content(file_id).text.splitlines()]
    assert len({output["custom_id"] for output in parsed}) == len(parsed)
    return {output["custom_id"]: output for output in parsed}


def post_file(url: str, content: bytes, key: str = "x", **fields: str) -> httpx.Response:
    return httpx.post(
        f"{url}/v1/files",
        files={"file": ("in.jsonl", content)},
        data={"purpose": "batch", **fields},
        headers={"authorization": f"Bearer {key}"},
        timeout=60,
    )
