"""Where a worker listens, and how a connection notices that its other end is gone."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
import struct
from typing import NamedTuple

GONE_SECONDS = 20  # without a sign of the other machine; one that runs answers in its kernel
_NAME = r"(?:[\w-]{1,63}\.)*[\w-]{1,63}\.?"  # what has other labels cannot even be looked up
_ADDRESS = re.compile(rf"(?:\[([0-9A-Fa-f.]*:[0-9A-Fa-f:.]*)\]|({_NAME})):(\d{{1,5}})", re.ASCII)


class Address(NamedTuple):
    """A host and a port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read ``HOST:PORT``; an IPv6 address stands in brackets.

        Raises:
            ValueError: It is none.
        """
        match = _ADDRESS.fullmatch(text)
        if match is None or int(match[3]) > 65535:
            raise ValueError(f"{text[:80]!r} is no HOST:PORT")
        return cls(match[1] or match[2], int(match[3]))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def reached_by(self, host: str) -> Address:
        """Where others reach what listens here, of a machine that they call ``host``."""
        try:
            is_any = ipaddress.ip_address(self.host).is_unspecified
        except ValueError:
            is_any = False
        return Address(host, self.port) if is_any else self


def is_address(text: str) -> bool:
    """Whether it reads as ``HOST:PORT``."""
    try:
        Address.parse(text)
    except ValueError:
        return False
    return True


def bind(address: Address) -> socket.socket:
    """A bound socket that does not listen yet. Raises OSError."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


def watch_connection(connection: socket.socket) -> None:
    """Have it end where the other machine is gone, or takes nothing, for ``GONE_SECONDS``.

    The kernel watches, so a busy process is not taken for a dead one. What takes nothing of what
    waits in the socket ends the connection, too: a ``sendall`` does not wait for ever.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    limit = struct.pack("ll", GONE_SECONDS, 0)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    for name, value in (
        ("TCP_KEEPIDLE", GONE_SECONDS // 4),
        ("TCP_KEEPINTVL", GONE_SECONDS // 4),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", GONE_SECONDS * 1000),
    ):
        with contextlib.suppress(AttributeError, OSError):  # Linux has them all
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
