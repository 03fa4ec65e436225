"""A lean HTTP/1.1 transport for httpx.

What reads streams must not take the processor from the server that it measures.

httpx's own transport takes an event through four layers and a parser in Python; here the parser
that uvicorn uses (httptools) sits on the event loop, and notes when each piece of a body came, so
that a reader who wants to know need not wake for each. On one machine with the server, the
difference shows in the server's throughput (docs/lab/http-path.md).
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from typing import cast
from urllib.request import getproxies

import httptools
import httpx

Origin = tuple[str, str, int]
Arrival = tuple[float, bytes]  # by time.perf_counter, and what came
# What a reader of arrivals wakes for, short of the end: that many bytes, or anything if it has
# waited that long. Few enough to be read in a fraction of a millisecond, which is how late the
# pieces of other answers are seen meanwhile.
ENOUGH_BYTES = 1 << 14
PATIENCE_SECONDS = 1.0
MAX_HEADER_BYTES = 2**17


def open_transport(connect_timeout: float) -> httpx.AsyncBaseTransport:
    """The lean one, unless the environment names proxies. Nothing but connecting times out."""
    return ProxiedTransport(connect_timeout) if getproxies() else LeanTransport(connect_timeout)


async def arrivals(response: httpx.Response) -> AsyncIterator[list[Arrival]]:
    """The body in pieces, some at a time, with the times at which they came."""
    noted = response.extensions.get("arrivals")
    if noted is not None and "content-encoding" not in response.headers:
        async for some in noted():
            yield some
    else:
        async for piece in response.aiter_bytes():
            yield [(time.perf_counter(), piece)]


class ProxiedTransport(httpx.AsyncBaseTransport):
    """httpx's own client, which knows what goes through which proxy."""

    def __init__(self, connect_timeout: float) -> None:
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=connect_timeout),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self._http.send(request, stream=True)

    async def aclose(self) -> None:
        await self._http.aclose()


