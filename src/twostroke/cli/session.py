"""Where `chat` and `generate` get their text from: an engine in this process, or a server."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TextIO

from twostroke.core.config import EngineConfig, ModelOptions
from twostroke.core.errors import (
    ConfigError,
    EngineError,
    InvalidRequestError,
    RequestTooLargeError,
)

if TYPE_CHECKING:
    import httpx

    from twostroke.cli.tool_calling import AskedCall, CallsInDeltas, CallsInText
    from twostroke.core.output import RequestOutput
    from twostroke.engine.clients.loaded_model import LoadedModel

# A role, a content, and of some the tools that were called.
Message = Mapping[str, Any]

# An answer may take any time; a connection may not.
CONNECT_SECONDS = 10


class TokenCounts(NamedTuple):
    """Tokens of an answer so far; ``cached`` of the prompt's, where the server says it."""

    prompt: int
    cached: int | None
    completion: int


class AnswerPiece(NamedTuple):
    """What an answer has gained; ``counts`` where they are known by then.

    All ``calls`` come together, with the last piece.
    """

    text: str
    counts: TokenCounts | None = None
    calls: Sequence[AskedCall] = ()


class Session(Protocol):
    """Streams answers. Closing an iterator early aborts the answer."""

    def chat(
        self, messages: Sequence[Message], fields: Mapping[str, Any]
    ) -> AsyncGenerator[AnswerPiece]:
        """The pieces of the next turn.

        Args:
            fields: How to sample, under the API's names, and ``tools``, if it may call some.
        """

    def complete(self, prompt: str, fields: Mapping[str, Any]) -> AsyncIterator[AnswerPiece]:
        """The pieces of what follows ``prompt``."""

    def surplus(self, messages: Sequence[Message], fields: Mapping[str, Any]) -> int:
        """How many of the oldest turns must go before ``chat`` has room for an answer.

        The number is 0 if only trying can tell.

        Raises:
            RequestTooLargeError: Without any turn, the system prompt and the last message are too
                long.
        """

    @property
    def chats(self) -> bool:
        """Whether the model has a chat template."""

    def close(self) -> None:
        """Release what the session holds; no answer may be under way."""


def open_session(
    config: EngineConfig, url: str | None, *, named: bool = False, loads: bool = False
) -> Session:
    """A server at ``url`` if there is one, else the model in this process.

    Args:
        named: Whether the model was named, even if by the default's name.
        loads: Whether flags were given that only a model in this process heeds, beyond those in
            ``config.model``.

    Raises:
        ConfigError: Such flags together with ``url``.
    """
    if url is None:
        return LocalSession.load(config)
    if loads or replace(config.model, model=ModelOptions().model, seed=None) != ModelOptions():
        raise ConfigError(
            "flags of the engine mean nothing with --url", hint="give them to the server there"
        )
    named = named or config.model.model != ModelOptions().model
    return RemoteSession(url, config.model.model if named else None, seed=config.model.seed)


def refuse_surrogates(*texts: str | None) -> None:
    """Refuse text that came in as bytes other than UTF-8, which Python holds as lone surrogates."""
    for text in texts:
        if text and any("\ud800" <= character <= "\udfff" for character in text):
            raise not_utf8()


def not_utf8() -> InvalidRequestError:
    return InvalidRequestError(
        "the input is not valid UTF-8", hint="convert it, for instance with iconv -t UTF-8"
    )


