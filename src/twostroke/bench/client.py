"""Sends a workload to a server as streams, and notes when what came back."""

from __future__ import annotations

import asyncio
import json
import os
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext

import httpx
import msgspec

from twostroke.bench.answer import EventReader, refusal
from twostroke.bench.metrics import RequestRecord
from twostroke.bench.options import ServeBenchOptions
from twostroke.bench.server_verdict import TargetCounts, read_targets
from twostroke.bench.transport import arrivals, open_transport
from twostroke.bench.workload import WorkItem, words
from twostroke.core.errors import ConfigError, EngineError

CONNECT_SECONDS = 60.0
# Of an answer that is read whole, and of a model's name.
MAX_BODY, MAX_NAME = 2**20, 1000


class Bench:
    """A run against one server. Use as an async context manager.

    Args:
        transport: Stands in for the network in tests.

    Raises:
        ConfigError: The URL is malformed.
    """

    def __init__(
        self, options: ServeBenchOptions, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._options = options
        self._base = options.base_url.rstrip("/").removesuffix("/v1") + "/v1"
        self._headers = httpx.Headers(_headers(_checked_url(self._base)))
        route = "/chat/completions" if options.backend == "openai-chat" else "/completions"
        self._url = httpx.URL(self._base + route)
        self._model = options.model
        # Not through httpx's client: its 0.3 ms for a request are 5 us for each of 64 tokens.
        self._transport = transport or open_transport(CONNECT_SECONDS)

    async def __aenter__(self) -> Bench:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._transport.aclose()

    async def model(self) -> str:
        """The model's name: as given, else the first that the server lists.

        Raises:
            ConfigError: The server cannot be reached, or lists none.
        """
        if self._model is None:
            try:
                async with (
                    asyncio.timeout(CONNECT_SECONDS),
                    self._stream("GET", httpx.URL(f"{self._base}/models")) as response,
                ):
                    body = await _read_some(response)
                if response.status_code != 200:
                    hint = (
                        "the key comes from OPENAI_API_KEY; a server without this route needs"
                        " --model"
                    )
                    raise ConfigError(
                        f"{self._base}/models: {refusal(response.status_code, body)}", hint=hint
                    )
                self._model = _first_model(body)
            except (httpx.HTTPError, TimeoutError) as error:
                reason = str(error).partition("\n")[0] or type(error).__name__
                hint = (
                    "is a server running there? `twostroke serve` starts one; --base-url says where"
                )
                raise ConfigError(f"cannot reach {self._base}: {reason}", hint=hint) from error
            except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
                raise ConfigError(
                    f"{self._base}/models lists no model", hint="name it with --model"
                ) from error
        return self._model

    async def targets(self) -> dict[str, TargetCounts]:
        """What the server's targets have counted so far; nothing if it has none."""
        try:
            async with (
                asyncio.timeout(CONNECT_SECONDS),
                self._stream("GET", httpx.URL(f"{self._base}/targets")) as response,
            ):
                body = await _read_some(response)
                return read_targets(body) if response.status_code == 200 else {}
        except (httpx.HTTPError, TimeoutError):
            return {}

    async def warm_up(self, items: Sequence[WorkItem]) -> None:
        """Send ``items`` one after another.

        Raises:
            EngineError: One failed: the run would measure failures.
        """
        for item in items:
            record = await self.send(item, time.perf_counter())
            if record.error is not None:
                raise EngineError(
                    f"the first request failed: {record.error}", hint="see the server's log"
                )

    async def run(
        self, items: Sequence[WorkItem], done: Callable[[RequestRecord], None]
    ) -> tuple[list[RequestRecord], float]:
        """Send each item at its time.

        Returns the records in order of ``items``, and the seconds until the last answer.

        Args:
            done: Called with every record as it is complete.
        """
        await self.model()
        max_concurrency = self._options.max_concurrency
        gate = nullcontext() if max_concurrency is None else asyncio.Semaphore(max_concurrency)

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
        patience, clock = self._options.stall_timeout, asyncio.get_running_loop().time
        reader = EventReader(record, began, item.output_len)
        try:
            async with asyncio.timeout(patience) as deadline:
                async with self._stream("POST", self._url, body) as response:
                    if response.status_code != 200:
                        record.error = refusal(response.status_code, await _read_some(response))
                        return record
                    num_tokens = 0
                    async for some in arrivals(response):
                        if not reader.feed(some):
                            break
                        if reader.num_tokens > num_tokens:  # other bytes are no progress
                            num_tokens = reader.num_tokens
                            deadline.reschedule(clock() + patience)
                    reader.end()
        except TimeoutError:
            record.error = f"no token for {patience:g} s (--stall-timeout)"
        except (httpx.HTTPError, httpx.StreamError) as error:
            record.error = f"{type(error).__name__}: {error}".removesuffix(": ")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            record.error = f"the server sent what is no completion: {error}"
        return record

    @asynccontextmanager
    async def _stream(
        self, method: str, url: httpx.URL, body: bytes = b""
    ) -> AsyncIterator[httpx.Response]:
        request = httpx.Request(method, url, headers=self._headers, content=body)
        response = await self._transport.handle_async_request(request)
        try:
            yield response
        finally:
            await response.aclose()

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


async def _read_some(response: httpx.Response) -> bytes:
    """A body, or the beginning of one that is too long for an error or a list of models."""
    body = bytearray()
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) > MAX_BODY:
            break
    return bytes(body)


def _first_model(body: bytes) -> str:
    """Raises ValueError, LookupError, TypeError or RecursionError where no model is listed."""
    name = json.loads(body)["data"][0]["id"]
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= MAX_NAME:
        raise ValueError("no name of a model")
    return name


def _checked_url(text: str) -> httpx.URL:
    hint = "give it as http://HOST:PORT"
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, UnicodeError) as error:
        raise ConfigError(f"{text} is no URL: {error}", hint=hint) from error
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError(f"{text} is no URL of a server", hint=hint)
    return url


def _headers(url: httpx.URL) -> dict[str, str]:
    # Compressed streams would be timed by the compressor's buffer.
    headers = {"accept": "*/*", "accept-encoding": "identity", "user-agent": "twostroke-bench"}
    headers["content-type"] = "application/json"
    if url.userinfo:
        pair = f"{url.username}:{url.password}".encode()
        headers["authorization"] = f"Basic {b64encode(pair).decode()}"
    elif key := os.environ.get("OPENAI_API_KEY"):
        headers["authorization"] = f"Bearer {key}"
    return headers
