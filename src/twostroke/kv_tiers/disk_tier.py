"""Blocks on disk: written behind by one thread, read ahead by another."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from twostroke.core.errors import ConfigError
from twostroke.core.kv_tier_config import TierChange
from twostroke.core.request import BlockKey
from twostroke.kv_cache.connector import ArrivedBlock, TierInfo
from twostroke.kv_tiers.block_file import BlockFileError
from twostroke.kv_tiers.change_log import ChangeLog
from twostroke.kv_tiers.disk_folder import DiskFolder, explain, key_of_file

logger = logging.getLogger(__name__)

# Memory for blocks that wait to be written, and for those that were read ahead.
MAX_UNWRITTEN, MAX_READ_AHEAD = 256 << 20, 64 << 20
CLOSE_SECONDS = 30.0
# A file system that writes no block for so long is taken for stuck.
STUCK_SECONDS = 5.0


class Place(NamedTuple):
    """Where a block's file is: in which folder of the root, under which name."""

    folder: str
    name: str


class DiskTier:
    """Implements ``KVConnector`` on a folder.

    A block counts as stored as soon as it is taken in: until its file is written it is served from
    memory. What was used least recently is removed first, files of other models included, unless
    the tier is for swap.

    Args:
        info: Its ``keys`` are left empty; ``self.info`` has those that the folder holds.
        folder: Owned by the tier from here on.
        max_bytes: Most bytes of files.
        wake: Set when there is something to fetch.
    """

    def __init__(
        self, info: TierInfo, folder: DiskFolder, max_bytes: int, wake: threading.Event
    ) -> None:
        self._folder, self._max_bytes, self._wake = folder, max_bytes, wake
        self._for_swap, self._block_bytes = info.for_swap, folder.kind.payload_bytes
        self._files: OrderedDict[Place, int] = OrderedDict(  # the least recently used first
            (Place(*place), size) for place, size in folder.found.items()
        )
        self._num_bytes = sum(self._files.values())
        self._unwritten: OrderedDict[bytes, memoryview] = OrderedDict()
        self._doomed: list[Place] = []  # files to be removed
        self._requested: deque[tuple[str, bytes]] = deque()
        self._arrived: deque[ArrivedBlock] = deque()
        self._log = ChangeLog(info.name)
        self._closing = self._warned = self._is_stuck = False
        self._num_written = 0
        self._changed = threading.Condition()
        with self._changed:
            self._evict()
        self._log.take()  # what the folder had too much of was never announced
        self._info = TierInfo(
            name=info.name,
            num_blocks=info.num_blocks,
            block_bytes=info.block_bytes,
            keys=[key_of_file(p.name) for p in self._files if p.folder == folder.name],
            saves_filled=info.saves_filled,
            for_swap=info.for_swap,
        )
        self._threads = [
            threading.Thread(target=target, name=f"twostroke-kv-{info.name}-{what}", daemon=True)
            for what, target in (("writer", self._write_all), ("reader", self._read_all))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def info(self) -> TierInfo:
        return self._info

    def save(self, key: BlockKey, block: memoryview) -> bool:
        assert isinstance(key, bytes)
        with self._changed:
            if key in self._unwritten or self._place(key) in self._files:
                self._touch(key)
                self._log.store(key)
                return True
            if self._for_swap:
                if self._num_bytes + self._unwritten_with_one_more() > self._max_bytes:
                    return False
                self._wait_for_writer()
            if self._closing or not self._may_wait_to_be_written():
                return False
            self._unwritten[key] = block
            self._log.store(key)
            self._changed.notify_all()
        return True

    def load(self, ticket: str, keys: Sequence[BlockKey]) -> None:
        with self._changed:
            for key in keys:
                assert isinstance(key, bytes)
                self._touch(key)
                self._requested.append((ticket, key))
            self._changed.notify_all()

    def arrived(self, limit: int) -> list[ArrivedBlock]:
        with self._changed:
            blocks = [self._arrived.popleft() for _ in range(min(limit, len(self._arrived)))]
            self._changed.notify_all()  # there is room to read on
        return blocks

    def drop(self, keys: Iterable[BlockKey]) -> None:
        with self._changed:
            for key in keys:
                assert isinstance(key, bytes)
                is_there = self._unwritten.pop(key, None) is not None
                if self._forget(self._place(key)) or is_there:
                    self._log.remove(key)

    def changes(self) -> TierChange:
        with self._changed:
            return self._log.take()

    def close(self) -> None:
        """Write what waits, for at most ``CLOSE_SECONDS``."""
        with self._changed:
            self._closing = True
            self._requested.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(CLOSE_SECONDS)
        if not any(thread.is_alive() for thread in self._threads):
            self._folder.close()

    def num_unwritten(self) -> int:
        """Blocks that wait to be written."""
        with self._changed:
            return len(self._unwritten)

    # ---- with the lock held ----------------------------------------------------------------------

    def _unwritten_with_one_more(self) -> int:
        return (len(self._unwritten) + 1) * self._block_bytes

    def _may_wait_to_be_written(self) -> bool:
        return self._unwritten_with_one_more() <= max(MAX_UNWRITTEN, self._block_bytes)

    def _wait_for_writer(self) -> None:
        """A large victim is written while the step waits: to compute it again takes longer, and
        where it does not, ``auto`` sees that in what saving costs."""
        while not (self._closing or self._is_stuck or self._may_wait_to_be_written()):
            end = time.monotonic() + STUCK_SECONDS
            former = self._num_written
            while self._num_written == former and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)
            self._is_stuck = self._num_written == former

    def _place(self, key: BlockKey) -> Place:
        assert isinstance(key, bytes)
        return Place(self._folder.name, f"{key.hex()}.kv")

    def _touch(self, key: BlockKey) -> None:
        place = self._place(key)
        if place in self._files:
            self._files.move_to_end(place)

    def _forget(self, place: Place) -> bool:
        size = self._files.pop(place, None)
        if size is None:
            return False
        self._num_bytes -= size
        self._doomed.append(place)
        self._changed.notify_all()
        return True

    def _evict(self) -> None:
        """Remove files until the rest fits."""
        while self._num_bytes > self._max_bytes and self._files:
            place = next(iter(self._files))
            self._forget(place)
            if place.folder == self._folder.name:
                self._log.remove(key_of_file(place.name))

    # ---- the threads -----------------------------------------------------------------------------

    def _write_all(self) -> None:
        while True:
            with self._changed:
                while not (self._unwritten or self._doomed or self._closing):
                    self._changed.wait(1.0)
                doomed, self._doomed = self._doomed, []
                key, block = next(iter(self._unwritten.items()), (b"", memoryview(b"")))
                is_last = self._closing and not doomed and not key
            for place in doomed:  # before the write: one of them may be saved anew
                self._folder.remove(*place)
            if is_last:
                return
            if not key:
                continue
            try:
                size = self._folder.write(key, block)
            except OSError as error:
                if isinstance(error, FileNotFoundError) and self._restore():
                    continue
                self._warn("a KV block could not be written", error)
                size = 0
            with self._changed:
                # It may have been dropped while it was written, and saved anew with other bytes.
                is_wanted = self._unwritten.get(key) is block
                if is_wanted:
                    del self._unwritten[key]
                if size:
                    self._files[self._place(key)] = size
                    self._num_bytes += size
                if not (size and is_wanted):
                    self._forget(self._place(key))
                    if key not in self._unwritten:
                        self._log.remove(key)
                self._evict()
                self._num_written += 1
                self._is_stuck = False
                self._changed.notify_all()

    def _restore(self) -> bool:
        """Whether the folder had been removed, and is there again, without the blocks in it."""
        try:
            found = self._folder.restore()
        except ConfigError as error:
            self._warn("the folder of KV blocks was removed and cannot be made again", error)
            return False
        if found is None:
            return False
        logger.warning("the folder of KV blocks was removed; it has been made again, empty")
        with self._changed:
            former = self._files
            self._files = OrderedDict((Place(*place), size) for place, size in found.items())
            self._num_bytes = sum(self._files.values())
            for place in former:
                if place.folder == self._folder.name and place not in self._files:
                    key = key_of_file(place.name)
                    if key not in self._unwritten:
                        self._log.remove(key)
        return True

    def _read_all(self) -> None:
        while True:
            with self._changed:
                while not self._closing and not (self._requested and self._may_read_on()):
                    self._changed.wait(1.0)
                if self._closing:
                    return
                ticket, key = self._requested.popleft()
                data = self._unwritten.get(key)
            began = time.perf_counter()
            if data is None:
                data = self._read(key)
            seconds = time.perf_counter() - began
            with self._changed:
                self._arrived.append(ArrivedBlock(ticket, key, data, seconds))
                if data is None:
                    self._forget(self._place(key))
                    self._log.remove(key)
            self._wake.set()

    def _may_read_on(self) -> bool:
        read_ahead = len(self._arrived) * self._block_bytes
        return not self._arrived or read_ahead < MAX_READ_AHEAD

    def _read(self, key: bytes) -> memoryview | None:
        try:
            return self._folder.read(key)
        except FileNotFoundError:
            return None  # evicted since it was asked for
        except (OSError, BlockFileError, ValueError, RecursionError, MemoryError) as error:
            self._warn(f"the KV block {key.hex()} is not used and removed", error)
            return None

    def _warn(self, what: str, error: Exception) -> None:
        """The first time as a warning, then for those who look for it."""
        level = logging.DEBUG if self._warned else logging.WARNING
        logger.log(level, "%s: %s (further ones are logged at debug level)", what, explain(error))
        self._warned = True
