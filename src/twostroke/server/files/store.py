"""Stored files beside the event loop: one thread has the tables, and works in order."""

from __future__ import annotations

import asyncio
import sqlite3
import time
import uuid
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from twostroke.core.errors import EngineError
from twostroke.server.files.room import NoRoomError
from twostroke.server.files.table import FilePart, FileTable, StoredFile
from twostroke.server.http.errors import FilesFullError

T = TypeVar("T")
# Bytes of one part, and about as many as are read at once.
PART_BYTES, READ_BYTES = 2**16, 2**18


class FileStore:
    """What the routes see of the tables.

    Args:
        path: The file; ``None`` keeps everything in memory.
        max_bytes: Most bytes of all files together.
        clock: Unix seconds.

    Raises:
        ConfigError: See ``FileTable``.
    """

    def __init__(
        self, path: str | None, max_bytes: int, clock: Callable[[], float] = time.time
    ) -> None:
        self.table = FileTable(path, max_bytes, clock)
        self.clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="twostroke-files")

    async def close(self) -> None:
        """Finish what was asked for, and let go of the file."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self.table.close)
        self._thread.shutdown()

    async def run(self, work: Callable[[FileTable], T]) -> T:
        """What ``work`` returns, which runs on the store's thread.

        Raises:
            FilesFullError: There is no room for what it stores.
            EngineError: The disk is full, or does not work.
        """
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, work, self.table)
        except NoRoomError as error:
            raise files_full(error) from error
        except sqlite3.Error as error:
            raise EngineError(
                f"the store of files cannot be used: {error}", hint="make room on the disk"
            ) from error

    async def contents(self, file_id: str) -> AsyncIterator[bytes]:
        """The bytes of a file in order, as far as it is there, in pieces."""
        after = -1
        while parts := await self.read(file_id, after):
            after = parts[-1].number
            yield b"".join(part.data for part in parts)

    async def read(self, file_id: str, after: int) -> list[FilePart]:
        """The next parts of a file, see ``FileTable.read``."""
        return await self.run(lambda files: files.read(file_id, after, READ_BYTES))


class FileWriter:
    """Writes a new file, part by part; what comes is held until there is enough for a part."""

    def __init__(self, store: FileStore, file_id: str) -> None:
        self._store = store
        self._file_id = file_id
        self._held = bytearray()
        self._num_parts = 0

    @classmethod
    async def begin(cls, store: FileStore, tenant: str) -> FileWriter:
        """A writer of a file that nobody can read before ``end``."""
        file_id, now = f"file-{uuid.uuid4().hex}", int(store.clock())
        file = StoredFile(file_id, tenant, "", "", "uploading", created=now, expires=now)
        await store.run(lambda files: files.begin(file))
        return cls(store, file_id)

    async def write(self, data: bytes) -> None:
        """Add bytes.

        Raises:
            FilesFullError: There is no room for them.
        """
        self._held += data
        if len(self._held) >= PART_BYTES:
            await self._flush()

    async def end(self, name: str, purpose: str, expires: int) -> StoredFile:
        """Make it a file that can be read."""
        await self._flush()
        return await self._store.run(
            lambda files: files.finish(self._file_id, name, purpose, expires)
        )

    async def discard(self) -> None:
        """Forget it, whatever has been written."""
        with suppress(RuntimeError):  # the store is closed: then the next server forgets it
            await self._store.run(lambda files: files.delete(self._file_id))

    async def _flush(self) -> None:
        if self._held:
            part, self._held = FilePart(self._num_parts, bytes(self._held)), bytearray()
            self._num_parts += 1
            await self._store.run(lambda files: files.append(self._file_id, [part]))


def files_full(error: NoRoomError) -> FilesFullError:
    """The error in words for the client."""
    whose = f", {error.stored} of them this key's, which may take half of what others leave"
    return FilesFullError(
        f"there is no room for more: files take {error.total} of {error.limit} bytes"
        + whose * bool(error.tenant),
        hint="delete files or batches, or start the server with a larger --files-store-size",
    )
