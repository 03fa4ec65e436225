"""Stored batches, beside the files that they read and write."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from twostroke.server.batches.record import KEPT, Api, BatchRecord
from twostroke.server.files.room import NoRoomError
from twostroke.server.files.table import FileTable, StoredFile

# Bytes that a row takes besides what it holds at first: mistakes may be added.
OVERHEAD = 4096
_CREATE = """
CREATE TABLE IF NOT EXISTS batches (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT UNIQUE NOT NULL,
    tenant TEXT NOT NULL,
    api TEXT NOT NULL,
    ended INTEGER NOT NULL,
    forgotten INTEGER NOT NULL,
    size INTEGER NOT NULL,
    record BLOB NOT NULL
)
"""
_INDEX = "CREATE INDEX IF NOT EXISTS batches_by_tenant ON batches (tenant, api, number)"


class BatchTable:
    """The table; on the thread of the files' tables alone.

    Args:
        files: Its room is shared: batches are bytes of their tenants, too.
    """

    def __init__(self, files: FileTable) -> None:
        self._files = files
        self._connection = files.connection
        self._connection.execute(_CREATE)
        self._connection.execute(_INDEX)
        for tenant, size in self._connection.execute("SELECT tenant, size FROM batches").fetchall():
            files.room.count(tenant, size)

    def add(self, record: BatchRecord, outputs: Sequence[StoredFile]) -> None:
        """Store a new batch, and the beginning of the files that it writes.

        Raises:
            NoRoomError: It does not fit; nothing has been stored.
        """
        encoded = msgspec.json.encode(record)
        size = len(encoded) + OVERHEAD
        begun: list[StoredFile] = []
        try:
            for file in outputs:
                self._files.begin(file)
                begun.append(file)
            self._files.room.take(record.tenant, size)
        except NoRoomError:
            for file in begun:
                self._files.delete(file.id)
            raise
        self._connection.execute(
            "INSERT INTO batches (id, tenant, api, ended, forgotten, size, record)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                *(record.id, record.tenant, record.api, record.has_ended),
                *(record.created + KEPT, size, encoded),
            ),
        )

    def update(self, record: BatchRecord) -> None:
        """Store the newer state of a batch."""
        self._connection.execute(
            "UPDATE batches SET record = ?, ended = ? WHERE id = ?",
            (msgspec.json.encode(record), record.has_ended, record.id),
        )

    def get(self, tenant: str, api: Api, batch_id: str) -> BatchRecord | None:
        """A batch of this tenant."""
        records = self._records("id = ? AND tenant = ? AND api = ?", (batch_id, tenant, api))
        return records[0] if records else None

    def page(
        self, tenant: str, api: Api, limit: int, *, after: str | None, before: str | None = None
    ) -> list[BatchRecord]:
        """Batches of this tenant, the newest first: those after ``after``, or right before.

        Raises:
            KeyError: ``after`` or ``before`` is none of them.
        """
        condition, values = "tenant = ? AND api = ?", list[object]((tenant, api))
        for name, sign in ((after, "<"), (before, ">")):
            if name is not None:
                condition += f" AND number {sign} ?"
                values.append(self._number_of(tenant, api, name))
        order = "ASC" if before is not None and after is None else "DESC"
        records = self._records(f"{condition} ORDER BY number {order} LIMIT ?", (*values, limit))
        return records[::-1] if order == "ASC" else records

    def unfinished(self) -> list[BatchRecord]:
        """Batches that have not ended, in the order in which they came."""
        return self._records("NOT ended ORDER BY number", ())

    def delete(self, record: BatchRecord) -> None:
        """Forget a batch; the files that only it knows go with it."""
        own = [record.input_file] if record.api == "messages" else []
        if record.api == "messages" or not record.has_ended:
            own += [record.output_file, record.error_file]
        for file_id in own:
            self._files.delete(file_id)
        query = "SELECT size FROM batches WHERE id = ?"
        row = self._connection.execute(query, (record.id,)).fetchone()
        if row is not None:
            self._connection.execute("DELETE FROM batches WHERE id = ?", (record.id,))
            self._files.room.count(record.tenant, -row[0])

    def delete_expired(self, now: float) -> None:
        """Forget what ended long ago, and files that may be read no longer."""
        for record in self._records("ended AND forgotten <= ?", (int(now),)):
            self.delete(record)
        self._files.delete_expired([record.input_file for record in self.unfinished()])

    def _records(self, condition: str, values: tuple[object, ...]) -> list[BatchRecord]:
        query = f"SELECT record FROM batches WHERE {condition}"
        rows = self._connection.execute(query, values)
        return [msgspec.json.decode(record, type=BatchRecord) for (record,) in rows]

    def _number_of(self, tenant: str, api: Api, batch_id: str) -> int:
        query = "SELECT number FROM batches WHERE id = ? AND tenant = ? AND api = ?"
        row: tuple[int] | None = self._connection.execute(query, (batch_id, tenant, api)).fetchone()
        if row is None:
            raise KeyError(batch_id)
        return row[0]
