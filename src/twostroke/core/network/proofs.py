"""How two sides of a connection show that they know one token, which never crosses."""

from __future__ import annotations

import hmac
import os
from pathlib import Path

from twostroke.core.errors import ConfigError
from twostroke.core.files import read_bytes, reason

TOKEN_BYTES = 16  # fewer can be guessed from an overheard proof
NONCE_BYTES = 32
PROOF_BYTES = 32


def draw_nonce() -> bytes:
    return os.urandom(NONCE_BYTES)


def prove(token: bytes, side: str, worker_nonce: bytes, front_end_nonce: bytes) -> bytes:
    """What only one that knows the token can say of this connection.

    Args:
        side: Who says it: neither side's proof is the other's.
    """
    return hmac.digest(token, side.encode() + worker_nonce + front_end_nonce, "sha256")


def is_proof(given: bytes, token: bytes, side: str, worker: bytes, front_end: bytes) -> bool:
    """Whether it is that proof; takes as long whatever is wrong."""
    whole = len(worker) == len(front_end) == NONCE_BYTES
    return hmac.compare_digest(given, prove(token, side, worker, front_end)) and whole


def read_token(path: str | None) -> bytes:
    """The token in a file, without white space around it; empty where there is no file.

    Raises:
        ConfigError: The file cannot be read, or what is in it is too short.
    """
    if path is None:
        return b""
    try:
        token = read_bytes(Path(path), 2**16).strip()
    except OSError as error:
        raise ConfigError(
            f"cannot read --token-file {path}: {reason(error)}",
            hint=f"make one: head -c 32 /dev/urandom | base64 > {path}",
        ) from error
    if len(token) < TOKEN_BYTES:
        raise ConfigError(
            f"the token in {path} has {len(token)} bytes, and needs {TOKEN_BYTES}",
            hint=f"make one: head -c 32 /dev/urandom | base64 > {path}",
        )
    return token
