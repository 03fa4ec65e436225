"""Sends a workload to a server as streams, and notes when what came back."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import nullcontext
from urllib.request import getproxies

import httpx
import msgspec

from twostroke.bench.metrics import RequestRecord
from twostroke.bench.options import ServeBenchOptions
from twostroke.bench.transport import LeanTransport
from twostroke.bench.workload import WorkItem, words
from twostroke.errors import ConfigError, EngineError

CONNECT_SECONDS = 60.0


class Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class ServerError(msgspec.Struct):
    message: str = ""


class Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None


class Choice(msgspec.Struct):
    delta: Delta | None = None
    finish_reason: str | None = None

    @property
    def opens(self) -> bool:
        """A chat's first event says who speaks, and may come before anything is said."""
        delta = self.delta
        return delta is not None and delta.role is not None and not delta.content and self.finish_reason is None


class Chunk(msgspec.Struct):
    """What matters here of one event, of either route; a body that is an error is read the same way."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: ServerError | str | None = None

    @property
    def error_text(self) -> str:
        return self.error.message if isinstance(self.error, ServerError) else self.error or ""


class Bench:
    """A run against one server. Use as an async context manager.

    Args:
        transport: Stands in for the network in tests.

    Raises:
        ConfigError: The URL is malformed.
    """

    def __init__(self, options: ServeBenchOptions, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._options = options
        self._route = "/chat/completions" if options.backend == "openai-chat" else "/completions"
        self._url = options.base_url.rstrip("/").removesuffix("/v1") + "/v1"
        _check_url(self._url)
        self._model = options.model
        self._decoder = msgspec.json.Decoder(Chunk)
        key = os.environ.get("OPENAI_API_KEY")
        self._http = httpx.AsyncClient(
            # Compressed streams would be timed by the compressor's buffer.
            headers={"accept-encoding": "identity", "content-type": "application/json"}
            | ({"authorization": f"Bearer {key}"} if key else {}),
            timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            transport=transport or (None if getproxies() else LeanTransport(CONNECT_SECONDS)),
        )

    async def __aenter__(self) -> Bench:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def model(self) -> str:
        """The model's name: as given, else the first that the server lists.

        Raises:
            ConfigError: The server cannot be reached, or lists none.
        """
        if self._model is None:
            try:
                response = await self._http.get(f"{self._url}/models")
                if response.status_code != 200:
                    refusal = self._refusal(response.status_code, response.content)
                    hint = "the key comes from OPENAI_API_KEY; a server without this route needs --model"
                    raise ConfigError(f"{self._url}/models: {refusal}", hint=hint)
                self._model = str(response.json()["data"][0]["id"])
            except httpx.HTTPError as error:
                reason = str(error).partition("\n")[0] or type(error).__name__
                hint = "is a server running there? `twostroke serve` starts one; --base-url says where"
                raise ConfigError(f"cannot reach {self._url}: {reason}", hint=hint) from error
            except (ValueError, KeyError, IndexError, TypeError) as error:
                raise ConfigError(f"{self._url}/models lists no model", hint="name it with --model") from error
        return self._model

    async def warm_up(self, items: Sequence[WorkItem]) -> None:
        """Send ``items`` one after another.

        Raises:
            EngineError: One failed: the run would measure failures.
        """
        for item in items:
            record = await self.send(item, time.perf_counter())
            if record.error is not None:
                raise EngineError(f"the first request failed: {record.error}", hint="see the server's log")

    async def run(
        self, items: Sequence[WorkItem], done: Callable[[RequestRecord], None]
    ) -> tuple[list[RequestRecord], float]:
        """Send each item at its time; the records in order of ``items``, and the seconds until the last answer.

        Args:
            done: Called with every record as it is complete.
        """
        await self.model()
        most = self._options.max_concurrency
        gate = nullcontext() if most is None else asyncio.Semaphore(most)

        async def one(item: WorkItem) -> RequestRecord:
            async with gate:
                record = await self.send(item, start)
            done(record)
            return record

        start = time.perf_counter()
        tasks = []
        async with asyncio.TaskGroup() as group:
            for item in items:
                if (wait := start + item.arrival - time.perf_counter()) > 0:
                    await asyncio.sleep(wait)
                tasks.append(group.create_task(one(item)))
        return [task.result() for task in tasks], time.perf_counter() - start

    async def send(self, item: WorkItem, start: float) -> RequestRecord:
        """One request, timed; failures are noted in the record, not raised."""
        record = RequestRecord(input_len=len(item.prompt))
        body = self._body(item, await self.model())
        began = time.perf_counter()
        record.sent = began - start
        try:
            async with self._http.stream("POST", self._url + self._route, content=body) as response:
                if response.status_code != 200:
                    record.error = self._refusal(response.status_code, await response.aread())
                else:
                    await self._read(response.aiter_bytes(), record, began)
        except (httpx.HTTPError, httpx.StreamError) as error:
            record.error = f"{type(error).__name__}: {error}".removesuffix(": ")
        except msgspec.DecodeError as error:
            record.error = f"the server sent what is no completion: {error}"
        return record

    def _body(self, item: WorkItem, model: str) -> bytes:
        body: dict[str, object] = {
            "model": model,
            "temperature": self._options.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._options.backend == "openai-chat":
            body["messages"] = [{"role": "user", "content": words(item.prompt)}]
            body["max_completion_tokens"] = item.output_len
        else:
            body["prompt"], body["max_tokens"] = item.prompt, item.output_len
        if self._options.ignore_eos:
            body["ignore_eos"] = True
        return msgspec.json.encode(body)

    async def _read(self, pieces: AsyncIterator[bytes], record: RequestRecord, began: float) -> None:
        """Fill ``record`` from an event stream."""
        usage: Usage | None = None
        ended = False
        async for at, data in _events(pieces):
            if ended := data == b"[DONE]":
                continue
            chunk = self._decoder.decode(data)
            if chunk.error is not None:
                record.error = f"in mid-stream: {chunk.error_text}"
                return
            usage = chunk.usage or usage
            if chunk.choices and not all(choice.opens for choice in chunk.choices):
                _note_token(record, at - began)
        if not ended:
            record.error = "the stream ended without [DONE]"
        elif not record.e2el:
            record.error = "the server sent no token"
        elif usage is None:
            record.output_len, record.counted = len(record.itls) + 1, False
        else:
            record.input_len, record.output_len = usage.prompt_tokens, usage.completion_tokens

    def _refusal(self, status: int, body: bytes) -> str:
        try:
            message = self._decoder.decode(body).error_text
        except msgspec.DecodeError:
            message = body[:200].decode(errors="replace").strip()
        return f"HTTP {status}: {message}".removesuffix(": ")


def _check_url(url: str) -> None:
    hint = "give it as http://HOST:PORT"
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"{url} is no URL: {error}", hint=hint) from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError(f"{url} is no URL of a server", hint=hint)


def _note_token(record: RequestRecord, now: float) -> None:
    if record.e2el:
        record.itls.append(now - record.e2el)
    else:
        record.ttft = now
    record.e2el = now


async def _events(pieces: AsyncIterator[bytes]) -> AsyncIterator[tuple[float, bytes]]:
    """The data of each server-sent event, with the time at which its last byte was there."""
    rest = b""
    async for piece in pieces:
        now = time.perf_counter()
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield now, line[5:].strip()
