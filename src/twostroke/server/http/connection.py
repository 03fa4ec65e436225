"""uvicorn's HTTP connection, with bounds on heads, half-sent requests and stalled readers.

uvicorn bounds none of these with httptools, and all of them come before any key is looked at. Nor
does it get at the body of a request that offers to go on in another protocol, as Java's HttpClient
does with every first one.
"""

from __future__ import annotations

import asyncio
import weakref
from http import HTTPStatus
from typing import Any, cast

import httptools
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from twostroke.core.errors import TwostrokeError
from twostroke.server.http.errors import (
    HeadTooLargeError,
    MalformedRequestError,
    RequestTimeoutError,
    error_response,
)
from twostroke.server.http.request_id import request_id
from twostroke.server.http.sse import WRITE_CHUNK, WriteChunk

MAX_HEAD_BYTES = 64 * 2**10  # what uvicorn allows with h11
READ_SECONDS = 60.0  # for a whole head, and for each piece of a body
WRITE_SECONDS = 60.0  # in which a client must take something of what waits for it


class BoundedProtocol(HttpToolsProtocol):
    """One connection, with bounds.

    A head (or a trailer) above ``MAX_HEAD_BYTES`` gets a 431, an unfinished request a 408. A client
    that stops reading is cut off, which ends its generation.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._bytes_without_body = 0
        self._refused = False
        self._in_message = self._in_body = False
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None

    # ---- reading ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_data()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._bytes_without_body += len(data)
        self._unset_keepalive_if_required()
        self._parse(data)
        if self._bytes_without_body > MAX_HEAD_BYTES:
            self._refuse_head()
        if not self._in_message:
            self._reading = _cancel(self._reading)
        elif self._in_body or self._reading is None:
            self._await_data()

    def _parse(self, data: bytes) -> None:
        """As ``HttpToolsProtocol.data_received`` does, but it ignores upgrades (RFC 9110, 7.8).

        At an upgrade httptools takes the body for the other protocol and calls the message
        complete. So its callbacks do nothing then, and the request is read once more by a parser
        that sees no upgrade.
        """
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.send_400_response("")
        except httptools.HttpParserUpgrade as stopped:
            if self.parser.get_method() == b"CONNECT":  # no offer that could be ignored
                self.send_400_response("")
                return
            (end_of_head,) = stopped.args
            head = self._head_without_upgrade()
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
            self._parse(head + data[end_of_head:])

    def _head_without_upgrade(self) -> bytes:
        parser = self.parser
        lines = [
            b"%s %s HTTP/%s" % (parser.get_method(), self.url, parser.get_http_version().encode())
        ]
        for name, value in self.headers:
            if name == b"connection":
                kept = [token for token in value.split(b",") if token.strip().lower() != b"upgrade"]
                lines += [b"connection: " + b",".join(kept)] if kept else []
            elif name != b"upgrade":
                lines.append(name + b": " + value)
        return b"\r\n".join([*lines, b"", b""])

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_message, self._in_body = True, False

    def on_headers_complete(self) -> None:
        # A head that came whole in one piece is counted here.
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > MAX_HEAD_BYTES:
            self._refuse_head()
        if self._refused or self.parser.should_upgrade():
            return
        self._bytes_without_body, self._in_body = 0, True
        super().on_headers_complete()
        cast(Scope, self.scope).setdefault("extensions", {})[WRITE_CHUNK] = chunk_writer(self.cycle)

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            self._bytes_without_body = 0
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._refused and not self.parser.should_upgrade():
            self._bytes_without_body = 0
            self._in_message = self._in_body = False
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(MalformedRequestError("the request is not valid HTTP"))

    def _await_data(self) -> None:
        _cancel(self._reading)
        self._reading = self.loop.call_later(READ_SECONDS, self._no_data)

    def _no_data(self) -> None:
        if self.flow.read_paused:  # by this server: the client cannot send
            self._await_data()
        else:
            self._refuse(
                RequestTimeoutError(f"the request was not complete within {READ_SECONDS:g} s")
            )

    def _refuse_head(self) -> None:
        self._refuse(
            HeadTooLargeError(f"the request's line and headers exceed {MAX_HEAD_BYTES} bytes")
        )

    def _refuse(self, error: TwostrokeError) -> None:
        """Answer without the application, unless it has begun to, and close."""
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        # With requests in the pipeline an answer is under way: this would become a part of it.
        waits = self._in_body and not self.cycle.response_started and not self.pipeline
        if self.cycle is None or self.cycle.response_complete or waits:
            response = error_response(error)
            # Where the application has the request already, the id is the one that it knows.
            response.headers["x-request-id"] = request_id(
                cast(Scope, self.scope) if self._in_message else {}
            )
            status = HTTPStatus(response.status_code)
            lines = [f"HTTP/1.1 {status.value} {status.phrase}".encode(), b"connection: close"]
            lines += [name + b": " + value for name, value in response.raw_headers]
            self.transport.write(b"\r\n".join([*lines, b"", bytes(response.body)]))
        self.transport.close()

    # ---- writing ---------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._writing = _cancel(self._writing)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._reading = _cancel(self._reading)
        self._writing = _cancel(self._writing)

    def _await_reader(self) -> None:
        _cancel(self._writing)
        self._writing = self.loop.call_later(WRITE_SECONDS, self._check_reader, self._unsent())

    def _check_reader(self, unsent: int) -> None:
        if self._unsent() < unsent:
            self._await_reader()
        else:
            # Not closed: that would wait for the reader to take what is left.
            self.transport.abort()

    def _unsent(self) -> int:
        return self.transport.get_write_buffer_size()


def chunk_writer(cycle: RequestResponseCycle) -> WriteChunk:
    """What ``WRITE_CHUNK`` promises, for one request; the next on its connection has its own.

    Nothing is written while the transport is paused: a client that takes nothing is noticed as
    with ``send``.
    """
    # The cycle holds the scope, and that the writer: a strong reference would close a circle.
    cycle_ref = weakref.ref(cycle)

    def write(piece: bytes) -> bool:
        cycle = cycle_ref()
        if (
            cycle is None
            or not cycle.chunked_encoding  # or its head has not been sent
            or cycle.response_complete
            or cycle.disconnected
            or cycle.flow.write_paused
            or cycle.transport.is_closing()
            or cycle.scope["method"] == "HEAD"
        ):
            return False
        if piece:  # an empty chunk would be the end of the body
            cycle.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        return True

    return write


def _cancel(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """Cancel a timer; what to keep in its place."""
    if timer is not None:
        timer.cancel()
    return None
