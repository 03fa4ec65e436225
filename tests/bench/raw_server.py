"""A server that answers with any bytes at all, in any pieces."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LENGTH = b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One of a chunked body; empty is its end."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class RawServer:
    """Answers each request with the next of ``answers``, in pieces; ``None`` ends the connection.

    Where an event stands instead of a piece, it waits for that.
    """

    def __init__(self, *answers: Sequence[bytes | asyncio.Event | None]) -> None:
        self.answers = list(answers)
        self.requests: list[bytes] = []
        self.written: list[float] = []
        self.num_connections = 0

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[str]:
        """Its URL, as long as it takes connections."""
        listening = await asyncio.start_server(self.handle, "127.0.0.1", 0)
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        listening.close()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = [
                    int(line[15:])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length:")
                ]
                self.requests.append(head + await reader.readexactly(length[0] if length else 0))
                for piece in self.answers.pop(0):
                    if piece is None:
                        return
                    if isinstance(piece, asyncio.Event):
                        await piece.wait()
                        continue
                    self.written.append(time.perf_counter())
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0.002)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()
