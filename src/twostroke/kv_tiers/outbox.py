"""Blocks that other engines fetch, in host memory of a bounded size."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from twostroke.core.errors import ConfigError
from twostroke.core.files import reason
from twostroke.core.kv_tier_config import TierChange
from twostroke.core.network.address import Address, bind, is_address, watch_connection
from twostroke.core.request import BlockKey
from twostroke.kv_cache.connector import ArrivedBlock, TierInfo
from twostroke.kv_tiers.block_channels import SOCKET_CHANNEL, BlockChannel
from twostroke.kv_tiers.block_file import BlockKind
from twostroke.kv_tiers.block_greeting import KindRefusedError, welcome_asker
from twostroke.kv_tiers.block_wire import WireError, receive_keys
from twostroke.kv_tiers.memory_tier import MemoryTier

logger = logging.getLogger(__name__)

# Blocks may be asked for just before they are saved, when the next step begins: word of the one
# that has filled them is quicker.
WAIT_SECONDS = 0.5
SEND_SECONDS = 60.0  # an engine that takes nothing for so long is given up
PAUSE_SECONDS = 0.5  # after which one that could not be accepted is tried again
MAX_GREETED = 16  # at once; what has not shown that it knows the token gives way to the next


class Outbox:
    """Implements ``KVConnector``: host memory whose blocks other processes may fetch.

    It listens on TCP, or on a Unix socket that only this user can open.

    Args:
        place: HOST:PORT, or the path at which the socket is made. What is left there by a process
            that has ended is replaced.
        kind: What its blocks are; one that asks for others is refused.
        token: What one that asks must know.
        channel: How its blocks go.

    Raises:
        ConfigError: It cannot listen there.
    """

    def __init__(
        self,
        info: TierInfo,
        place: str,
        kind: BlockKind,
        token: bytes = b"",
        channel: BlockChannel = SOCKET_CHANNEL,
    ) -> None:
        self._kind, self._token, self._channel = kind, token, channel
        self._changed = threading.Condition()
        self._closing = False
        self._connections: set[socket.socket] = set()
        self._greeted: dict[socket.socket, None] = {}  # the oldest first
        self._path = None if is_address(place) else Path(place)
        hint = "give another place" if self._path else "give a free HOST:PORT as --kv-listen"
        try:
            self._listener = _listen(place)
        except OSError as error:
            raise ConfigError(
                f"KV blocks cannot be offered at {place}: {reason(error)}",
                hint=hint,
            ) from error
        if self._path is None:
            place = str(Address(*self._listener.getsockname()[:2]))
        self._memory = MemoryTier(replace(info, place=place))
        threading.Thread(target=self._accept, name="twostroke-kv-outbox", daemon=True).start()

    @property
    def info(self) -> TierInfo:
        return self._memory.info

    def save(self, key: BlockKey, block: memoryview) -> bool:
        with self._changed:
            is_taken = self._memory.save(key, block)
            self._changed.notify_all()
        return is_taken

    def load(self, ticket: str, keys: Sequence[BlockKey]) -> None:
        with self._changed:
            self._memory.load(ticket, keys)

    def arrived(self, limit: int) -> list[ArrivedBlock]:
        with self._changed:
            return self._memory.arrived(limit)

    def drop(self, keys: Iterable[BlockKey]) -> None:
        with self._changed:
            self._memory.drop(keys)

    def changes(self) -> TierChange:
        with self._changed:
            return self._memory.changes()

    def close(self) -> None:
        self._closing = True
        # A listener that is only closed keeps its thread waiting.
        for each in (self._listener, *list(self._connections)):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink()
        with self._changed:
            self._memory.close()
            self._changed.notify_all()

    # ---- the threads -----------------------------------------------------------------------------

    def _accept(self) -> None:
        while not self._closing:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if self._closing:
                    return
                logger.exception("a connection for KV blocks cannot be accepted")
                time.sleep(PAUSE_SECONDS)  # too many files are open, say
                continue
            self._take(connection)

    def _take(self, connection: socket.socket) -> None:
        with self._changed:
            self._connections.add(connection)
            if len(self._greeted) >= MAX_GREETED:
                oldest = next(iter(self._greeted))
                del self._greeted[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread closes it
            self._greeted[connection] = None
        if self._closing:  # which may not have seen this one
            connection.close()
        try:
            threading.Thread(
                target=self._serve, args=(connection,), name="twostroke-kv-sender", daemon=True
            ).start()
        except RuntimeError:  # there are too many threads on this machine
            logger.exception("KV blocks cannot be sent")
            self._forget(connection)

    def _serve(self, connection: socket.socket) -> None:
        """Answer one engine until it goes."""
        try:
            if connection.family != socket.AF_UNIX:
                watch_connection(connection)
            welcome_asker(connection, self._token, self._kind, self._channel.name)
            with self._changed:
                self._greeted.pop(connection, None)
            self._answer(connection)
        except KindRefusedError as error:
            logger.error("one that asks for KV blocks is refused: %s", error)
        except (OSError, WireError) as error:
            if not self._closing:
                logger.debug("an engine that fetched KV blocks is gone: %s", error)
        finally:
            self._forget(connection)

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(SEND_SECONDS)
        sender = self._channel.sender(connection, self._kind.payload_bytes)
        try:
            connection.settimeout(None)
            while keys := receive_keys(connection):
                connection.settimeout(SEND_SECONDS)
                self._wait_for(keys)
                sender.answer(keys, self._find)
                connection.settimeout(None)
        finally:
            sender.close()

    def _forget(self, connection: socket.socket) -> None:
        with self._changed:  # before it is closed: its number may be another's then
            self._connections.discard(connection)
            self._greeted.pop(connection, None)
        connection.close()

    def _wait_for(self, keys: Sequence[bytes]) -> None:
        """Give them a moment to be there; some may never be."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closing or all(map(self._memory.has, keys)), WAIT_SECONDS
            )

    def _find(self, key: bytes) -> memoryview | None:
        """A copy: what is sent may be evicted meanwhile."""
        with self._changed:
            return None if self._closing else self._memory.copy_of(key)


def _listen(place: str) -> socket.socket:
    if is_address(place):
        listener = bind(Address.parse(place))
    else:
        listener = socket.socket(socket.AF_UNIX)
    try:
        if listener.family == socket.AF_UNIX:
            Path(place).unlink(missing_ok=True)
            listener.bind(place)
            Path(place).chmod(0o600)
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener
