"""Where `chat` and `generate` get their text from: an engine in this process, or a server."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from twostroke.config import EngineConfig
from twostroke.errors import ConfigError, EngineError

if TYPE_CHECKING:
    import httpx

    from twostroke.engine.client import EngineClient

Message = Mapping[str, str]


class Session(Protocol):
    """Streams answers. Closing an iterator early aborts the answer."""

    def chat(self, messages: Sequence[Message], fields: Mapping[str, Any]) -> AsyncIterator[str]:
        """The pieces of the next turn."""

    def complete(self, prompt: str, fields: Mapping[str, Any]) -> AsyncIterator[str]:
        """The pieces of what follows ``prompt``."""

    @property
    def chats(self) -> bool:
        """Whether the model has a chat template."""


class LocalSession:
    """Runs the model in this process."""

    def __init__(self, client: EngineClient) -> None:
        from twostroke.text.chat_template import ChatTemplate

        self._client = client
        self._template = ChatTemplate.from_tokenizer(client.tokenizer)

    @classmethod
    def load(cls, config: EngineConfig) -> LocalSession:
        from twostroke.startup import start_async_engine

        return cls(start_async_engine(config))

    @property
    def chats(self) -> bool:
        return bool(self._client.tokenizer.chat_templates)

    def chat(self, messages: Sequence[Message], fields: Mapping[str, Any]) -> AsyncIterator[str]:
        text = self._template.render(messages)
        return self._stream(self._client.tokenizer.encode(text, add_special_tokens=False), fields)

    def complete(self, prompt: str, fields: Mapping[str, Any]) -> AsyncIterator[str]:
        return self._stream(self._client.tokenizer.encode(prompt), fields)

    async def _stream(self, prompt: list[int], fields: Mapping[str, Any]) -> AsyncIterator[str]:
        from twostroke.engine.client import GenerationRequest
        from twostroke.sampling_params import SamplingParams

        params = SamplingParams(**{"max_tokens": None, **self._client.info.sampling_defaults, **fields})
        stream = self._client.submit(
            GenerationRequest(request_id=uuid.uuid4().hex, prompt_token_ids=prompt, params=params)
        )
        try:
            async for output in stream:
                if output.error is not None:
                    raise output.error
                yield output.text
        finally:
            stream.abort()


class RemoteSession:
    """Asks an OpenAI-compatible server.

    Args:
        url: With or without ``/v1``.
        model: By default the first that the server lists.
    """

    def __init__(self, url: str, model: str | None = None, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._url = url.rstrip("/").removesuffix("/v1") + "/v1"
        self._model = model
        self._transport = transport

    @property
    def chats(self) -> bool:
        return True

    def chat(self, messages: Sequence[Message], fields: Mapping[str, Any]) -> AsyncIterator[str]:
        return self._stream("/chat/completions", {"messages": list(messages), **fields})

    def complete(self, prompt: str, fields: Mapping[str, Any]) -> AsyncIterator[str]:
        return self._stream("/completions", {"prompt": prompt, **fields})

    async def _stream(self, path: str, fields: Mapping[str, Any]) -> AsyncIterator[str]:
        import httpx

        key = os.environ.get("OPENAI_API_KEY")
        headers = {"authorization": f"Bearer {key}"} if key else {}
        try:
            async with httpx.AsyncClient(timeout=None, headers=headers, transport=self._transport) as client:
                self._model = self._model or await self._first_model(client)
                body = {"model": self._model, "stream": True, **fields}
                async with client.stream("POST", self._url + path, json=body) as response:
                    await _check(response)
                    async for line in response.aiter_lines():
                        for text in _texts(line):
                            yield text
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            reason = str(error) or type(error).__name__
            hint = "is a server running there? `twostroke serve` starts one"
            raise ConfigError(f"cannot reach {self._url}: {reason}", hint=hint) from error

    async def _first_model(self, client: httpx.AsyncClient) -> str:
        response = await client.get(self._url + "/models")
        await _check(response)
        return str(response.json()["data"][0]["id"])


async def _check(response: httpx.Response) -> None:
    if response.is_success:
        return
    await response.aread()
    raise EngineError(f"the server answered {response.status_code}: {_message(response.text)}")


def _message(body: str) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body.strip()[:200] or "nothing"


def _texts(line: str) -> list[str]:
    """The text in one line of an event stream; an error in it is raised."""
    if not line.startswith("data:") or (data := line[5:].strip()) == "[DONE]":
        return []
    value = json.loads(data)
    if "error" in value:
        raise EngineError(f"the server failed: {_message(data)}")
    return [choice.get("text") or (choice.get("delta") or {}).get("content") or "" for choice in value["choices"]]