class LocalSession:
    """Runs the model in this process."""

    def __init__(self, model: LoadedModel) -> None:
        from twostroke.text.chat_encoder import ChatEncoder
        from twostroke.text.chat_template import ChatTemplate

        self._client, self._tokenizer = model.client, model.tokenizer
        self._watch: Callable[[RequestOutput], None] | None = None
        template = ChatTemplate.from_tokenizer(self._tokenizer)
        self._encoder = ChatEncoder(template, self._tokenizer)

    @classmethod
    def load(cls, config: EngineConfig) -> LocalSession:
        from twostroke.start_serving import start_model

        return cls(start_model(config))

    @property
    def chats(self) -> bool:
        return bool(self._tokenizer.chat_templates)

    def write_drafts(self, stream: TextIO) -> None:
        """From now on write each answer to ``stream`` as it comes, with its drafts in colour."""
        from twostroke.cli.draft_colours import show_drafts

        tokenizer = self._tokenizer
        self._watch = lambda output: show_drafts(output, tokenizer, stream)

    def close(self) -> None:
        # A thread inside torch would abort the process when the interpreter is torn down around it.
        self._client.close()

    def chat(
        self, messages: Sequence[Message], fields: Mapping[str, Any]
    ) -> AsyncGenerator[AnswerPiece]:
        tools = fields.get("tools")
        if not tools:
            return self._stream(self._encoder.encode(messages), fields)
        from twostroke.cli.tool_calling import CallsInText

        calls = CallsInText(self._tokenizer, tools)
        sampling = {name: value for name, value in fields.items() if name != "tools"}
        if calls.needs_special_tokens:
            sampling["skip_special_tokens"] = False
        prompt = self._encoder.encode(messages, tools=tools)
        return _separated(self._stream(prompt, sampling), calls)

    def surplus(self, messages: Sequence[Message], fields: Mapping[str, Any]) -> int:
        from twostroke.text.context import assemble

        info, answer = self._client.info, fields.get("max_tokens")
        longest = info.longest_request
        soft_limit = longest - (longest // 4 if answer is None else answer)
        return assemble(
            self._encoder,
            messages,
            hard_limit=longest - (answer or 1),
            soft_limit=soft_limit,
        ).report.dropped_turns

    def complete(self, prompt: str, fields: Mapping[str, Any]) -> AsyncIterator[AnswerPiece]:
        return self._stream(self._tokenizer.encode(prompt), fields)

    async def _stream(
        self, prompt: list[int], fields: Mapping[str, Any]
    ) -> AsyncGenerator[AnswerPiece]:
        from twostroke.core.generation_request import GenerationRequest
        from twostroke.core.sampling_params import SamplingParams
        from twostroke.engine.answer import raise_output_error

        params = SamplingParams(
            **{"max_tokens": None, **self._client.info.sampling_defaults, **fields}
        )
        stream = self._client.submit(
            GenerationRequest(request_id=uuid.uuid4().hex, prompt_token_ids=prompt, params=params)
        )
        num_tokens = 0
        try:
            async for output in stream:
                raise_output_error(output)
                if self._watch is not None:
                    self._watch(output)
                num_tokens += len(output.token_ids)
                cached = output.num_cached_tokens
                yield AnswerPiece(output.text, TokenCounts(len(prompt), cached, num_tokens))
        finally:
            stream.abort()


class RemoteSession:
    """Asks an OpenAI-compatible server.

    Args:
        url: With or without ``/v1``.
        model: By default the first that the server lists.
        seed: Sent with every request.
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        seed: int | None = None,
    ) -> None:
        self._url = url.rstrip("/").removesuffix("/v1") + "/v1"
        self._model = model
        self._transport = transport
        self._seed = {} if seed is None else {"seed": seed}

    @property
    def chats(self) -> bool:
        return True

    def close(self) -> None:
        """Every request has a connection of its own; nothing is held."""

    def chat(
        self, messages: Sequence[Message], fields: Mapping[str, Any]
    ) -> AsyncGenerator[AnswerPiece]:
        return self._stream("/chat/completions", {"messages": list(messages), **fields})

    def surplus(self, messages: Sequence[Message], fields: Mapping[str, Any]) -> int:
        return 0

    def complete(self, prompt: str, fields: Mapping[str, Any]) -> AsyncIterator[AnswerPiece]:
        return self._stream("/completions", {"prompt": prompt, **fields})

    async def _stream(self, path: str, fields: Mapping[str, Any]) -> AsyncGenerator[AnswerPiece]:
        import httpx

        from twostroke.cli.tool_calling import CallsInDeltas

        key = os.environ.get("OPENAI_API_KEY")
        headers = {"authorization": f"Bearer {key}"} if key else {}
        try:
            timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
            async with httpx.AsyncClient(
                timeout=timeout, headers=headers, transport=self._transport
            ) as client:
                self._model = self._model or await self._first_model(client)
                options = {"stream": True, "stream_options": {"include_usage": True}}
                body = {"model": self._model, **options, **self._seed, **fields}
                async with client.stream("POST", self._url + path, json=body) as response:
                    await _check(response)
                    streams, calls = False, CallsInDeltas()
                    async for line in response.aiter_lines():
                        streams |= line.startswith("data:")
                        for piece in self._pieces(line, calls):
                            yield piece
                    if not streams:
                        raise self._not_openai()
                    if made := calls.finish():
                        yield AnswerPiece("", None, made)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            reason = str(error) or type(error).__name__
            hint = "is a server running there? `twostroke serve` starts one"
            raise ConfigError(f"cannot reach {self._url}: {reason}", hint=hint) from error

    async def _first_model(self, client: httpx.AsyncClient) -> str:
        response = await client.get(self._url + "/models")
        await _check(response)
        try:
            return str(response.json()["data"][0]["id"])
        except (ValueError, LookupError, TypeError) as error:
            raise self._not_openai() from error

    def _pieces(self, line: str, calls: CallsInDeltas) -> list[AnswerPiece]:
        """What one line of an event stream brings; an error in it is raised."""
        if not line.startswith("data:") or (data := line[5:].strip()) == "[DONE]":
            return []
        try:
            value = json.loads(data)
            if "error" not in value:
                for choice in value["choices"]:
                    _add_calls(choice, calls)
                texts = [
                    str(choice.get("text") or (choice.get("delta") or {}).get("content") or "")
                    for choice in value["choices"]
                ]
                return [AnswerPiece("".join(texts), _token_counts(value.get("usage")))]
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise self._not_openai() from error
        raise EngineError(f"the server failed: {_message(data)}")

    def _not_openai(self) -> EngineError:
        hint = (
            "give --url the address of an OpenAI-compatible server, with a port and without a path"
            " behind /v1"
        )
        return EngineError(f"{self._url} did not answer like an OpenAI server", hint=hint)


def _add_calls(choice: Any, calls: CallsInDeltas) -> None:
    """Take in the pieces of calls that a chunk of a chat brings."""
    for call in (choice.get("delta") or {}).get("tool_calls") or ():
        function = call.get("function") or {}
        calls.add(
            int(call["index"]),
            name=str(function.get("name") or ""),
            arguments=str(function.get("arguments") or ""),
            id=str(call.get("id") or ""),
        )


async def _separated(
    answer: AsyncGenerator[AnswerPiece], calls: CallsInText
) -> AsyncGenerator[AnswerPiece]:
    """The pieces of an answer without the calls in its text, which come at the end."""
    counts: TokenCounts | None = None
    async with aclosing(answer) as pieces:
        async for piece in pieces:
            counts = piece.counts
            yield AnswerPiece(calls.feed(piece.text), counts)
    rest, made = calls.finish()
    if rest or made:
        yield AnswerPiece(rest, counts, made)


def _token_counts(usage: Any) -> TokenCounts | None:
    """What an answer's ``usage`` says; servers may leave out any part of it."""
    if not usage:
        return None
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    if not isinstance(prompt, int) or not isinstance(completion, int):
        return None
    return TokenCounts(prompt, cached if isinstance(cached, int) else None, completion)


async def _check(response: httpx.Response) -> None:
    if response.is_success:
        return
    await response.aread()
    if _code(response.text) == "context_length_exceeded":
        raise RequestTooLargeError(
            _message(response.text), needed=0, available=0, hint="say less at once"
        )
    raise EngineError(f"the server answered {response.status_code}: {_message(response.text)}")


def _code(body: str) -> str | None:
    try:
        return str(json.loads(body)["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return None


def _message(body: str) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body.strip()[:200] or "nothing"
