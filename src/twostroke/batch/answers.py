"""What comes back from a server: read within bounds, and judged before it counts as an answer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import httpx
import msgspec

from twostroke.batch.expected import what_is_missing
from twostroke.batch.lines import BatchError, BatchOutput, BatchResponse, GoodLine

# The longest answers have two million log-probabilities (the server's bound for one call).
MAX_ANSWER_BYTES = 256 * 2**20
MAX_BYTES_UNDER_WAY = 2**30
MAX_DEPTH = 100  # lists and objects within each other
MAX_REQUEST_ID = 200  # characters
MAX_COUNT = 2**53  # tokens of one answer that are believed
# The server is gone, or cannot be told from one that is: a connection was never made.
AWAY = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)


class Answer(NamedTuple):
    """A whole response."""

    status: int
    headers: httpx.Headers
    body: bytes

    @property
    def request_id(self) -> str:
        return str(self.headers.get("x-request-id", ""))[:MAX_REQUEST_ID]


class BrokenAnswerError(Exception):
    """The connection was made, but no whole response came over it; another try may get one."""


class UnusableAnswerError(Exception):
    """A response that another try would not make better; ``code`` is that of the output line."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(slots=True)
class AnswerReader:
    """Reads the responses of one server, many at a time.

    Args:
        timeout: Seconds for one response, from connecting to its last byte; ``None`` for any.
    """

    http: httpx.AsyncClient
    timeout: float | None = None
    _bytes_under_way: int = field(default=0, init=False)

    async def post(self, url: str, body: bytes) -> Answer:
        """Send a body of JSON and read the response.

        Raises:
            httpx.TransportError: One of ``AWAY``.
            BrokenAnswerError: The response is no HTTP, or ends before it is complete.
            UnusableAnswerError: It takes too long, is too large, or compressed.
        """
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        try:
            async with (
                asyncio.timeout(self.timeout),
                self.http.stream("POST", url, content=body, headers=headers) as response,
            ):
                return Answer(response.status_code, response.headers, await self._read(response))
        except AWAY:
            raise
        except httpx.RequestError as error:
            raise BrokenAnswerError(str(error) or type(error).__name__) from error
        except TimeoutError as error:
            message = f"no whole answer within {self.timeout:g} s"
            raise UnusableAnswerError("timeout", message) from error

    async def _read(self, response: httpx.Response) -> bytes:
        # A few bytes of it could become any number.
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise UnusableAnswerError(
                "invalid_response", "the answer is compressed, which was not asked for"
            )
        pieces: list[bytes] = []
        size = 0
        try:
            async for piece in response.aiter_bytes():
                size += len(piece)
                self._bytes_under_way += len(piece)
                if size > MAX_ANSWER_BYTES or self._bytes_under_way > MAX_BYTES_UNDER_WAY:
                    raise UnusableAnswerError(
                        "answer_too_large", f"the answer does not end within {size} bytes"
                    )
                pieces.append(piece)
        finally:
            self._bytes_under_way -= size
        return b"".join(pieces)


def output_line(line: GoodLine, answer: Answer) -> tuple[BatchOutput, Any]:
    """The output line of a response, and the response's JSON (``None`` if it is not JSON)."""
    try:
        body: Any = msgspec.json.decode(answer.body)
        fault = "nested too deeply" if _is_deep(answer.body, body) else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        body, fault = None, "no JSON"
    if fault is not None:
        error = BatchError("invalid_response", f"{fault}: {message_in(answer.body)}", line.number)
        response = BatchResponse(answer.status, answer.request_id, msgspec.Raw(b"null"))
        return BatchOutput(line.id, line.custom_id, response, error), None
    # Its bytes stay as they are, unless a newline would break the line.
    one_line = b"\n" not in answer.body and b"\r" not in answer.body
    raw = answer.body if one_line else msgspec.json.encode(body)
    response = BatchResponse(answer.status, answer.request_id, msgspec.Raw(raw))
    missing = what_is_missing(line.url, line.body, body) if 200 <= answer.status < 300 else None
    error_or_none = missing and BatchError("invalid_response", missing, line.number)
    return BatchOutput(line.id, line.custom_id, response, error_or_none or None), body


def failed_output(line: GoodLine, code: str, message: str) -> BatchOutput:
    """The output line of a request without a usable response."""
    return BatchOutput(line.id, line.custom_id, None, BatchError(code, message, line.number))


def count_in(body: Any, *names: str) -> int:
    """Numbers of tokens in an answer's usage, added up; 0 where none is there that can be one."""
    usage = body.get("usage") if isinstance(body, dict) else None
    counts = [usage.get(name) for name in names] if isinstance(usage, dict) else []
    return sum(count for count in counts if type(count) is int and 0 <= count <= MAX_COUNT)


def message_in(body: bytes) -> str:
    """The message in the body of an error, or the beginning of the body."""
    try:
        return str(msgspec.json.decode(body)["error"]["message"])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError):
        return body[:200].decode(errors="replace").strip() or "nothing"


def _is_deep(raw: bytes, body: Any) -> bool:
    """Whether it is nested beyond ``MAX_DEPTH``: a later run could not read the output again."""
    if raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH:
        return False
    level = [body]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner += value.values()
            elif isinstance(value, list):
                inner += value
        level = inner
        if not level:
            return False
    return True
