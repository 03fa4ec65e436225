"""The lines of a batch, in and out, as OpenAI's Batch API writes them."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from twostroke.batch.expected import URLS
from twostroke.core.errors import ConfigError

FIELDS = ("custom_id", "method", "url", "body")
ID_PREFIX = "batch_req_"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class GoodLine(NamedTuple):
    """A line that can be sent.

    Attributes:
        number: The line's number, from 1.
        id: A digest of url and body, equal for equal requests: a later run recognizes by it which
            requests are answered.
        body: JSON as it was written.
    """

    number: int
    custom_id: str
    id: str
    url: str
    body: bytes


class BadLine(NamedTuple):
    """A line that cannot be sent, and why; ``custom_id`` is there if it could be read."""

    number: int
    custom_id: str | None
    id: str
    message: str


Line = GoodLine | BadLine
# What distinguishes a line: its custom_id, or its number if it has none.
Key = str | int


class BatchError(msgspec.Struct):
    """Why there is no response, or none that is JSON."""

    code: str
    message: str
    line: int


class BatchResponse(msgspec.Struct):
    """The server's response, also an error; ``body`` is JSON."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class BatchOutput(msgspec.Struct):
    """One line of output."""

    id: str
    custom_id: str | None
    response: BatchResponse | None
    error: BatchError | None

    @property
    def key(self) -> Key:
        """The key of the line that this answers.

        Raises:
            ValueError: It has neither a custom_id nor a line.
        """
        if self.custom_id is not None:
            return self.custom_id
        if self.error is None:
            raise ValueError("neither custom_id nor line")
        return self.error.line

    @property
    def succeeded(self) -> bool:
        return (
            self.error is None
            and self.response is not None
            and 200 <= self.response.status_code < 300
        )


def key_of(line: Line) -> Key:
    return line.number if line.custom_id is None else line.custom_id


def read_lines(path: Path) -> Iterator[Line]:
    """The lines of a file in order; blank ones are skipped but counted.

    Raises:
        ConfigError: The file cannot be read.
    """
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                if text := raw.removeprefix(BYTE_ORDER_MARK if number == 1 else b"").strip():
                    yield parse_line(text, number)
    except OSError as error:
        hint = "give a file with one JSON object per line, as OpenAI's Batch API takes it"
        raise ConfigError(f"cannot read {path}: {error.strerror or error}", hint=hint) from error


def parse_line(raw: bytes, number: int) -> Line:
    """Parse one line; what is in the body, the server checks."""
    line_id = ID_PREFIX + blake2b(raw, digest_size=16).hexdigest()
    try:
        fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        values: dict[str, Any] = {
            name: msgspec.json.decode(value) for name, value in fields.items()
        }
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return BadLine(number, None, line_id, f"line {number} is no JSON object: {error}")
    custom_id = values.get("custom_id")
    custom_id = custom_id if isinstance(custom_id, str) and custom_id else None
    if (message := _find_error(values)) is not None:
        return BadLine(number, custom_id, line_id, f"line {number}: {message}")
    assert custom_id is not None
    url, body = values["url"], values["body"]
    canonical = msgspec.json.encode([url, body], order="sorted")
    request_id = ID_PREFIX + blake2b(canonical, digest_size=16).hexdigest()
    return GoodLine(number, custom_id, request_id, url, bytes(fields["body"]))


def _find_error(values: dict[str, Any]) -> str | None:
    """What is wrong with a line's fields, or ``None``."""
    for name in FIELDS:
        if name not in values:
            return f"{name} is missing"
    if unknown := [name for name in values if name not in FIELDS]:
        return f"unknown field {unknown[0]!r}"
    if not isinstance(values["custom_id"], str) or not values["custom_id"]:
        return "custom_id must be a string that is not empty"
    if values["method"] != "POST":
        return f"method must be POST, got {values['method']!r}"
    if not isinstance(values["url"], str) or values["url"] not in URLS:
        return f"url must be one of {', '.join(URLS)}, got {values['url']!r}"
    if not isinstance(values["body"], dict):
        return "body must be an object"
    if values["body"].get("stream"):
        return "body.stream must be left out: a batch has no streams"
    if values["body"].get("background"):
        return "body.background must be left out: a batch waits for answers"
    return None


def index_lines(path: Path) -> dict[Key, str]:
    """Every line's key and id, in order.

    Raises:
        ConfigError: Two lines have the same custom_id, or there are none.
    """
    ids: dict[Key, str] = {}
    numbers: dict[Key, int] = {}
    for line in read_lines(path):
        key = key_of(line)
        if key in ids:
            both = f"lines {numbers[key]} and {line.number}"
            message = f"{path}: {both} have the same custom_id, {key!r}"
            raise ConfigError(message, hint="give every line a custom_id of its own")
        ids[key], numbers[key] = line.id, line.number
    if not ids:
        hint = "write one JSON object per line, with custom_id, method, url and body"
        raise ConfigError(f"{path} holds no requests", hint=hint)
    return ids
