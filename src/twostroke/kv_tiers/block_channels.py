"""How blocks cross from the engine that has them to one that asks, once both have greeted.

Keys always go over the connection. Blocks do as well, or by NIXL (``nixl_channel.py``).
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from twostroke.kv_tiers.block_wire import MAX_KEYS, receive_block, send_block, send_keys


class FetchedBlock(NamedTuple):
    """The answer to one key: a block, or ``None``; and what waiting for it took."""

    data: memoryview | None
    seconds: float


class BlockReader(Protocol):
    """The asker's side of one connection.

    Attributes:
        max_keys: How many may be asked for at once.
    """

    max_keys: int

    def fetch(self, keys: Sequence[bytes]) -> Iterator[FetchedBlock]:
        """Ask for blocks; each answer comes in order, and is the caller's to keep.

        Raises:
            WireError, OSError: The giver is gone or too slow, or says something else. Then the
                connection is of no use any more.
        """

    def close(self) -> None:
        """Give up what is beside the connection, which is the caller's."""


class BlockSender(Protocol):
    """The giver's side of one connection."""

    def answer(self, keys: Sequence[bytes], find: Callable[[bytes], memoryview | None]) -> None:
        """Give what there is of these. Raises as ``BlockReader.fetch`` does."""

    def close(self) -> None:
        """Give up what is beside the connection, which is the caller's."""


class BlockChannel(Protocol):
    """A way for blocks, the same for all connections of an engine. It lives as long as that.

    Attributes:
        name: What ``--kv-transfer`` calls it; both sides must have the same.
    """

    name: str

    def reader(self, connection: socket.socket, block_bytes: int) -> BlockReader: ...

    def sender(self, connection: socket.socket, block_bytes: int) -> BlockSender: ...


class SocketReader:
    """Implements ``BlockReader``: blocks come over the connection, each after its length."""

    max_keys = MAX_KEYS

    def __init__(self, connection: socket.socket, block_bytes: int) -> None:
        self._connection, self._size = connection, block_bytes

    def fetch(self, keys: Sequence[bytes]) -> Iterator[FetchedBlock]:
        send_keys(self._connection, keys)
        for _ in keys:
            began = time.perf_counter()
            block = receive_block(self._connection, self._size)
            yield FetchedBlock(block, time.perf_counter() - began)

    def close(self) -> None:
        """There is nothing beside the connection."""


class SocketSender:
    """Implements ``BlockSender``."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def answer(self, keys: Sequence[bytes], find: Callable[[bytes], memoryview | None]) -> None:
        for key in keys:
            send_block(self._connection, find(key))

    def close(self) -> None:
        """There is nothing beside the connection."""


class SocketChannel:
    """Implements ``BlockChannel``: all over the connection."""

    name = "tcp"

    def reader(self, connection: socket.socket, block_bytes: int) -> SocketReader:
        return SocketReader(connection, block_bytes)

    def sender(self, connection: socket.socket, block_bytes: int) -> SocketSender:
        return SocketSender(connection)


SOCKET_CHANNEL = SocketChannel()
