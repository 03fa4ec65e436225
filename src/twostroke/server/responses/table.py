"""Stored responses in SQLite: one table, a bound on its bytes, and a lock on its file.

Where it is full, the key that holds most loses what it has not used for longest: no key pushes out
what other keys stored by storing much.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from twostroke.server.responses import items_index
from twostroke.server.sqlite_file import open_sqlite

VERSION = 1
ROW_OVERHEAD = 512  # bytes that a row takes besides what it holds, roughly
MAX_CHAIN = 8192
MAX_SHARE = 4  # one response may take this part of the room
_CREATE = """
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    previous TEXT,
    used INTEGER NOT NULL,
    size INTEGER NOT NULL,
    ended INTEGER NOT NULL,
    response BLOB NOT NULL,
    input BLOB NOT NULL,
    events BLOB
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_use ON responses (tenant, used);
"""
_CHAIN = """
WITH RECURSIVE chain (id, previous, size, depth) AS (
    SELECT id, previous, size, 1 FROM responses WHERE tenant = :tenant AND id = :id
    UNION ALL
    SELECT r.id, r.previous, r.size, depth + 1
    FROM responses r JOIN chain c ON r.id = c.previous
    WHERE r.tenant = :tenant AND depth < :limit
) SELECT id, previous, size FROM chain ORDER BY depth
"""


class StoredResponse(NamedTuple):
    """One response as it is stored.

    Attributes:
        tenant: The tenant that stored it.
        previous: The response that it goes on from.
        ended: Whether it is final.
        response: JSON of the response object.
        input: JSON of the list of its own input items.
        events: Its server-sent events, if it may be streamed again.
    """

    id: str
    tenant: str
    previous: str | None
    ended: bool
    response: bytes
    input: bytes
    events: bytes | None = None


class StoredTurn(NamedTuple):
    """What one response adds to a conversation: items as lists of JSON objects."""

    input: list[dict[str, Any]]
    output: list[dict[str, Any]]


class BrokenChainError(Exception):
    """A response of a conversation is not stored (any more).

    Args:
        missing: Its id.
    """

    def __init__(self, missing: str) -> None:
        super().__init__(missing)
        self.missing = missing


class ChainTooLongError(Exception):
    """A conversation is longer than any that is put together again."""


class ResponseTable:
    """The table, for one thread at a time.

    Args:
        path: The file; ``None`` keeps everything in memory.
        max_bytes: Most bytes of all rows together.

    Raises:
        ConfigError: The file cannot be opened, is none of ours, or another server has it.
    """

    def __init__(self, path: str | None, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        create = _CREATE + items_index.CREATE
        self._connection = open_sqlite(path, "--responses-store", VERSION, create)
        rows = self._connection.execute("SELECT tenant, SUM(size) FROM responses GROUP BY tenant")
        self._sizes: Counter[str] = Counter(dict(rows))
        (last,) = self._connection.execute("SELECT MAX(used) FROM responses").fetchone()
        self._clock: int = last or 0
        self._evict(newest="")

    @property
    def num_bytes(self) -> int:
        """Bytes of all rows together."""
        return self._sizes.total()

    def close(self) -> None:
        self._connection.close()

    def put(self, stored: StoredResponse, *, or_keep: bool = False) -> bool:
        """Store a response, or its newer state; returns whether there was room for it.

        Args:
            or_keep: Without room the older state stays.
        """
        events = None if stored.events is None else zlib.compress(stored.events, 1)
        ids = items_index.item_ids(stored.response, stored.input)
        size = len(stored.response) + len(stored.input) + len(events or b"") + ROW_OVERHEAD
        size += len(ids) * items_index.ITEM_OVERHEAD
        fits = size <= self._max_bytes // MAX_SHARE
        if fits or not or_keep:
            self._remove(self._sizes_of("id = ?", stored.id))
        if not fits:
            return False
        row = (stored.id, stored.tenant, stored.previous, self._tick(), size, stored.ended)
        self._connection.execute(
            "INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*row, stored.response, stored.input, events),
        )
        items_index.add(self._connection, stored.tenant, stored.id, ids)
        self._sizes[stored.tenant] += size
        self._evict(newest=stored.id)
        return True

    def get(self, tenant: str, response_id: str) -> StoredResponse | None:
        """A response of this tenant."""
        row = self._connection.execute(
            "SELECT id, tenant, previous, ended, response, input, events FROM responses"
            " WHERE id = ? AND tenant = ?",
            (response_id, tenant),
        ).fetchone()
        if row is None:
            return None
        stored = StoredResponse(*row)
        events = None if stored.events is None else zlib.decompress(stored.events)
        return stored._replace(ended=bool(stored.ended), events=events)

    def delete(self, tenant: str, response_id: str) -> bool:
        """Delete a response of this tenant; returns whether there was one."""
        return self._remove(self._sizes_of("id = ? AND tenant = ?", response_id, tenant)) > 0

    def chain(self, tenant: str, response_id: str, max_bytes: int) -> list[StoredTurn]:
        """The conversation up to a response, oldest first; all of it counts as used now.

        Raises:
            BrokenChainError: It, or one before it, is not stored for this tenant.
            ChainTooLongError: It takes more than ``max_bytes``, or ``MAX_CHAIN`` responses.
        """
        arguments = {"tenant": tenant, "id": response_id, "limit": MAX_CHAIN + 1}
        links = self._connection.execute(_CHAIN, arguments).fetchall()
        if len(links) > MAX_CHAIN or sum(size for _, _, size in links) > max_bytes:
            raise ChainTooLongError
        if not links or links[-1][1] is not None:
            raise BrokenChainError(links[-1][1] if links else response_id)
        turns = []
        now = self._tick()
        for name, _, _ in reversed(links):
            given, response = self._connection.execute(
                "SELECT input, response FROM responses WHERE id = ?", (name,)
            ).fetchone()
            output = msgspec.json.decode(response)["output"]
            turns.append(StoredTurn(msgspec.json.decode(given), output))
            self._connection.execute("UPDATE responses SET used = ? WHERE id = ?", (now, name))
        return turns

    def items(self, tenant: str, ids: Iterable[str], max_bytes: int) -> dict[str, dict[str, Any]]:
        """Items of this tenant's stored responses by their ids, see ``items_index.find``."""
        return items_index.find(self._connection, tenant, ids, max_bytes)

    def unfinished(self) -> list[StoredResponse]:
        """Responses that were running when their server ended."""
        rows = self._connection.execute("SELECT tenant, id FROM responses WHERE NOT ended")
        responses = [self.get(tenant, name) for tenant, name in rows.fetchall()]
        return [stored for stored in responses if stored is not None]

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def _sizes_of(self, condition: str, *values: str) -> list[tuple[str, str, int]]:
        query = f"SELECT id, tenant, size FROM responses WHERE {condition}"
        return self._connection.execute(query, values).fetchall()

    def _remove(self, rows: Iterable[tuple[str, str, int]]) -> int:
        num_removed = 0
        for name, tenant, size in rows:
            self._connection.execute("DELETE FROM responses WHERE id = ?", (name,))
            items_index.forget(self._connection, name)
            self._sizes[tenant] -= size
            num_removed += 1
        return num_removed

    def _evict(self, newest: str) -> None:
        while self._sizes.total() > self._max_bytes:
            held = self._sizes - Counter(dict(self._share(newest)))
            ((tenant, _),) = held.most_common(1)
            oldest = "tenant = ? AND id != ? ORDER BY used, id LIMIT 1"
            self._remove(self._sizes_of(oldest, tenant, newest))

    def _share(self, newest: str) -> list[tuple[str, int]]:
        """The tenant and size of the row that has just come, and is to stay."""
        return [(tenant, size) for _, tenant, size in self._sizes_of("id = ?", newest)]
