"""A SQLite file that one server has for itself, or the same in memory."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from twostroke.core.errors import ConfigError


def open_sqlite(path: str | None, flag: str, version: int, create: str) -> sqlite3.Connection:
    """A connection that only one thread uses at a time.

    Args:
        path: ``None``: in memory.
        flag: The option that names the file.
        version: Version of its tables.
        create: SQL that makes them, also where some are there already.

    Raises:
        ConfigError: The file cannot be opened, is none of ours, or another server has it.
    """
    try:
        if path is not None:
            # No other account of the machine may read what users sent.
            os.close(os.open(Path(path), os.O_RDWR | os.O_CREAT, 0o600))
        connection = sqlite3.connect(
            path or ":memory:", isolation_level=None, check_same_thread=False, timeout=1.0
        )
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        (num_tables,) = connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
        if found != version and not (found == 0 and num_tables == 0):
            connection.close()
            raise ConfigError(
                f"{flag} {path} is not a store of this version of twostroke",
                hint="give another file; a new one is made",
            )
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("BEGIN IMMEDIATE")
        for statement in filter(str.strip, create.split(";")):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {version}")
        connection.execute("COMMIT")
    except (OSError, sqlite3.Error) as error:
        raise ConfigError(
            f"cannot use {flag} {path}: {error}",
            hint="give a file that no other server uses, in a folder that can be written to",
        ) from error
    return connection
