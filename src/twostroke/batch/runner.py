"""Sends the lines of a batch, some at a time, to a server or to one in this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx

from twostroke.batch.answers import (
    Answer,
    AnswerReader,
    BrokenAnswerError,
    UnusableAnswerError,
    count_in,
    failed_output,
    message_in,
    output_line,
)
from twostroke.batch.lines import BadLine, BatchError, BatchOutput, GoodLine, Line
from twostroke.batch.results import ResultsFile
from twostroke.core.errors import ConfigError, EngineError

# Names in usage: of responses and messages the second ones. Messages count cached tokens apart.
PROMPT_COUNTS = ("prompt_tokens", "input_tokens", "cache_read_input_tokens")
ANSWER_COUNTS = ("completion_tokens", "output_tokens")
# An answer may take as long as the user allows, a connection only this long.
CONNECT_SECONDS = 10
# The server is busy (529 is how Anthropic's API says it), or a proxy cannot reach it: the same
# request may be answered later.
BUSY = frozenset({429, 502, 503, 504, 529})
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0
# A pause that the server asks for is kept once, however long, and then half of it more.
PATIENCE_PER_PAUSE = 1.5
LONGEST_PAUSE = 3600.0
# So often a line may get no whole answer from a server that answers otherwise.
MAX_BROKEN = 3
PROBE_SECONDS = 60
# Bytes from which on an answer is read on a thread: in a server others wait for the event loop.
LARGE_ANSWER = 2**17


@dataclass(slots=True)
class Totals:
    """Requests of a run, and the tokens of their answers."""

    succeeded: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class BatchRunner:
    """One run.

    Args:
        http: A client whose base URL is the server's.
        patience: See ``LineSender``.
        done: Called when a line's answer has been written.
        timeout: Seconds that one answer may take; by default any.
    """

    def __init__(
        self,
        http: httpx.AsyncClient,
        results: ResultsFile,
        *,
        patience: float,
        done: Callable[[], object],
        timeout: float | None = None,
    ) -> None:
        self._sender = LineSender(http, patience=patience, timeout=timeout)
        self._results = results
        self._done = done

    @property
    def totals(self) -> Totals:
        return self._sender.totals

    async def run(self, lines: Iterable[Line], max_concurrency: int) -> None:
        """Send each line and write its answer or failure to the output.

        Raises:
            TwostrokeError: The server stays away or refuses the key, or the output cannot be
                written. A later run sends what is not in the output.
        """
        remaining = iter(lines)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(max_concurrency):
                    group.create_task(self._work(remaining))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _work(self, remaining: Iterator[Line]) -> None:
        for line in remaining:
            self._results.append(await self._sender.answer(line))
            self._done()


class LineSender:
    """Sends lines to a server, each until it is answered.

    Args:
        http: A client whose base URL is the server's.
        patience: For how many seconds a line is sent again while the server is busy or away and
            answers no other. A longer pause that the server asks for is kept.
        timeout: Seconds that one answer may take; by default any.
        max_refusals: So often a line is sent again to a busy server that answers others; then the
            refusal is its answer. By default as often as patience lasts.
    """

    def __init__(
        self,
        http: httpx.AsyncClient,
        *,
        patience: float,
        timeout: float | None = None,
        max_refusals: int | None = None,
    ) -> None:
        self._reader = AnswerReader(http, timeout)
        self._patience = patience
        self._max_refusals = max_refusals
        self._last_answer = time.monotonic()
        self.totals = Totals()

    async def answer(self, line: Line) -> BatchOutput:
        """The output of a line.

        Raises:
            TwostrokeError: The server stays away or refuses the key.
        """
        output = await self._answer(line)
        if output.succeeded:
            self.totals.succeeded += 1
        else:
            self.totals.failed += 1
        return output

    async def _answer(self, line: Line) -> BatchOutput:
        if isinstance(line, BadLine):
            return BatchOutput(
                line.id, line.custom_id, None, BatchError("invalid_line", line.message, line.number)
            )
        start, wait, num_broken, num_refused = time.monotonic(), FIRST_WAIT, 0, 0
        while True:
            requested_pause = None
            try:
                answer = await self._reader.post(line.url, line.body)
            except UnusableAnswerError as error:
                return failed_output(line, error.code, error.message)
            except BrokenAnswerError as error:
                num_broken += 1
                if num_broken >= MAX_BROKEN and await self._is_there():
                    message = f"{num_broken} times no whole answer: {error}"
                    return failed_output(line, "broken_answer", message)
                reason = f"cannot be reached: {error}"
            except httpx.TransportError as error:
                reason = f"cannot be reached: {str(error) or type(error).__name__}"
            else:
                if answer.status in (401, 403):
                    raise _refused_key(answer)
                if answer.status not in BUSY:
                    self._last_answer = time.monotonic()
                    return await self._make_output(line, answer)
                num_refused += 1
                if num_refused == self._max_refusals and self._last_answer > start:
                    return await self._make_output(line, answer)
                reason = f"answers {answer.status}: {message_in(answer.body)}"
                requested_pause = parse_retry_after(answer.headers.get("retry-after", ""))
            await self._pause(reason, max(start, self._last_answer), wait, requested_pause)
            wait *= 2

    async def _pause(self, reason: str, since: float, wait: float, requested: float | None) -> None:
        """Wait before the next try; raise ``EngineError`` if that would be longer than patience."""
        pause = min(wait, LONGEST_WAIT) if requested is None else max(requested, FIRST_WAIT)
        patience = self._patience
        if patience and requested:
            patience = max(patience, PATIENCE_PER_PAUSE * requested)
        if pause > LONGEST_PAUSE or time.monotonic() + pause > since + patience:
            hint = "once it is well, the same command goes on where this run ended"
            raise EngineError(f"the server {reason}", hint=hint)
        await asyncio.sleep(pause)

    async def _is_there(self) -> bool:
        """Whether the server answers another request: then it is the line that it cannot answer."""
        try:
            return await probe(self._reader.http) not in BUSY
        except (httpx.RequestError, TimeoutError):
            return False

    async def _make_output(self, line: GoodLine, answer: Answer) -> BatchOutput:
        if len(answer.body) > LARGE_ANSWER:
            output, body = await asyncio.to_thread(output_line, line, answer)
        else:
            output, body = output_line(line, answer)
        self.totals.prompt_tokens += count_in(body, *PROMPT_COUNTS)
        self.totals.completion_tokens += count_in(body, *ANSWER_COUNTS)
        return output


def _refused_key(answer: Answer) -> ConfigError:
    return ConfigError(
        f"the server refuses the key: {message_in(answer.body)}",
        hint="the key comes from OPENAI_API_KEY; the same command goes on where this run ended",
    )


def parse_retry_after(header: str) -> float | None:
    """The seconds from now that a Retry-After header asks for; ``None`` if it is not readable."""
    if header.isascii() and header.isdigit():
        return float(header)
    try:
        date = parsedate_to_datetime(header)
    except (ValueError, OverflowError):
        return None
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(0.0, (date - datetime.now(UTC)).total_seconds())


def remote_client(url: str, key: str | None) -> httpx.AsyncClient:
    """Make a client for the server at ``url``, with or without ``/v1``.

    Raises:
        ConfigError: It is no URL of a server.
    """
    base = url.rstrip("/").removesuffix("/v1")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    # One request a connection: what a server sends beyond an answer cannot pass for the next one.
    headers["connection"] = "close"
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
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


async def probe(http: httpx.AsyncClient) -> int:
    """The status of a route that every server has; its body is not read.

    Raises:
        httpx.RequestError, TimeoutError: There is no answer.
    """
    async with asyncio.timeout(PROBE_SECONDS), http.stream("GET", "/v1/models") as response:
        return response.status_code


async def check_server(http: httpx.AsyncClient) -> None:
    """Check that the server answers, with any status.

    Raises:
        ConfigError: It does not.
    """
    try:
        await probe(http)
    except (httpx.RequestError, TimeoutError) as error:
        reason = str(error) or f"no answer within {PROBE_SECONDS} s"
        hint = "is a server running there? `twostroke serve` starts one"
        raise ConfigError(f"cannot reach {http.base_url}: {reason}", hint=hint) from error
