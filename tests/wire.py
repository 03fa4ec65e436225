"""The wire form that all messages must have: MessagePack, typed on both ends."""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")


def encode(message: object) -> bytes:
    """A message (``StepPlan``, ``StepResult``, ``RequestOutput`` ...) as bytes."""
    return msgspec.msgpack.encode(message)


def decode(data: bytes, kind: type[T]) -> T:
    """The message of type ``kind`` in ``data``.

    Raises:
        msgspec.DecodeError: The bytes are no such message.
        InvalidRequestError: Sampling parameters in it are out of range.
    """
    return msgspec.msgpack.decode(data, type=kind)
