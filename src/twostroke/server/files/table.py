"""Stored files in SQLite: a row for each, and a row for each of its parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple

from twostroke.server.files.room import Room
from twostroke.server.sqlite_file import open_sqlite

VERSION = 1
# Bytes that a row takes besides what it holds, roughly.
FILE_OVERHEAD, PART_OVERHEAD = 512, 64
FLAG = "--files-store"
# A file that is being sent belongs to nobody yet; one that grows is written by a batch.
State = Literal["uploading", "growing", "ready"]
_CREATE = """
CREATE TABLE IF NOT EXISTS files (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT UNIQUE NOT NULL,
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    purpose TEXT NOT NULL,
    state TEXT NOT NULL,
    created INTEGER NOT NULL,
    expires INTEGER NOT NULL,
    num_bytes INTEGER NOT NULL,
    size INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS files_by_tenant ON files (tenant, number);
CREATE TABLE IF NOT EXISTS parts (
    file INTEGER NOT NULL,
    part INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (file, part)
);
"""
_COLUMNS = "id, tenant, name, purpose, state, created, expires, num_bytes"


class StoredFile(NamedTuple):
    """What is known of a file; times are Unix seconds."""

    id: str
    tenant: str
    name: str
    purpose: str
    state: State
    created: int
    expires: int
    num_bytes: int = 0


class FilePart(NamedTuple):
    """A piece of a file. Pieces are in the order of their numbers, which may have gaps."""

    number: int
    data: bytes


class FileTable:
    """The tables, for one thread at a time.

    Args:
        path: The file; ``None`` keeps everything in memory.
        max_bytes: Most bytes of all files together.
        clock: Unix seconds.

    Attributes:
        connection: For tables beside these.
        room: What is stored, of these tables and those beside them.

    Raises:
        ConfigError: See ``open_sqlite``.
    """

    def __init__(self, path: str | None, max_bytes: int, clock: Callable[[], float]) -> None:
        self.connection = open_sqlite(path, FLAG, VERSION, _CREATE)
        self._clock = clock
        # Nobody goes on sending what a former server was receiving.
        self._remove_where("state = 'uploading'", (), None)
        self.room = Room(max_bytes, self._sizes())

    def close(self) -> None:
        self.connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All that is written within, or nothing of it. ``room`` is the caller's to put right."""
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self.connection.execute("ROLLBACK")
            raise
        self.connection.execute("COMMIT")

    def begin(self, file: StoredFile) -> None:
        """Add a file without parts.

        Raises:
            NoRoomError: Not even that fits.
        """
        self.room.take(file.tenant, FILE_OVERHEAD)
        places = ", ".join("?" * (len(file) + 1))
        self.connection.execute(
            f"INSERT INTO files ({_COLUMNS}, size) VALUES ({places})", (*file, FILE_OVERHEAD)
        )

    def append(self, file_id: str, parts: Sequence[FilePart]) -> None:
        """Add parts, whose numbers are new.

        Raises:
            NoRoomError: They do not fit; none has been added.
            KeyError: There is no such file any more.
        """
        number, tenant = self._number_of(file_id)
        num_bytes = sum(len(part.data) for part in parts)
        size = num_bytes + PART_OVERHEAD * len(parts)
        self.room.take(tenant, size)
        try:
            with self.transaction():
                rows = ((number, part.number, part.data) for part in parts)
                self.connection.executemany("INSERT INTO parts VALUES (?, ?, ?)", rows)
                self.connection.execute(
                    "UPDATE files SET num_bytes = num_bytes + ?, size = size + ? WHERE number = ?",
                    (num_bytes, size, number),
                )
        except BaseException:
            self.room.count(tenant, -size)
            raise

    def reserve(self, file_id: str, num_bytes: int) -> None:
        """Keep room for what is to be added later.

        Raises:
            NoRoomError: There is not that much room.
        """
        number, tenant = self._number_of(file_id)
        self.room.take(tenant, num_bytes)
        self._resize(number, num_bytes)

    def release(self, file_id: str, num_bytes: int) -> None:
        """Give back room that was kept."""
        number, tenant = self._number_of(file_id)
        self.room.count(tenant, -num_bytes)
        self._resize(number, -num_bytes)

    def settle(self, file_id: str) -> None:
        """Count what a file takes, and nothing that is kept for it."""
        number, tenant = self._number_of(file_id)
        query = (
            "SELECT (SELECT COUNT(*) FROM parts WHERE file = number), num_bytes, size FROM files"
            " WHERE number = ?"
        )
        num_parts, num_bytes, size = self.connection.execute(query, (number,)).fetchone()
        kept = size - (FILE_OVERHEAD + PART_OVERHEAD * num_parts + num_bytes)
        self.room.count(tenant, -kept)
        self._resize(number, -kept)

    def finish(self, file_id: str, name: str, purpose: str, expires: int) -> StoredFile:
        """From now on a file may be read."""
        self.connection.execute(
            "UPDATE files SET state = 'ready', name = ?, purpose = ?, created = ?, expires = ?"
            " WHERE id = ?",
            (name, purpose, self._now(), expires, file_id),
        )
        (file,) = self._files("id = ?", (file_id,))
        return file

    def get(self, tenant: str, file_id: str, purposes: Sequence[str]) -> StoredFile | None:
        """A file of this tenant that may be read."""
        condition = f"id = ? AND tenant = ? AND {_readable(purposes)}"
        files = self._files(condition, (file_id, tenant, self._now(), *purposes))
        return files[0] if files else None

    def page(
        self,
        tenant: str,
        purposes: Sequence[str],
        after: str | None,
        limit: int,
        *,
        newest_first: bool,
    ) -> list[StoredFile]:
        """Files of this tenant that may be read, from the one after ``after`` on.

        Raises:
            KeyError: ``after`` is none of them.
        """
        condition, values = f"tenant = ? AND {_readable(purposes)}", [tenant, self._now()]
        values += purposes
        if after is not None:
            condition += f" AND number {'<' if newest_first else '>'} ?"
            values.append(self._number_of(after, tenant)[0])
        order = "DESC" if newest_first else "ASC"
        return self._files(f"{condition} ORDER BY number {order} LIMIT ?", (*values, limit))

    def read(self, file_id: str, after: int, max_bytes: int) -> list[FilePart]:
        """The parts after number ``after``: the first, and as many as fit into ``max_bytes``."""
        rows = self.connection.execute(
            "SELECT part, data FROM parts"
            " WHERE file = (SELECT number FROM files WHERE id = ?) AND part > ? ORDER BY part",
            (file_id, after),
        )
        parts: list[FilePart] = []
        num_bytes = 0
        for number, data in rows:
            num_bytes += len(data)
            if parts and num_bytes > max_bytes:
                break
            parts.append(FilePart(number, data))
        rows.close()
        return parts

    def part_numbers(self, file_id: str) -> set[int]:
        """The numbers of all parts."""
        query = "SELECT part FROM parts WHERE file = (SELECT number FROM files WHERE id = ?)"
        return {number for (number,) in self.connection.execute(query, (file_id,))}

    def delete(self, file_id: str) -> bool:
        """Delete a file; returns whether there was one."""
        return self._remove_where("id = ?", (file_id,), self.room)

    def delete_expired(self, used: Sequence[str]) -> None:
        """Delete what may be read no longer, but for the files that are named."""
        kept = ", ".join("?" * len(used))
        condition = f"state = 'ready' AND expires <= ? AND id NOT IN ({kept})"
        self._remove_where(condition, (self._now(), *used), self.room)

    def _now(self) -> int:
        return int(self._clock())

    def _files(self, condition: str, values: Sequence[object]) -> list[StoredFile]:
        query = f"SELECT {_COLUMNS} FROM files WHERE {condition}"
        return [StoredFile(*row) for row in self.connection.execute(query, values)]

    def _number_of(self, file_id: str, tenant: str | None = None) -> tuple[int, str]:
        query = "SELECT number, tenant FROM files WHERE id = ?"
        row: tuple[int, str] | None = self.connection.execute(query, (file_id,)).fetchone()
        if row is None or tenant not in (None, row[1]):
            raise KeyError(file_id)
        return row

    def _resize(self, number: int, num_bytes: int) -> None:
        self.connection.execute(
            "UPDATE files SET size = size + ? WHERE number = ?", (num_bytes, number)
        )

    def _remove_where(self, condition: str, values: Sequence[object], room: Room | None) -> bool:
        query = f"SELECT number, tenant, size FROM files WHERE {condition}"
        rows = self.connection.execute(query, values).fetchall()
        for number, tenant, size in rows:
            with self.transaction():
                self.connection.execute("DELETE FROM parts WHERE file = ?", (number,))
                self.connection.execute("DELETE FROM files WHERE number = ?", (number,))
            if room is not None:
                room.count(tenant, -size)
        return bool(rows)

    def _sizes(self) -> Counter[str]:
        rows = self.connection.execute("SELECT tenant, SUM(size) FROM files GROUP BY tenant")
        return Counter(dict(rows))


def _readable(purposes: Sequence[str]) -> str:
    return f"state = 'ready' AND expires > ? AND purpose IN ({', '.join('?' * len(purposes))})"
