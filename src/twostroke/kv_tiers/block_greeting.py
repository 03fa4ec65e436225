"""What the two sides of a connection for KV blocks say first: that both know the token, and which
blocks they mean.

The giver speaks first, with a number drawn for this connection. The asker answers with another, its
proof and the kind of its blocks, and gets the giver's proof, or why it is refused. Numbers are in
little endian::

    challenge  8 bytes b"2SBLOCK" and 2, then 32 bytes, the giver's number
    hello      8 bytes as above, 32 bytes, the asker's number, 32 bytes, its proof; then 2 bytes,
               how long the kind is; then that, a list in JSON
    welcome    1 byte 1, then 32 bytes, the giver's proof; or 1 byte 0, then 2 bytes, how long the
               reason is, and that in UTF-8
"""

from __future__ import annotations

import json
import socket
import struct
import time

from twostroke.core.network.proofs import (
    NONCE_BYTES,
    PROOF_BYTES,
    draw_nonce,
    is_proof,
    prove,
)
from twostroke.kv_tiers.block_file import BlockKind
from twostroke.kv_tiers.block_wire import WireError, receive

MAGIC = b"2SBLOCK\x02"
GREETING_SECONDS = 5.0  # for all of it
MAX_KIND_BYTES = 4096
MAX_REASON_BYTES = 500
_LENGTH = struct.Struct("<H")
ASKER, GIVER = "asks for blocks", "gives blocks"


class KindRefusedError(WireError):
    """The other side will not have this one, and would not next time; the message says why."""


def welcome_asker(connection: socket.socket, token: bytes, kind: BlockKind) -> None:
    """The giver's side.

    Raises:
        KindRefusedError: The other side is none for these blocks. It has been told why.
        WireError, OSError: It says something else, or is gone, or too slow.
    """
    deadline = time.monotonic() + GREETING_SECONDS
    connection.settimeout(GREETING_SECONDS)
    ours = draw_nonce()
    connection.sendall(MAGIC + ours)
    if receive(connection, len(MAGIC), deadline=deadline) != MAGIC:
        raise WireError("it does not ask for KV blocks of this version of twostroke")
    theirs = bytes(receive(connection, NONCE_BYTES, deadline=deadline))
    proof = bytes(receive(connection, PROOF_BYTES, deadline=deadline))
    if not is_proof(proof, token, ASKER, ours, theirs):  # before anything of it is read
        _refuse(connection, "it has another token: give both the same --token-file")
    (length,) = _LENGTH.unpack(receive(connection, _LENGTH.size, deadline=deadline))
    if length > MAX_KIND_BYTES:
        raise WireError(f"a kind of {length} bytes was announced")
    reason = difference(bytes(receive(connection, length, deadline=deadline)), kind)
    if reason:
        _refuse(connection, reason)
    connection.sendall(b"\x01" + prove(token, GIVER, ours, theirs))


def greet_giver(connection: socket.socket, token: bytes, kind: BlockKind) -> None:
    """The asker's side.

    Raises:
        KindRefusedError: It refuses, or does not know the token.
        WireError, OSError: It says something else, or is gone, or too slow.
    """
    deadline = time.monotonic() + GREETING_SECONDS
    if receive(connection, len(MAGIC), deadline=deadline) != MAGIC:
        raise WireError("what listens there gives no KV blocks of this version of twostroke")
    theirs, ours = bytes(receive(connection, NONCE_BYTES, deadline=deadline)), draw_nonce()
    described = json.dumps(kind).encode()
    hello = MAGIC + ours + prove(token, ASKER, theirs, ours)
    connection.sendall(hello + _LENGTH.pack(len(described)) + described)
    if receive(connection, 1, deadline=deadline) != b"\x01":
        (length,) = _LENGTH.unpack(receive(connection, _LENGTH.size, deadline=deadline))
        if length > MAX_REASON_BYTES:
            raise WireError("what listens there gives no KV blocks")
        text = bytes(receive(connection, length, deadline=deadline)).decode(errors="replace")
        # It may be anybody: what it says stands in a log.
        raise KindRefusedError("".join(c if c.isprintable() else " " for c in text))
    proof = bytes(receive(connection, PROOF_BYTES, deadline=deadline))
    if not is_proof(proof, token, GIVER, theirs, ours):
        raise KindRefusedError("it does not know the token: give both the same --token-file")


def difference(described: bytes, kind: BlockKind) -> str:
    """How a described kind differs from ``kind``; empty if it is the same."""
    try:
        theirs = json.loads(described)
    except (ValueError, RecursionError):
        theirs = None
    if not isinstance(theirs, list) or len(theirs) != len(kind):
        return "what it asks for is no kind of KV blocks"
    fields = dict(zip(BlockKind._fields, theirs, strict=True))
    for name, what in (
        ("block_size", "--block-size"),
        ("format", "format (--kv-cache-dtype, or the model's layers)"),
        ("payload_bytes", "size of a block"),
        ("key_bytes", "length of keys"),
        ("model", "model, precision or kind of processor"),
    ):
        ours, other = getattr(kind, name), fields[name]
        if other != ours:
            return f"its KV blocks have another {what}: {str(other)[:80]}, not {ours}"
    return ""


def _refuse(connection: socket.socket, reason: str) -> None:
    data = reason.encode()[:MAX_REASON_BYTES]
    connection.sendall(b"\x00" + _LENGTH.pack(len(data)) + data)
    raise KindRefusedError(reason)
