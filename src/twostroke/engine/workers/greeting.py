"""What crosses between a worker and a front end before anything else: who they are.

The worker speaks first, with a number drawn for this connection; the front end answers with another
and with a proof that it knows the token, and the worker ends with its own proof. The token itself
never crosses, and what was overheard opens no second connection. Nothing is encrypted.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from twostroke.core.config import EngineConfig
from twostroke.engine.clients.facts import EngineFacts
from twostroke.engine.process.handshake import EngineRefused

# What decoding raises for noise: text may be no text, and what is nested deeply exhausts the stack.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
PROTOCOL = 1  # of the greeting; what follows belongs to one version of twostroke
GREETING_SECONDS = 10.0
GREETING_BYTES = 2**12  # before the token is known; what is longer is no greeting
WELCOME_BYTES = 2**24


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
        clock: Names the machine's clock; one that both have needs no comparing.
    """

    protocol: int
    version: str
    nonce: bytes
    proof: bytes
    now: float
    clock: str = ""


def clock_name() -> str:
    """Names the clock of this machine since it was started; empty where nothing tells."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class ModelFingerprint(msgspec.Struct, frozen=True):
    """Whether two engines give the same tokens.

    Attributes:
        name: What the operator calls it; nothing depends on it.
        tokenizer: A hash of the vocabulary.
        weights: A hash of the configuration, a part of each tensor, and how it is computed with.
        settings: What it is computed with, by flag, so that a difference can be named.
    """

    name: str
    tokenizer: str
    weights: str
    settings: dict[str, str] = {}


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
