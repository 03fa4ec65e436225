"""Messages on a stream socket: the length in four bytes, little-endian, then MessagePack."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec

from twostroke.core.errors import EngineError
from twostroke.engine.messages import EngineMessage, EngineReply

_HEADER = struct.Struct("<I")
MAX_FRAME_BYTES = 2**30  # what is longer is no message: the other side speaks something else
RECEIVE_BYTES = 2**18

_encoder = msgspec.msgpack.Encoder(enc_hook=int)  # the one that is none of msgspec's: DefaultSize


def encode_frame(message: object) -> bytes:
    """A message with its length."""
    data = _encoder.encode(message)
    return _HEADER.pack(len(data)) + data


def message_decoder() -> msgspec.msgpack.Decoder[EngineMessage]:
    """Reads what a client sends."""
    return msgspec.msgpack.Decoder(EngineMessage)


def reply_decoder() -> msgspec.msgpack.Decoder[EngineReply]:
    """Reads what an engine sends."""
    return msgspec.msgpack.Decoder(EngineReply)


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
            if length > MAX_FRAME_BYTES:
                raise EngineError(f"a message of {length} bytes was announced")
            end = _HEADER.size + length
            if len(self._rest) < end:
                break
            message = bytes(self._rest[_HEADER.size : end])
            del self._rest[:end]  # cheap: a bytearray moves where it begins
            yield message
