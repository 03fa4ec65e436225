"""``twostroke key``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from twostroke.core.errors import ConfigError


def key(name: str, /, *, append: Path | None = None, admin: bool = False) -> None:
    """Make an API key for the client NAME.

    Prints the key, which is shown only this once, and the line by which a server knows it.

    Args:
        name: Whose key it is: letters, digits, dots, hyphens and underscores. Keys of one name are
            one tenant.
        append: Write the line to the end of this file (for `twostroke serve --api-key-file`), and
            print the key alone.
        admin: The key sees the metrics of the server and of all keys, not only of its own.
    """
    from twostroke.gateway.keys import key_line, new_key

    secret = new_key()
    line = key_line(name, secret, admin=admin)
    if append is None:
        print(f"{secret}\n{line}")
        print(
            "the first is for the client, the second for the file of --api-key-file",
            file=sys.stderr,
        )
        return
    _append_line(append, line)
    print(secret)
    print(
        f"{append} has the line for it; a running server reads it at its next start",
        file=sys.stderr,
    )


def _append_line(path: Path, line: str) -> None:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "r+b") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            # A file whose last line was not ended, by hand or by an editor.
            glue = "\n" if file.read(1) not in (b"", b"\n") else ""
            file.write(f"{glue}{line}\n".encode())
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror}", hint="give another file as --append"
        ) from error
