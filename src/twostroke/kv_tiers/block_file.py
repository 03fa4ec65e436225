"""The file of one KV block: a header that says whose it is, then the block.

Layout, numbers in little endian::

    8 bytes   magic and version, b"2STROKE" and 1
    4 bytes   length of the header
    4 bytes   CRC-32 of the header
    header    JSON: model, format, block_size, key, payload_bytes, payload_crc32
    payload   the block's bytes
"""

from __future__ import annotations

import json
import struct
from typing import NamedTuple
from zlib import crc32

MAGIC = b"2STROKE\x01"
KEY_BYTES = 16
_HEAD = struct.Struct("<8sII")


class BlockFileError(Exception):
    """A file is not the block that it should be; the message says why."""


class BlockKind(NamedTuple):
    """What all blocks of one model and configuration have in common.

    Attributes:
        model: Fingerprint of the weights (``ExecutorInfo.model_id``).
        format: Names and layouts of the tensors in the payload, in order.
        block_size: Tokens per block.
        payload_bytes: Bytes of one block.
        key_bytes: Length of the longest keys; one more where they name a group of layers.
    """

    model: str
    format: str
    block_size: int
    payload_bytes: int
    key_bytes: int = KEY_BYTES

    @property
    def file_bytes(self) -> int:
        """Length of each of its files."""
        return len(encode_head(self, b"", 0)) + self.payload_bytes


def encode_head(kind: BlockKind, key: bytes, checksum: int) -> bytes:
    """All of the file before the payload; its length depends on ``kind`` only."""
    header = json.dumps(
        {
            "model": kind.model,
            "format": kind.format,
            "block_size": kind.block_size,
            "key": key.hex(),
            "payload_bytes": kind.payload_bytes,
            "payload_crc32": f"{checksum:08x}",
        }
    ).encode()
    header += b" " * (2 * (kind.key_bytes - len(key)))  # shorter keys than the longest
    return _HEAD.pack(MAGIC, len(header), crc32(header)) + header


def decode_block(data: memoryview, kind: BlockKind, key: bytes) -> memoryview:
    """The payload of a file's bytes.

    Raises:
        BlockFileError: It is truncated, damaged, or of another model, format or content.
    """
    if len(data) < _HEAD.size:
        raise BlockFileError("it is cut off")
    magic, length, checksum = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise BlockFileError("it is no file of KV blocks, or of another version")
    header = bytes(data[_HEAD.size : _HEAD.size + length])
    if len(header) < length or crc32(header) != checksum:
        raise BlockFileError("its header is damaged")
    payload = data[_HEAD.size + length :]
    # The header is JSON of our own making: equal bytes are all that is asked for.
    if bytes(data[: _HEAD.size + length]) != encode_head(kind, key, crc32(payload)):
        raise BlockFileError(_difference(header, kind, key))
    if len(payload) != kind.payload_bytes:
        raise BlockFileError("it is cut off")
    return payload


def _difference(header: bytes, kind: BlockKind, key: bytes) -> str:
    fields = json.loads(header)  # its checksum is right
    if not isinstance(fields, dict) or fields.get("model") != kind.model:
        return "it is of another model"
    for name, expected in (
        ("format", kind.format),
        ("block_size", kind.block_size),
        ("payload_bytes", kind.payload_bytes),
        ("key", key.hex()),
    ):
        if fields.get(name) != expected:
            return f"its {name} is another"
    return "its checksum is wrong"
