"""uvicorn's HTTP connection, with bounds on heads, and on clients that send or read slowly.

uvicorn bounds none of these with httptools, and all of them come before any key is looked at. Nor
does it get at the body of a request that offers to go on in another protocol, as Java's HttpClient
does with every first one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, cast

import httptools
from starlette.types import Scope
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from twostroke.core.errors import TwostrokeError
from twostroke.http.chunk_writer import WRITE_CHUNK, chunk_writer
from twostroke.http.client_pace import ClientPace
from twostroke.http.errors import (
    HeadTooLargeError,
    MalformedRequestError,
    Refuse,
    RequestTimeoutError,
)
from twostroke.http.lingering import (
    MAX_BODY_BYTES,
    MAX_OTHER_BYTES,
    DiscardPace,
    LingeringTransport,
)
from twostroke.http.request_id import request_id

MAX_HEAD_BYTES = 64 * 2**10  # what uvicorn allows with h11
# Requests that wait behind others of their connection; while more do, no more are read.
MAX_PIPELINED = 64
# Bytes that are parsed before it is asked whether more may wait: 200 requests, not 14,000 as in
# what one read brings.
PIECE_BYTES = 4096


class BoundedConfig(Config):
    """uvicorn's settings, how slow a client may be, and how one is told of a refusal.

    Attributes:
        refuse: Makes the answer for an error.
        client_timeout: Seconds for a head, for a body, and for taking what is ready.
        min_client_rate: Bytes per second: a client has one more second for each this many bytes.
    """

    def __init__(
        self,
        *args: Any,
        refuse: Refuse,
        client_timeout: float,
        min_client_rate: int,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.refuse = refuse
        self.client_timeout = client_timeout
        self.min_client_rate = min_client_rate
        self._discard_pace: DiscardPace | None = None

    def discard_pace(self, loop: asyncio.AbstractEventLoop) -> DiscardPace:
        """The one of the server that has these settings."""
        if self._discard_pace is None:
            self._discard_pace = DiscardPace(loop)
        return self._discard_pace


class BoundedProtocol(HttpToolsProtocol):
    """One connection, with bounds.

    A head (or a trailer) above ``MAX_HEAD_BYTES`` gets a 431, a request that comes too slowly a
    408. A client that reads too slowly is cut off, which ends its generation.

    Its ``config`` is a ``BoundedConfig``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config = cast(BoundedConfig, self.config)
        self._refusal = config.refuse
        self._client_timeout = config.client_timeout
        self._min_client_rate = config.min_client_rate
        self._unparsed = b""
        self._bytes_without_body = 0
        self._refused = False
        self._in_message = self._in_body = False
        self._num_received = self._num_unsent = 0
        self._sending = self._new_pace(self._take_num_received, self._refuse_slow)
        self._reading = self._new_pace(self._take_num_sent, self._cut_off)

    # ---- reading ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        pace = cast(BoundedConfig, self.config).discard_pace(self.loop)
        lingering = LingeringTransport(
            transport, self.loop, self._num_expected, self._give_up, pace
        )
        super().connection_made(lingering)
        self._lingering = lingering
        self.flow = WatchedFlow(lingering, self._may_resume, self._await_data, self._sending.rest)
        self._sending.run()

    def data_received(self, data: bytes) -> None:
        self._lingering.count(len(data))
        if self._lingering.lingers:
            return
        self._num_received += len(data)
        self._unparsed += data
        self._parse_unparsed()
        self._await_data()

    def _parse_unparsed(self) -> None:
        """Parse what has come, until too many requests wait; the rest stays for their answers."""
        data, start = self._unparsed, 0
        while start < len(data) and not self._refused and len(self.pipeline) <= MAX_PIPELINED:
            piece = data[start : start + PIECE_BYTES]
            start += len(piece)
            self._bytes_without_body += len(piece)
            self._parse(piece)
            if self._bytes_without_body > MAX_HEAD_BYTES:
                self._refuse_head()
        self._unparsed = b"" if self._refused else data[start:]

    def _parse(self, data: bytes) -> None:
        """Parse as ``HttpToolsProtocol.data_received`` does, but ignore upgrades (RFC 9110, 7.8).

        At an upgrade httptools takes the body for the other protocol and calls the message
        complete. So its callbacks do nothing then, and the request is read once more by a parser
        that sees no upgrade. One piece may hold thousands of such requests.
        """
        rest = memoryview(data)
        try:
            while (end_of_head := self._feed(rest)) is not None:
                if self.parser.get_method() == b"CONNECT":  # no offer that could be ignored
                    self.send_400_response("")
                    return
                head = self._head_without_upgrade()
                self.parser = httptools.HttpRequestParser(self)
                # As uvicorn has it.
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
                self._feed(head)
                rest = rest[end_of_head:]
        except httptools.HttpParserError:
            self.send_400_response("")

    def _feed(self, data: bytes | memoryview) -> int | None:
        """Where in ``data`` the head of an upgrade ends, at which the parser has stopped."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as stopped:
            (end_of_head,) = stopped.args
            return cast(int, end_of_head)
        return None

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
        self._unset_keepalive_if_required()  # not before: empty lines are no request
        self._in_message, self._in_body = True, False
        self._sending.restart()

    def on_headers_complete(self) -> None:
        # A head that came whole in one piece is counted here.
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > MAX_HEAD_BYTES:
            self._refuse_head()
        if self._refused or self.parser.should_upgrade():
            return
        self._bytes_without_body = 0
        super().on_headers_complete()  # raises for a URL that is none
        self._in_body = True
        self._sending.restart()  # the body has its own time
        if not self.transport.get_write_buffer_size():
            self._reading.restart()
        cast(Scope, self.scope).setdefault("extensions", {})[WRITE_CHUNK] = chunk_writer(self.cycle)

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            self._bytes_without_body = 0
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._refused and not self.parser.should_upgrade():
            self._bytes_without_body = 0
            self._in_message = self._in_body = False
            self._lingering.stop_discarding()
            self._sending.restart()
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(MalformedRequestError("the request is not valid HTTP"))

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._in_body and self.cycle.response_complete and not self.transport.is_closing():
            self._lingering.discard(MAX_BODY_BYTES)  # the rest of a body that nothing reads
        if self._unparsed and not self.transport.is_closing():
            self._parse_unparsed()
            self.flow.resume_reading()
        if self.transport.get_write_buffer_size():  # nothing else watches a client with all of it
            self._await_reader()

    def _num_expected(self) -> int:
        """Bytes that may still come, and would make the end of the connection a reset."""
        if self._in_body and not self._refused:
            return MAX_BODY_BYTES
        return MAX_OTHER_BYTES if self._in_message or self._refused else 0

    def _give_up(self) -> None:
        """No more is read of the request; the application is told that its client has left."""
        self._sending.rest()
        self._unparsed = b""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def _await_data(self) -> None:
        # While this server has paused reading, the client cannot send.
        if self._in_message and not self.flow.read_paused and not self._refused:
            self._sending.run()

    def _may_resume(self) -> bool:
        return not self._unparsed and len(self.pipeline) <= MAX_PIPELINED

    def _take_num_received(self) -> int:
        num_bytes, self._num_received = self._num_received, 0
        return num_bytes

    def _refuse_slow(self) -> None:
        message = (
            f"the request came too slowly: its head and its body may take {self._client_timeout:g}"
            f" s each, and a second more for each {self._min_client_rate} bytes"
        )
        hint = "send it faster, or start the server with a longer --client-timeout"
        self._refuse(RequestTimeoutError(message, hint=hint))

    def _refuse_head(self) -> None:
        self._refuse(
            HeadTooLargeError(f"the request's line and headers exceed {MAX_HEAD_BYTES} bytes")
        )

    def _refuse(self, error: TwostrokeError) -> None:
        """Answer without the application, unless it has begun to, and close."""
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        self._sending.rest()
        # With requests in the pipeline an answer is under way: this would become a part of it.
        waits = (
            self.cycle is not None
            and self._in_body
            and not self.cycle.response_started
            and not self.pipeline
        )
        if self.cycle is None or self.cycle.response_complete or waits:
            # Where the application has the request already, the id is the one that it knows.
            scope = cast(Scope, self.scope) if self._in_message else {}
            response = self._refusal(error).shaped(scope)
            response.headers["x-request-id"] = request_id(scope)
            status = HTTPStatus(response.status_code)
            lines = [f"HTTP/1.1 {status.value} {status.phrase}".encode(), b"connection: close"]
            lines += [name + b": " + value for name, value in response.raw_headers]
            self.transport.write(b"\r\n".join([*lines, b"", bytes(response.body)]))
        self.transport.close()
        self._await_reader()

    # ---- writing ---------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self._answered():  # else the rest must be taken, too
            self._reading.rest()

    def shutdown(self) -> None:
        """The server ends: what only waits for its client's end is closed, answered or not."""
        if self._lingering.lingers:
            self._lingering.close()
        else:
            super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._lingering.stop_discarding()
        self._sending.rest()
        self._reading.rest()

    def _await_reader(self) -> None:
        self._reading.rest()  # what has been written since is not to look like nothing taken
        self._reading.run()

    def _take_num_sent(self) -> int:
        before, self._num_unsent = self._num_unsent, self.transport.get_write_buffer_size()
        return max(0, before - self._num_unsent)

    def _answered(self) -> bool:
        return self._refused or self.cycle.response_complete

    def _cut_off(self) -> None:
        if self.transport.get_write_buffer_size():
            # Not closed: that would wait for the reader to take what is left.
            self.transport.abort()
        else:
            self._reading.restart()

    def _new_pace(
        self, num_moved: Callable[[], int], on_too_slow: Callable[[], None]
    ) -> ClientPace:
        return ClientPace(
            self.loop, self._client_timeout, self._min_client_rate, num_moved, on_too_slow
        )


class WatchedFlow(FlowControl):
    """uvicorn's flow control, which says when a client can send and when it cannot.

    Args:
        may_resume: Whether more may be read; asked each time that more is wanted.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        may_resume: Callable[[], bool],
        on_resume: Callable[[], None],
        on_pause: Callable[[], None],
    ) -> None:
        super().__init__(transport)
        self._may_resume = may_resume
        self._on_resume = on_resume
        self._on_pause = on_pause

    def pause_reading(self) -> None:
        super().pause_reading()
        self._on_pause()

    def resume_reading(self) -> None:
        if self._may_resume():
            super().resume_reading()
            self._on_resume()
