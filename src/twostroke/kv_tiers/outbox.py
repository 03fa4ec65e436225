"""Blocks that other engines fetch, in host memory of a bounded size."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from twostroke.core.errors import ConfigError
from twostroke.core.request import BlockKey
from twostroke.core.step import TierChange
from twostroke.kv_cache.connector import ArrivedBlock, TierInfo
from twostroke.kv_tiers.block_file import BlockKind
from twostroke.kv_tiers.block_wire import (
    WireError,
    hello_of,
    receive,
    receive_keys,
    send_block,
)
from twostroke.kv_tiers.memory_tier import MemoryTier

logger = logging.getLogger(__name__)

# Blocks may be asked for just before they are saved: the answer's first token is quicker.
WAIT_SECONDS = 0.1
SEND_SECONDS = 60.0  # an engine that takes nothing for so long is given up


class Outbox:
    """Implements ``KVConnector``: host memory whose blocks other processes may fetch.

    It listens on a Unix socket that only this user can open.

    Args:
        path: Where the socket is made. What is left there by a process that has ended is replaced.
        kind: What its blocks are; who asks for others is refused.

    Raises:
        ConfigError: It cannot listen there.
    """

    def __init__(self, info: TierInfo, path: Path, kind: BlockKind) -> None:
        self._memory, self._kind = MemoryTier(info), kind
        self._changed = threading.Condition()
        self._path, self._closing = path, False
        self._connections: set[socket.socket] = set()
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            with suppress(FileNotFoundError):
                path.unlink()
            self._listener.bind(str(path))
            path.chmod(0o600)
            self._listener.listen()
        except OSError as error:
            self._listener.close()
            raise ConfigError(
                f"KV blocks cannot be offered at {path}: {error.strerror}",
                hint="give another place",
            ) from error
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
                return
            self._connections.add(connection)
            if self._closing:  # which may not have seen this one
                connection.close()
            threading.Thread(
                target=self._serve, args=(connection,), name="twostroke-kv-sender", daemon=True
            ).start()

    def _serve(self, connection: socket.socket) -> None:
        """Answer one engine until it goes."""
        try:
            with connection:
                hello = hello_of(self._kind)
                is_ours = receive(connection, len(hello)) == hello
                connection.sendall(bytes([is_ours]))
                if not is_ours:
                    logger.error("an engine asks for KV blocks of another model or format")
                    return
                while keys := receive_keys(connection):
                    connection.settimeout(SEND_SECONDS)
                    self._wait_for(keys)
                    for key in keys:
                        send_block(connection, self._find(key))
                    connection.settimeout(None)
        except (OSError, WireError) as error:
            if not self._closing:
                logger.debug("an engine that fetched KV blocks is gone: %s", error)
        finally:
            self._connections.discard(connection)

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
