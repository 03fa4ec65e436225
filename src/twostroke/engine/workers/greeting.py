"""What crosses between a worker and a front end before anything else: who they are.

The worker speaks first, with a number drawn for this connection; the front end answers with another
and with a proof that it knows the token, and the worker ends with its own proof. The token itself
never crosses, and what was overheard opens no second connection. Nothing is encrypted.
"""

from __future__ import annotations

import hmac
import os
from pathlib import Path

import msgspec

from twostroke.core.config import EngineConfig
from twostroke.core.errors import ConfigError
from twostroke.core.files import read_bytes, reason
from twostroke.engine.clients.facts import EngineFacts
from twostroke.engine.process.handshake import EngineRefused

# What decoding raises for noise: text may be no text, and what is nested deeply exhausts the stack.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
PROTOCOL = 1  # of the greeting; what follows belongs to one version of twostroke
GREETING_SECONDS = 10.0
GREETING_BYTES = 2**12  # before the token is known; what is longer is no greeting
WELCOME_BYTES = 2**24
TOKEN_BYTES = 16  # fewer can be guessed from an overheard proof
_NONCE_BYTES = 32


class Challenge(msgspec.Struct, frozen=True, tag=True):
    """The worker's first message.

    Attributes:
        nonce: Drawn for this connection.
    """

    protocol: int
    nonce: bytes


class FrontEndGreeting(msgspec.Struct, frozen=True, tag=True):
    """The front end's answer.

    Attributes:
        version: Its twostroke.
        now: Its clock, in seconds, which the engine goes by from here on.
    """

    protocol: int
    version: str
    nonce: bytes
    proof: bytes
    now: float


class ModelFingerprint(msgspec.Struct, frozen=True):
    """Whether two engines give the same tokens.

    Attributes:
        name: What the operator calls it; nothing depends on it.
        tokenizer: A hash of the vocabulary.
        weights: A hash of the configuration, a part of each tensor, and how it is computed with.
    """

    name: str
    tokenizer: str
    weights: str


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """The worker's last: the connection is the front end's, and the engine has no requests."""

    proof: bytes
    model: ModelFingerprint
    config: EngineConfig
    facts: EngineFacts


class Admitted(msgspec.Struct, frozen=True, tag=True):
    """A replica's, which has no engine yet: its front end goes on with ``StartEngine``."""

    proof: bytes


WorkerAnswer = Welcome | Admitted | EngineRefused


def draw_nonce() -> bytes:
    return os.urandom(_NONCE_BYTES)


def prove(token: bytes, side: str, worker_nonce: bytes, front_end_nonce: bytes) -> bytes:
    """What only one that knows the token can say of this connection.

    Args:
        side: Who says it: neither side's proof is the other's.
    """
    return hmac.digest(token, side.encode() + worker_nonce + front_end_nonce, "sha256")


def is_proof(given: bytes, token: bytes, side: str, worker: bytes, front_end: bytes) -> bool:
    """Whether it is that proof; takes as long whatever is wrong."""
    whole = len(worker) == len(front_end) == _NONCE_BYTES
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
