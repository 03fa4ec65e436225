"""Messages on a stream socket: the length in four bytes, little-endian, then MessagePack."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Iterator

import msgspec

from twostroke.core.errors import EngineError
from twostroke.engine.messages import EngineMessage, EngineReply

_HEADER = struct.Struct("<I")
MAX_FRAME_BYTES = 2**30  # what is longer is no message: the other side speaks something else
RECEIVE_BYTES = 2**18

_encoder = msgspec.msgpack.Encoder(enc_hook=int)  # the one that is none of msgspec's: DefaultSize
# Made when the module is loaded, as all decoders of this package are: two threads that make the
# first ones for a type at the same time end the process (msgspec 0.22 shares a half-made one).
MESSAGES: msgspec.msgpack.Decoder[EngineMessage] = msgspec.msgpack.Decoder(EngineMessage)
REPLIES: msgspec.msgpack.Decoder[EngineReply] = msgspec.msgpack.Decoder(EngineReply)


def encode_frame(message: object) -> bytes:
    """A message with its length."""
    data = _encoder.encode(message)
    return _HEADER.pack(len(data)) + data


def has_come(connection: socket.socket, seconds: float) -> bool:
    """Whether there is something to read, or the end, within that time.

    Not by ``select.select``: a server with a thousand clients has numbers that it does not take.
    """
    waiting = select.poll()
    waiting.register(connection, select.POLLIN)
    return bool(waiting.poll(seconds * 1000))


def receive_frame(
    connection: socket.socket, max_bytes: int = MAX_FRAME_BYTES, deadline: float | None = None
) -> bytes | None:
    """One message without its length, off a blocking socket; what follows stays there.

    Args:
        deadline: By when it must be there, on ``time.monotonic``.

    Returns:
        ``None`` if the other side is gone, or too slow.

    Raises:
        EngineError: It is longer than ``max_bytes``.
    """
    header = _receive_exactly(connection, _HEADER.size, deadline)
    if header is None:
        return None
    (length,) = _HEADER.unpack(header)
    _check_length(length, max_bytes)
    return _receive_exactly(connection, length, deadline)


def _receive_exactly(connection: socket.socket, count: int, deadline: float | None) -> bytes | None:
    pieces = bytearray()
    while len(pieces) < count:
        try:
            if deadline is not None:
                if (left := deadline - time.monotonic()) <= 0:
                    return None
                connection.settimeout(left)
            data = connection.recv(min(count - len(pieces), RECEIVE_BYTES))
        except OSError:
            return None
        if not data:
            return None
        pieces += data
    return bytes(pieces)


def _check_length(length: int, max_bytes: int) -> None:
    if length > max_bytes:
        raise EngineError(f"a message of {length} bytes was announced, and {max_bytes} are allowed")


class FrameCutter:
    """Cuts what arrives into messages."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def cut(self, data: bytes) -> Iterator[bytes]:
        """The messages that ``data`` completes, without their lengths.

        Raises:
            EngineError: No message is that long.
        """
        self._rest += data
        while len(self._rest) >= _HEADER.size:
            (length,) = _HEADER.unpack_from(self._rest)
            _check_length(length, MAX_FRAME_BYTES)
            end = _HEADER.size + length
            if len(self._rest) < end:
                break
            message = bytes(self._rest[_HEADER.size : end])
            del self._rest[:end]  # cheap: a bytearray moves where it begins
            yield message
