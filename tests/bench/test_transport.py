"""Protects: httpx on the lean transport sees what it would see on its own.

Readers who ask for arrivals wake seldom and get all of them, with the times at which they came.
"""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from tests.bench.raw_server import HEAD, LENGTH, RawServer, chunk
from twostroke.bench import transport
from twostroke.bench.transport import Arrival, LeanTransport, arrivals


@asynccontextmanager
async def client_of(server: RawServer) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        server.listen() as url,
        httpx.AsyncClient(transport=LeanTransport(5.0), base_url=url) as client,
    ):
        yield client


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
    assert b"\r\nHost: 127.0.0.1:" in server.requests[0] and server.requests[0].endswith(
        b'\r\n\r\n{"n": 1}'
    )


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


async def test_no_server_listens() -> None:
    listening = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    listening.close()
    await listening.wait_closed()
    async with httpx.AsyncClient(transport=LeanTransport(5.0)) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(f"http://127.0.0.1:{port}/")


async def test_times_are_those_of_arrival_though_reading_is_late() -> None:
    server = RawServer(
        [HEAD, chunk(b"one"), chunk(b"two"), chunk(b"three")[:4], b"hree\r\n0\r\n\r\n"]
    )
    async with client_of(server) as client, client.stream("GET", "/") as response:
        async with asyncio.timeout(10):
            while len(server.written) < 5:
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        late = time.perf_counter()
        read = [some async for some in arrivals(response)]
    assert [[piece for _, piece in some] for some in read] == [[b"one", b"two", b"t", b"hree"]]
    times = [time_ for time_, _ in read[0]]
    _, *written = server.written
    # Each came after it was written and before the next one was.
    assert all(
        before <= time_ <= after
        for before, time_, after in zip(written, times, [*written[1:], late - 0.01])
    )


async def test_readers_of_arrivals_wake_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a fair amount, before the answer ends, and else for the end; not for each piece."""
    monkeypatch.setattr(transport, "PATIENCE_SECONDS", 60.0)
    seen = asyncio.Event()
    piece = chunk(b"x" * (transport.ENOUGH_BYTES // 4))
    server = RawServer([HEAD, *[piece] * 4, seen, *[piece] * 2, chunk(b"")])
    async with client_of(server) as client, client.stream("GET", "/") as response:
        sizes = []
        async for some in arrivals(response):
            sizes.append(sum(len(data) for _, data in some))
            seen.set()
    assert sizes == [transport.ENOUGH_BYTES, transport.ENOUGH_BYTES // 2]


async def test_what_came_before_a_stall_is_not_kept_from_the_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport, "PATIENCE_SECONDS", 0.02)
    seen = asyncio.Event()
    server = RawServer([HEAD, chunk(b"one"), seen, chunk(b"two"), chunk(b"")])
    async with (
        asyncio.timeout(10),
        client_of(server) as client,
        client.stream("GET", "/") as response,
    ):
        read = []
        async for some in arrivals(response):
            read += [piece for _, piece in some]
            # Beyond the reader's patience once more.
            asyncio.get_running_loop().call_later(0.1, seen.set)
    assert read == [b"one", b"two"]


@pytest.mark.parametrize(
    ("end", "error"), [(None, "before its answer ended"), (b"zz\r\n", "no HTTP")]
)
async def test_arrivals_of_an_answer_that_breaks_off(end: bytes | None, error: str) -> None:
    """What came is read first, whether the reader was there in time or came when all was over."""
    for late in (0.0, 0.05):
        server = RawServer([HEAD, chunk(b"one"), chunk(b"two"), end])
        async with client_of(server) as client, client.stream("GET", "/") as response:
            await asyncio.sleep(late)
            read: list[Arrival] = []
            with pytest.raises(httpx.RemoteProtocolError, match=error):
                async for some in arrivals(response):
                    read += some
        assert [piece for _, piece in read] == [b"one", b"two"]


async def test_arrivals_of_an_answer_that_is_compressed_all_the_same() -> None:
    packed = gzip.compress(b"data: 1\n" * 9)
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
    server = RawServer([head, packed[:20], packed[20:]])
    async with client_of(server) as client, client.stream("GET", "/") as response:
        read = [arrival async for some in arrivals(response) for arrival in some]
    assert b"".join(piece for _, piece in read) == b"data: 1\n" * 9


async def test_arrivals_by_a_transport_that_does_not_note_them() -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=b"all of it")

    began = time.perf_counter()
    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    async with client, client.stream("GET", "http://served.test/") as response:
        read = [arrival async for some in arrivals(response) for arrival in some]
    assert [piece for _, piece in read] == [b"all of it"]
    assert began < read[0][0] < time.perf_counter()
