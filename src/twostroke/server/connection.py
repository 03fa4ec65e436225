"""uvicorn's HTTP connection, with an end to what it reads and waits for: heads, half-sent requests, stalled readers.

uvicorn bounds none of these with httptools, and all of them come before any key is looked at.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from twostroke.errors import TwostrokeError
from twostroke.server.errors import HeadTooLargeError, MalformedRequestError, RequestTimeoutError, error_response

MAX_HEAD_BYTES = 64 * 2**10  # what uvicorn allows with h11
READ_SECONDS = 60.0  # for a whole head, and for each piece of a body
WRITE_SECONDS = 60.0  # in which a client must take something of what waits for it


class BoundedProtocol(HttpToolsProtocol):
    """One connection. A head (or a trailer) above ``MAX_HEAD_BYTES`` gets a 431, an unfinished request a 408.

    A client that stops reading is cut off, which ends its generation.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._bytes_without_body = 0
        self._refused = False
        self._in_message = self._in_body = False
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None

    # ---- reading -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_data()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._bytes_without_body += len(data)
        super().data_received(data)
        if self._bytes_without_body > MAX_HEAD_BYTES:
            self._refuse_head()
        if not self._in_message:
            self._reading = _cancel(self._reading)
        elif self._in_body or self._reading is None:
            self._await_data()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_message, self._in_body = True, False

    def on_headers_complete(self) -> None:
        # A head that came whole in one piece is counted here.
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > MAX_HEAD_BYTES:
            self._refuse_head()
        if self._refused:
            return
        self._bytes_without_body, self._in_body = 0, True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            self._bytes_without_body = 0
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._refused:
            self._bytes_without_body = 0
            self._in_message = self._in_body = False
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(MalformedRequestError("the request is not valid HTTP"))

    def _await_data(self) -> None:
        _cancel(self._reading)
        self._reading = self.loop.call_later(READ_SECONDS, self._no_data)

    def _no_data(self) -> None:
        if self.flow.read_paused:  # by ourselves: the client cannot send
            self._await_data()
        else:
            self._refuse(RequestTimeoutError(f"the request was not complete within {READ_SECONDS:g} s"))

    def _refuse_head(self) -> None:
        self._refuse(HeadTooLargeError(f"the request's line and headers exceed {MAX_HEAD_BYTES} bytes"))

    def _refuse(self, error: TwostrokeError) -> None:
        """Answer without the application, unless it has begun to, and close."""
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        if self.cycle is None or self.cycle.response_complete or (self._in_body and not self.cycle.response_started):
            response = error_response(error)
            status = HTTPStatus(response.status_code)
            lines = [f"HTTP/1.1 {status.value} {status.phrase}".encode(), b"connection: close"]
            lines += [name + b": " + value for name, value in response.raw_headers]
            self.transport.write(b"\r\n".join([*lines, b"", bytes(response.body)]))
        self.transport.close()

    # ---- writing -----------------------------------------------------------------------------------------------

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


def _cancel(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """What to keep of a timer that is not wanted any more."""
    if timer is not None:
        timer.cancel()
    return None
