"""Sends the lines of a batch, so many at a time, to a server or to one in this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
import msgspec

from twostroke.batch.lines import BadLine, BatchError, BatchOutput, BatchResponse, Call, Line
from twostroke.batch.results import ResultsFile
from twostroke.core.errors import ConfigError, EngineError

# An answer may take any time; a connection may not.
CONNECT_SECONDS = 10
# A server that is busy, or behind a proxy that cannot reach it: the same request may be answered
# later.
BUSY = frozenset({429, 502, 503, 504})
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0
# A pause that the server names is kept once, however long; if it does not help, half of it more is.
ASKED_PATIENCE = 1.5


@dataclass(slots=True)
class Totals:
    """What a run did; tokens are those of its answers."""

    succeeded: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class BatchRunner:
    """One run.

    Args:
        http: Knows where the server is.
        patience: Seconds that a request is tried again while the server is busy or away and answers
            no other either. A longer pause that the server asks for is kept.
        done: Called when a line's answer has been written.
    """

    def __init__(
        self,
        http: httpx.AsyncClient,
        results: ResultsFile,
        *,
        patience: float,
        done: Callable[[], object],
    ) -> None:
        self._http = http
        self._results = results
        self._patience = patience
        self._done = done
        self._last_answer = time.monotonic()
        self.totals = Totals()

    async def run(self, lines: Iterable[Line], max_concurrency: int) -> None:
        """Answer each line; one that fails is noted in the output and ends nothing.

        Raises:
            TwostrokeError: The server stays away or refuses us, or the output cannot be written.
                What is not in the output then is left to a later run.
        """
        left = iter(lines)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(max_concurrency):
                    group.create_task(self._work(left))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _work(self, left: Iterator[Line]) -> None:
        for line in left:
            output = await self._answer(line)
            self._results.append(output)
            if output.succeeded:
                self.totals.succeeded += 1
            else:
                self.totals.failed += 1
            self._done()

    async def _answer(self, line: Line) -> BatchOutput:
        if isinstance(line, BadLine):
            return BatchOutput(
                line.id, line.custom_id, None, BatchError("invalid_line", line.message, line.number)
            )
        began, wait = time.monotonic(), FIRST_WAIT
        while True:
            try:
                response = await self._http.post(
                    line.url, content=line.body, headers={"content-type": "application/json"}
                )
            except httpx.TransportError as error:
                reason, asked = f"cannot be reached: {str(error) or type(error).__name__}", None
            else:
                if response.status_code in (401, 403):
                    hint = (
                        "the key comes from OPENAI_API_KEY; the same command goes on where this run"
                        " ended"
                    )
                    raise ConfigError(
                        f"the server refuses the key: {message_in(response.content)}", hint=hint
                    )
                if response.status_code not in BUSY:
                    self._last_answer = time.monotonic()
                    return self._output(line, response)
                reason = f"answers {response.status_code}: {message_in(response.content)}"
                asked = seconds_asked(response.headers.get("retry-after", ""))
            pause = min(wait, LONGEST_WAIT) if asked is None else asked
            patience = max(self._patience, ASKED_PATIENCE * (asked or 0)) if self._patience else 0
            if time.monotonic() + pause > max(began, self._last_answer) + patience:
                hint = "once it is well, the same command goes on where this run ended"
                raise EngineError(f"the server {reason}", hint=hint)
            await asyncio.sleep(pause)
            wait *= 2

    def _output(self, line: Call, response: httpx.Response) -> BatchOutput:
        request_id = response.headers.get("x-request-id", "")
        try:
            body: Any = msgspec.json.decode(response.content)
        except (msgspec.DecodeError, UnicodeDecodeError):
            error = BatchError(
                "invalid_response", f"no JSON: {message_in(response.content)}", line.number
            )
            answer = BatchResponse(response.status_code, request_id, msgspec.Raw(b"null"))
            return BatchOutput(line.id, line.custom_id, answer, error)
        self._count(body)
        # As it came, unless it would break the line.
        raw = response.content if b"\n" not in response.content else msgspec.json.encode(body)
        answer = BatchResponse(response.status_code, request_id, msgspec.Raw(raw))
        return BatchOutput(line.id, line.custom_id, answer, None)

    def _count(self, body: Any) -> None:
        usage = body.get("usage") if isinstance(body, dict) else None
        if isinstance(usage, dict):
            for name in ("prompt_tokens", "completion_tokens"):
                if isinstance(count := usage.get(name), int):
                    setattr(self.totals, name, getattr(self.totals, name) + count)


def seconds_asked(header: str) -> float | None:
    """What Retry-After says, in seconds from now; ``None`` if it cannot be understood."""
    if header.isdigit():
        return float(header)
    try:
        due = parsedate_to_datetime(header)
    except ValueError:
        return None
    due = due if due.tzinfo else due.replace(tzinfo=UTC)
    return max(0.0, (due - datetime.now(UTC)).total_seconds())


def remote_client(url: str, key: str | None) -> httpx.AsyncClient:
    """For a server at ``url``, with or without ``/v1``.

    Raises:
        ConfigError: That is no URL.
    """
    base = url.rstrip("/").removesuffix("/v1")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    try:
        parsed = httpx.URL(base)
    except httpx.InvalidURL as error:
        raise ConfigError(
            f"{url} is no URL: {error}", hint="give it as http://HOST:PORT"
        ) from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError(f"{url} is no URL of a server", hint="give it as http://HOST:PORT")
    timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
    return httpx.AsyncClient(base_url=base, headers=headers, timeout=timeout, limits=limits)


async def check_server(http: httpx.AsyncClient) -> None:
    """See that a server answers, whatever its answer.

    Raises:
        ConfigError: None does.
    """
    try:
        await http.get("/v1/models")
    except httpx.TransportError as error:
        reason = str(error) or type(error).__name__
        hint = "is a server running there? `twostroke serve` starts one"
        raise ConfigError(f"cannot reach {http.base_url}: {reason}", hint=hint) from error


def message_in(body: bytes) -> str:
    """What an error's body says."""
    try:
        return str(msgspec.json.decode(body)["error"]["message"])
    except (msgspec.DecodeError, UnicodeDecodeError, LookupError, TypeError):
        return body[:200].decode(errors="replace").strip() or "nothing"
