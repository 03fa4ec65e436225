"""Which stored response holds an item, so that requests can refer to items by their ids."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any

import msgspec

# Made anew where a file has none: items that are older than it are not found.
CREATE = """
CREATE TABLE IF NOT EXISTS items (
    tenant TEXT NOT NULL, item TEXT NOT NULL, response TEXT NOT NULL,
    PRIMARY KEY (tenant, item)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS items_by_response ON items (response);
"""
ITEM_OVERHEAD = 192  # bytes that an entry takes, roughly


class _Item(msgspec.Struct):
    id: str | None = None


class _Output(msgspec.Struct):
    output: list[_Item] = []


def item_ids(response: bytes, given: bytes) -> list[str]:
    """The ids of a response's items, output and input, as it is stored."""
    items = msgspec.json.decode(response, type=_Output).output
    items += msgspec.json.decode(given, type=list[_Item])
    return [item.id for item in items if item.id]


def add(connection: sqlite3.Connection, tenant: str, response: str, ids: Iterable[str]) -> None:
    """Note where items are; of equal ids the last one stored counts."""
    rows = [(tenant, item, response) for item in ids]
    connection.executemany("INSERT OR REPLACE INTO items VALUES (?, ?, ?)", rows)


def forget(connection: sqlite3.Connection, response: str) -> None:
    """Forget a response's items."""
    connection.execute("DELETE FROM items WHERE response = ?", (response,))


class TooMuchToReadError(Exception):
    """The items lie in responses that are too large together."""


def find(
    connection: sqlite3.Connection, tenant: str, ids: Iterable[str], max_bytes: int
) -> dict[str, dict[str, Any]]:
    """Items of a tenant by their ids, those that are stored.

    Raises:
        TooMuchToReadError: Their responses have more than ``max_bytes``.
    """
    wanted = set(ids)
    num_bytes = 0
    found: dict[str, dict[str, Any]] = {}
    for item in sorted(wanted):
        row = connection.execute(
            "SELECT response, input FROM responses WHERE tenant = :tenant AND id ="
            " (SELECT response FROM items WHERE tenant = :tenant AND item = :item)",
            {"tenant": tenant, "item": item},
        ).fetchone()
        if row is None or item in found:
            continue
        num_bytes += len(row[0]) + len(row[1])
        if num_bytes > max_bytes:
            raise TooMuchToReadError
        held = msgspec.json.decode(row[1]) + msgspec.json.decode(row[0]).get("output", [])
        found |= {each["id"]: each for each in held if each.get("id") in wanted}
    return found
