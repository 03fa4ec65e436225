"""Blocks that another engine has, fetched by their keys."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from twostroke.core.kv_tier_config import TierChange
from twostroke.core.network.address import Address, is_address, watch_connection
from twostroke.core.request import BlockKey
from twostroke.kv_cache.connector import ArrivedBlock, TierInfo
from twostroke.kv_tiers.block_channels import SOCKET_CHANNEL, BlockChannel, BlockReader
from twostroke.kv_tiers.block_file import BlockKind
from twostroke.kv_tiers.block_greeting import greet_giver
from twostroke.kv_tiers.block_wire import MAX_KEYS, WireError
from twostroke.kv_tiers.change_log import ChangeLog

logger = logging.getLogger(__name__)

MAX_WAITING = 64 << 20  # bytes of blocks that have come and are not copied yet
CONNECT_SECONDS = 2.0
FETCH_SECONDS = 5.0  # without a byte, after which a peer is left
PAUSE_SECONDS = 5.0  # for which one that was too slow is not asked again


class PeerTier:
    """Implements ``KVConnector``: loads alone. It never waits for the peer to be there.

    Requests say what it holds; a block that is not there fails its load, and is
    computed.

    Args:
        place: The peer's: HOST:PORT, or the path of a Unix socket.
        kind: What its blocks must be.
        wake: Set when there is something to fetch.
        token: What the peer must know, and is shown to know.
        channel: How its blocks come.
    """

    def __init__(
        self,
        info: TierInfo,
        place: str,
        kind: BlockKind,
        wake: threading.Event,
        token: bytes = b"",
        channel: BlockChannel = SOCKET_CHANNEL,
    ) -> None:
        self._channel = channel
        self._reader: BlockReader | None = None
        self._info, self._place, self._kind, self._wake = info, place, kind, wake
        self._token, self._not_before = token, 0.0
        self._size = kind.payload_bytes
        self._requested: deque[tuple[str, bytes]] = deque()
        self._arrived: deque[ArrivedBlock] = deque()
        self._log = ChangeLog(info.name)
        self._changed = threading.Condition()
        self._closing = False
        self._connection: socket.socket | None = None
        self._thread = threading.Thread(
            target=self._fetch_all, name=f"twostroke-kv-{info.name}", daemon=True
        )
        self._thread.start()

    @property
    def info(self) -> TierInfo:
        return self._info

    def save(self, key: BlockKey, block: memoryview) -> bool:
        return False

    def load(self, ticket: str, keys: Sequence[BlockKey]) -> None:
        with self._changed:
            for key in keys:
                assert isinstance(key, bytes)
                self._requested.append((ticket, key))
            self._changed.notify_all()

    def arrived(self, limit: int) -> list[ArrivedBlock]:
        with self._changed:
            blocks = [self._arrived.popleft() for _ in range(min(limit, len(self._arrived)))]
            self._changed.notify_all()
        return blocks

    def drop(self, keys: Iterable[BlockKey]) -> None:
        """They are the peer's."""

    def changes(self) -> TierChange:
        with self._changed:
            return self._log.take()

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._requested.clear()
            self._changed.notify_all()
        if (connection := self._connection) is not None:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join(FETCH_SECONDS)
        if self._reader is not None and not self._thread.is_alive():
            self._reader.close()
        if (connection := self._connection) is not None:
            connection.close()

    # ---- the thread ------------------------------------------------------------------------------

    def _fetch_all(self) -> None:
        while (asked := self._next()) is not None:
            try:
                self._fetch(asked)
            except (OSError, WireError) as error:
                self._leave(error)
                for ticket, key in asked:
                    self._put(ArrivedBlock(ticket, key, None))

    def _next(self) -> list[tuple[str, bytes]] | None:
        """What is asked next, for one request; ``None`` at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._requested)
            if self._closing:
                return None
            ticket, asked = self._requested[0][0], list[tuple[str, bytes]]()
            while self._requested and self._requested[0][0] == ticket and len(asked) < MAX_KEYS:
                asked.append(self._requested.popleft())
            return asked

    def _fetch(self, asked: list[tuple[str, bytes]]) -> None:
        reader = self._reader or self._connect()
        while asked:
            keys = [key for _, key in asked[: reader.max_keys]]
            for block, seconds in reader.fetch(keys):
                ticket, key = asked.pop(0)
                self._put(ArrivedBlock(ticket, key, block, 0.0 if block is None else seconds))

    def _put(self, block: ArrivedBlock) -> None:
        with self._changed:
            limit = max(1, MAX_WAITING // max(1, self._size))
            self._changed.wait_for(lambda: self._closing or len(self._arrived) < limit)
            self._arrived.append(block)
            if block.data is None:
                self._log.remove(block.key)
        self._wake.set()

    def _connect(self) -> BlockReader:
        if time.monotonic() < self._not_before:
            raise WireError("it was too slow just now")
        if is_address(self._place):
            connection = socket.create_connection(Address.parse(self._place), CONNECT_SECONDS)
        else:
            connection = socket.socket(socket.AF_UNIX)
        try:
            if connection.family == socket.AF_UNIX:
                connection.settimeout(CONNECT_SECONDS)
                connection.connect(self._place)
            else:
                watch_connection(connection)
            greet_giver(connection, self._token, self._kind, self._channel.name)
            connection.settimeout(FETCH_SECONDS)
            reader = self._channel.reader(connection, self._size)
        except BaseException:
            connection.close()
            raise
        self._connection, self._reader = connection, reader
        if self._closing:  # which may not have seen this one
            raise WireError("it is closed")
        return reader

    def _leave(self, error: Exception) -> None:
        """What was under way is lost; the next fetch connects anew."""
        connection, self._connection = self._connection, None
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
        if connection is not None:
            connection.close()
        if isinstance(error, TimeoutError):
            self._not_before = time.monotonic() + PAUSE_SECONDS
        if not self._closing:
            logger.warning(
                "KV blocks of %s are not to be had, and are computed: %s", self._info.name, error
            )


class Peers:
    """Opens the tier of a peer when it is named first: by its address, HOST:PORT.

    Args:
        info: What the scheduler is told, see ``TierInfo.by_address``.
        kind, wake, token, channel: See ``PeerTier``.
    """

    def __init__(
        self,
        info: TierInfo,
        kind: BlockKind,
        wake: threading.Event,
        token: bytes,
        channel: BlockChannel = SOCKET_CHANNEL,
    ) -> None:
        self.info, self._channel = info, channel
        self._kind, self._wake, self._token = kind, wake, token

    def open(self, name: str) -> PeerTier:
        """The tier of the peer at that address."""
        info = replace(self.info, name=name, by_address=False)
        return PeerTier(info, name, self._kind, self._wake, self._token, self._channel)
