"""How blocks cross a stream socket, from the engine that has them to one that asks.

Once both have greeted (``block_greeting.py``), one asks for keys, as often as it likes. Each key is
answered in order, with its block, or with nothing. Numbers are in little endian::

    keys      2 bytes, how many; then each with a byte for its length before it
    block     4 bytes, its length, 0 if it is not there; then the block
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence

MAX_KEYS = 1024  # of one question
MAX_KEY_BYTES = 255
_COUNT, _LENGTH = struct.Struct("<H"), struct.Struct("<I")


class WireError(Exception):
    """What comes is not what is said above."""


def send_keys(connection: socket.socket, keys: Sequence[bytes]) -> None:
    """Ask for at most ``MAX_KEYS`` blocks."""
    parts = [_COUNT.pack(len(keys))]
    for key in keys:
        parts += bytes([len(key)]), key
    connection.sendall(b"".join(parts))


def receive_keys(connection: socket.socket) -> list[bytes]:
    """The next question; none at the end of the connection.

    Raises:
        WireError: It asks for too much.
    """
    head = receive(connection, _COUNT.size, may_end=True)
    if not head:
        return []
    (count,) = _COUNT.unpack(head)
    if not 0 < count <= MAX_KEYS:
        raise WireError(f"{count} keys were announced, and 1 to {MAX_KEYS} are allowed")
    return [bytes(receive(connection, receive(connection, 1)[0])) for _ in range(count)]


def send_block(connection: socket.socket, block: memoryview | None) -> None:
    """Answer one key."""
    size = 0 if block is None else len(block)
    connection.sendall(_LENGTH.pack(size))
    if block is not None:
        connection.sendall(block)


def receive_block(connection: socket.socket, block_bytes: int) -> memoryview | None:
    """The answer to one key.

    Raises:
        WireError: It is no block of ``block_bytes``.
    """
    (size,) = _LENGTH.unpack(receive(connection, _LENGTH.size))
    if not size:
        return None
    if size != block_bytes:
        raise WireError(f"a block of {size} bytes came where {block_bytes} were expected")
    return memoryview(receive(connection, size))


def receive(
    connection: socket.socket,
    size: int,
    *,
    may_end: bool = False,
    deadline: float | None = None,
) -> bytearray:
    """So many bytes; with ``may_end`` none if there are no more.

    Args:
        deadline: By when all must be there, on ``time.monotonic``.

    Raises:
        WireError: The connection ended before.
        TimeoutError: They were not there in time.
    """
    data = bytearray(size)
    view, filled = memoryview(data), 0
    while filled < size:
        if deadline is not None:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
        count = connection.recv_into(view[filled:])
        if not count:
            if may_end and not filled:
                return bytearray()
            raise WireError("the connection ended in the middle")
        filled += count
    return data