class LeanTransport(httpx.AsyncBaseTransport):
    """Keeps connections open and uses them again, any number at once. No proxies, no HTTP/2.

    Its responses have the extension ``arrivals``, which reads the body with the time of each piece.

    Args:
        connect_timeout: Seconds; nothing else times out.
    """

    def __init__(self, connect_timeout: float) -> None:
        self._connect_timeout = connect_timeout
        self._idle: dict[Origin, list[_Connection]] = {}
        self._tls: ssl.SSLContext | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send and wait for the headers.

        Raises:
            httpx.ConnectError: No server listens there.
            httpx.ConnectTimeout: No server answered in time.
            httpx.RemoteProtocolError: The answer is no HTTP, or ends before it is complete.
        """
        url = request.url
        origin = (url.scheme, url.host, url.port or {"http": 80, "https": 443}[url.scheme])
        body = await request.aread()
        lines = [f"{request.method} ".encode() + url.raw_path + b" HTTP/1.1"]
        lines += [name + b": " + value for name, value in request.headers.raw]
        message = b"\r\n".join(lines) + b"\r\n\r\n" + body
        while (idle := self._idle.get(origin)) and (connection := idle.pop()):
            if not connection.closed:
                break
        else:
            connection = await self._connect(origin)
        try:
            await connection.send(message)
        except BaseException:
            connection.close()
            raise
        answer = _Body(connection, self, origin)
        extensions = {"arrivals": answer.arrivals}
        return httpx.Response(
            connection.status, headers=connection.headers, stream=answer, extensions=extensions
        )

    def give_back(self, connection: _Connection, origin: Origin) -> None:
        """A connection whose answer has been read, or will not be."""
        if connection.complete and connection.reusable and not connection.closed:
            self._idle.setdefault(origin, []).append(connection)
        else:
            connection.close()

    async def aclose(self) -> None:
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()

    async def _connect(self, origin: Origin) -> _Connection:
        scheme, host, port = origin
        if scheme == "https" and self._tls is None:
            self._tls = httpx.create_ssl_context()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout):
                tls = self._tls if scheme == "https" else None
                _, connection = await loop.create_connection(_Connection, host, port, ssl=tls)
        except TimeoutError as error:
            raise httpx.ConnectTimeout(
                f"no connection to {host}:{port} within {self._connect_timeout:g} s"
            ) from error
        except OSError as error:
            raise httpx.ConnectError(str(error)) from error
        return connection


class _Connection(asyncio.Protocol):
    """One connection, one request at a time; httptools calls the ``on_...`` methods."""

    def __init__(self) -> None:
        self.closed = False
        self._transport: asyncio.Transport | None = None
        self._begin()

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.status, self.headers = 0, list[tuple[bytes, bytes]]()
        self.complete = self.reusable = False
        self._pieces: list[Arrival] = []
        self._now = 0.0
        self._size = self._enough = self._header_bytes = 0
        self._news: asyncio.Future[None] | None = None
        self._error: Exception | None = None

    async def send(self, message: bytes) -> None:
        """Send a request and wait until the headers of its answer are there."""
        self._begin()
        assert self._transport is not None
        self._transport.write(message)
        while not self.status:
            await self._wait()

    async def read(self, enough: int) -> list[Arrival]:
        """The body since the last call, once that is ``enough`` bytes or all; empty at its end.

        After ``PATIENCE_SECONDS``, as with a server that has stalled, it gives what there is.
        """
        self._enough = enough
        timer = asyncio.get_running_loop().call_later(PATIENCE_SECONDS, self._settle_for_anything)
        try:
            while (
                self._size < self._enough
                and not self.complete
                and not (self._pieces and self._error)
            ):
                await self._wait()
        finally:
            timer.cancel()
        pieces, self._pieces, self._size = self._pieces, [], 0
        return pieces

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    async def _wait(self) -> None:
        if self._error is not None:
            raise self._error
        self._news = asyncio.get_running_loop().create_future()
        await self._news

    def _tell(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _settle_for_anything(self) -> None:
        self._enough = 1
        if self._pieces:
            self._tell()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by class

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._error = httpx.RemoteProtocolError(f"the answer is no HTTP: {error}")
            self.close()
        if self._size >= self._enough or self.complete or self._error is not None:
            self._tell()

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self._error = self._error or httpx.RemoteProtocolError(
            "the server closed the connection before its answer ended"
        )
        if self.status and not self.complete and not self._framed():
            self.complete = (
                True  # neither length nor chunks: the end of the connection is the end of the body
            )
        self._tell()

    def _framed(self) -> bool:
        return any(
            name.lower() in (b"content-length", b"transfer-encoding") for name, _ in self.headers
        )

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > MAX_HEADER_BYTES:
            self._error = httpx.RemoteProtocolError("the answer's headers do not end")
            self.close()
            return
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if (status := self._parser.get_status_code()) < 200:
            self.headers.clear()  # 100 Continue and the like: the answer is yet to come
        else:
            self.status = status

    def on_body(self, body: bytes) -> None:
        self._pieces.append((self._now, body))
        self._size += len(body)

    def on_message_complete(self) -> None:
        if self.status:
            self.complete, self.reusable = True, self._parser.should_keep_alive()


class _Body(httpx.AsyncByteStream):
    def __init__(self, connection: _Connection, transport: LeanTransport, origin: Origin) -> None:
        self._connection = connection
        self._transport = transport
        self._origin = origin
        self._given_back = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while pieces := await self._connection.read(1):
            yield b"".join([piece for _, piece in pieces])

    async def arrivals(self) -> AsyncIterator[list[Arrival]]:
        while pieces := await self._connection.read(ENOUGH_BYTES):
            yield pieces

    async def aclose(self) -> None:
        if not self._given_back:
            self._given_back = True
            self._transport.give_back(self._connection, self._origin)
