"""API keys: only their SHA-256 is kept, and a comparison takes the same time for all."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from twostroke.core.errors import ConfigError, InvalidKeyError, MissingKeyError, RevokedKeyError
from twostroke.core.files import read_text

KEY_PREFIX = "sk-"
KEY_BYTES = 32
REVOKED, ADMIN = "revoked", "admin"

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_LINE = re.compile(rf"({_NAME.pattern}):([0-9a-fA-F]{{64}})(?::({REVOKED}|{ADMIN}))?")


class KeyRecord(NamedTuple):
    """One accepted key. Keys of one name are one tenant: a key can be replaced without a gap."""

    name: str
    digest: bytes
    revoked: bool = False
    admin: bool = False


def new_key() -> str:
    """A key that cannot be guessed: 256 bits from the system."""
    return KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)


def key_digest(key: str) -> bytes:
    """The SHA-256 of a key. A fast hash suffices, since keys are random."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def key_line(name: str, key: str, *, admin: bool = False) -> str:
    """The line of ``--api-key-file`` that accepts ``key``.

    Raises:
        ConfigError: The name would not survive in that file.
    """
    if not _NAME.fullmatch(name):
        hint = "use up to 64 letters, digits, dots, hyphens and underscores"
        raise ConfigError(f"{name!r} cannot be the name of a key", hint=hint)
    return f"{name}:{key_digest(key).hex()}" + (f":{ADMIN}" if admin else "")


def read_key_file(path: Path) -> list[KeyRecord]:
    """The keys of a file, which may also have empty lines and ``#`` comments.

    A line is ``NAME:SHA256``, ``NAME:SHA256:admin`` or ``NAME:SHA256:revoked``.

    Raises:
        ConfigError: The file cannot be read, holds no key, or a line is malformed (its number is
            given, but not its text).
    """
    try:
        lines = read_text(path).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        hint = "twostroke key NAME makes lines for it"
        raise ConfigError(f"cannot read --api-key-file {path}: {reason}", hint=hint) from error
    records = []
    for number, line in enumerate(map(str.strip, lines), start=1):
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            hint = (
                "each line is NAME:SHA256 as twostroke key NAME prints it; the key itself does not"
                " belong there"
            )
            raise ConfigError(f"line {number} of {path} is not NAME:SHA256", hint=hint)
        name, digest, word = match[1], bytes.fromhex(match[2]), match[3]
        records.append(KeyRecord(name, digest, word == REVOKED, word == ADMIN))
    if not records:
        raise ConfigError(
            f"--api-key-file {path} holds no key", hint="twostroke key NAME makes one"
        )
    return records


def given_keys(keys: Iterable[str]) -> list[KeyRecord]:
    """Keys from the command line, named after their hash: the same name on every server."""
    digests = map(key_digest, keys)
    return [KeyRecord(f"key-{digest.hex()[:8]}", digest) for digest in digests]


class KeyRing:
    """The keys that open the server.

    Raises:
        ConfigError: One key has two names.
    """

    def __init__(self, records: Iterable[KeyRecord]) -> None:
        self._records = tuple(records)
        names: dict[bytes, str] = {}
        for record in self._records:
            if names.setdefault(record.digest, record.name) != record.name:
                message = f"{names[record.digest]} and {record.name} have the same key"
                raise ConfigError(
                    message, hint="make one of them a key of its own: twostroke key NAME"
                )

    @property
    def names(self) -> frozenset[str]:
        """The names of all keys that are not revoked."""
        return frozenset(record.name for record in self._records if not record.revoked)

    def is_admin(self, name: str) -> bool:
        """Whether the keys of this name may see what concerns all: marked so, or the only name."""
        marked = any(record.admin and record.name == name for record in self._records)
        return marked or self.names == {name}

    def check_name(self, name: str) -> str:
        """The name, if there is still a key of it; raises ``RevokedKeyError``."""
        if name not in self.names:
            raise RevokedKeyError(
                f"there is no key of the name {name!a} any more", hint="ask for a new one"
            )
        return name

    def holder_of(self, authorization: str | None) -> str:
        """The name of the key in an ``Authorization`` header.

        Raises:
            MissingKeyError: There is no bearer token in it.
            InvalidKeyError: The key is not in the ring.
            RevokedKeyError: The key is in the ring, but revoked.
        """
        scheme, _, key = (authorization or "").strip().partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise MissingKeyError(
                "no API key was sent",
                hint="send the header Authorization: Bearer KEY, or X-Api-Key",
            )
        digest = key_digest(key.strip())
        match: KeyRecord | None = None
        for record in self._records:  # all of them: the time must not depend on the key
            if hmac.compare_digest(record.digest, digest) and (match is None or record.revoked):
                match = record
        if match is None:
            raise InvalidKeyError(
                "the API key is not known here", hint="check it, or ask the operator of this server"
            )
        if match.revoked:
            raise RevokedKeyError(
                f"the API key of {match.name} has been revoked", hint="ask for a new one"
            )
        return match.name
