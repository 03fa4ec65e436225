"""Protects: httpx on the lean transport sees what it would see on its own, whole answers and broken ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from twostroke.bench.transport import LeanTransport


class RawServer:
    """Answers each request with the next of ``answers``, in pieces; ``None`` ends the connection."""

    def __init__(self, *answers: list[bytes | None]) -> None:
        self.answers = list(answers)
        self.requests: list[bytes] = []
        self.num_connections = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = [int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                self.requests.append(head + await reader.readexactly(length[0] if length else 0))
                for piece in self.answers.pop(0):
                    if piece is None:
                        return
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0.002)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def client_of(server: RawServer) -> AsyncIterator[httpx.AsyncClient]:
    listening = await asyncio.start_server(server.handle, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    async with httpx.AsyncClient(transport=LeanTransport(5.0), base_url=url) as client:
        yield client
    listening.close()


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LENGTH = b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\n"


async def test_pieces_come_as_they_are_sent_and_connections_are_used_again() -> None:
    server = RawServer(
        [HEAD, b"3\r\none\r\n", b"3\r\nt", b"wo\r\n0\r\n\r\n"],
        [LENGTH + b"sorry"],
        [b"HTTP/1.1 100 Continue\r\n\r\n", LENGTH[:20], LENGTH[20:], b"so", b"rry"],
    )
    async with client_of(server) as client:
        async with client.stream("POST", "/v1/x?a=b", content=b'{"n": 1}') as response:
            assert response.headers["content-type"] == "text/event-stream"
            pieces = [piece async for piece in response.aiter_bytes()]
        assert pieces == [b"one", b"t", b"wo"]
        for _ in range(2):
            response = await client.get("/other")
            assert (response.status_code, response.text) == (404, "sorry")
    assert server.num_connections == 1
    assert server.requests[0].startswith(b"POST /v1/x?a=b HTTP/1.1\r\n")
    assert b"\r\nHost: 127.0.0.1:" in server.requests[0] and server.requests[0].endswith(b'\r\n\r\n{"n": 1}')


async def test_answers_that_end_with_the_connection() -> None:
    server = RawServer([b"HTTP/1.1 200 OK\r\n\r\nall ", b"of it", None], [LENGTH + b"sorry"])
    async with client_of(server) as client:
        assert (await client.get("/")).text == "all of it"
        assert (await client.get("/")).text == "sorry"
    assert server.num_connections == 2


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ([HEAD, b"3\r\none\r\n", None], "before its answer ended"),
        ([LENGTH + b"so", None], "before its answer ended"),
        ([None], "before its answer ended"),
        ([b"hello\r\n\r\n"], "no HTTP"),
        ([HEAD, b"zz\r\n"], "no HTTP"),
    ],
)
async def test_broken_answers(answer: list[bytes | None], error: str) -> None:
    server = RawServer(answer, [LENGTH + b"sorry"])
    async with client_of(server) as client:
        with pytest.raises(httpx.RemoteProtocolError, match=error):
            await client.get("/")
        assert (await client.get("/")).text == "sorry"  # on a connection of its own


async def test_a_stream_that_is_not_read_to_its_end_does_not_leak_into_the_next_answer() -> None:
    server = RawServer([HEAD, b"3\r\none\r\n", b"3\r\ntwo\r\n", b"0\r\n\r\n"], [LENGTH + b"sorry"])
    async with client_of(server) as client:
        async with client.stream("GET", "/") as response:
            async for _ in response.aiter_bytes():
                break
        assert (await client.get("/")).text == "sorry"
    assert server.num_connections == 2


async def test_nobody_listens() -> None:
    listening = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    listening.close()
    await listening.wait_closed()
    async with httpx.AsyncClient(transport=LeanTransport(5.0)) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(f"http://127.0.0.1:{port}/")
