"""From the body of a batch of messages to a stored file of lines, as all batches read them."""

from __future__ import annotations

import asyncio
import re
import time
from typing import NamedTuple

import msgspec
from fastapi import Request
from starlette.requests import ClientDisconnect

from twostroke.batch.lines import BadLine, parse_line
from twostroke.core.errors import InvalidRequestError
from twostroke.server.anthropic_shape import MESSAGES_PATH
from twostroke.server.batches.message_objects import HIDDEN
from twostroke.server.batches.record import KEPT
from twostroke.server.batches.request_array import REQUESTS, RequestArray
from twostroke.server.batches.run import Workplace
from twostroke.server.batches.stored_lines import MAX_LINES, UNANSWERED_BYTES, digest_of
from twostroke.server.files.store import FileWriter
from twostroke.server.http.errors import UNREADABLE

_CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class UploadedRequests(NamedTuple):
    """A stored file of requests.

    Attributes:
        unanswered_bytes: What has to be written if none is answered.
        ignored: Fields of the body that were ignored.
    """

    file_id: str
    total: int
    unanswered_bytes: int
    ignored: list[str]


class _Item(msgspec.Struct, forbid_unknown_fields=True):
    custom_id: str
    params: msgspec.Raw


_ITEMS = msgspec.json.Decoder(_Item)  # made once: uploads are read on several threads


class _Line(msgspec.Struct):
    custom_id: str
    body: msgspec.Raw
    method: str = "POST"
    url: str = MESSAGES_PATH


class RequestLines:
    """Turns the requests of one body into lines.

    Args:
        max_bytes: Limit of one request.
    """

    def __init__(self, max_bytes: int) -> None:
        self._array = RequestArray(max_bytes, MAX_LINES)
        self._names: set[bytes] = set()  # digests of them
        self.unanswered_bytes = 0

    @property
    def total(self) -> int:
        return self._array.num_requests

    def feed(self, piece: bytes) -> tuple[bytes, float]:
        """The lines of the requests that end in a piece, and the seconds that it took.

        Raises:
            InvalidRequestError: A request is malformed; it is named.
        """
        began = time.thread_time()
        lines = [self._line(raw) for raw in self._array.feed(piece)]
        return b"".join(lines), time.thread_time() - began

    def end(self) -> list[str]:
        """The fields of the body beside its requests.

        Raises:
            InvalidRequestError: It is not what it should be.
        """
        try:
            fields = self._array.end()
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError(UNREADABLE) from error
        return [name for name, value in fields.items() if value is not None]

    def _line(self, raw: bytes) -> bytes:
        place = f"{REQUESTS}[{self.total - 1}]"
        try:
            item = _ITEMS.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequestError(f"{place}: {error}", param=place) from error
        name = item.custom_id
        if not _CUSTOM_ID.fullmatch(name):
            raise InvalidRequestError(
                f"{place}.custom_id must be up to 64 letters, digits, - and _, got {name[:80]!a}",
                param=f"{place}.custom_id",
            )
        if (digest := digest_of(name)) in self._names:
            raise InvalidRequestError(
                f"{place}.custom_id is that of another request: {name}",
                param=f"{place}.custom_id",
                hint="give every request a custom_id of its own",
            )
        self._names.add(digest)
        self.unanswered_bytes += len(name) + 2 + UNANSWERED_BYTES
        # In JSON these are white space: in texts they are escaped.
        params = bytes(item.params).replace(b"\n", b" ").replace(b"\r", b" ")
        line = msgspec.json.encode(_Line(name, msgspec.Raw(params)))
        if isinstance(parsed := parse_line(line, self.total), BadLine):
            message = parsed.message.partition(": ")[2].replace("body", f"{place}.params", 1)
            raise InvalidRequestError(message, param=f"{place}.params")
        return line + b"\n"


async def store_requests(work: Workplace, request: Request, tenant: str) -> UploadedRequests:
    """Store the requests of a body, never held whole.

    Raises:
        InvalidRequestError: The body, or one of its requests, is malformed.
        FilesFullError: There is no room for them.
    """
    lines = RequestLines(work.max_body)
    writer = await FileWriter.begin(work.store, tenant)
    try:
        async for piece in request.stream():
            async with work.checking:
                text, seconds = await asyncio.to_thread(lines.feed, piece)
            await writer.write(text)
            await asyncio.sleep(seconds)  # a flood leaves half of the interpreter to the model
        ignored = lines.end()
        file = await writer.end("", HIDDEN, int(work.store.clock()) + KEPT)
    except BaseException as error:
        await writer.discard()
        if isinstance(error, ClientDisconnect):
            raise InvalidRequestError("the client left before the end of the batch") from error
        raise
    return UploadedRequests(file.id, lines.total, lines.unanswered_bytes, ignored)
