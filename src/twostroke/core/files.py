"""Files that a user names: opened without waiting, read within bounds.

A named pipe without a writer would hold up a plain ``open`` for ever, and a device such as
``/dev/zero`` never ends.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, AnyStr

# No model's config, hardware sheet or report comes near.
MAX_FILE_BYTES = 2**26
# A line of a trace or of a recording.
MAX_LINE = 2**24


def open_at_once(path: str | os.PathLike[str], flags: int) -> int:
    """An ``opener`` for ``open``: a pipe without another end is empty, or cannot be written."""
    descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    os.set_blocking(descriptor, True)
    return descriptor


def read_bytes(path: Path, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """A whole file. Raises OSError, also if it is larger than ``max_bytes``."""
    with open(path, "rb", opener=open_at_once) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {max_bytes >> 20} MiB", str(path))
    return data


def read_text(path: Path) -> str:
    """A whole file in UTF-8, without a byte order mark.

    Raises:
        OSError: As ``read_bytes``.
        UnicodeDecodeError: It is in another encoding.
    """
    text = read_bytes(path).decode("utf-8-sig")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def write_text(path: Path, text: str) -> None:
    """Replace a file's contents, in UTF-8. Raises OSError."""
    with open(path, "wb", opener=open_at_once) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def bounded_lines(file: IO[AnyStr]) -> Iterator[AnyStr]:
    """The lines of a file. Raises OSError if one is longer than ``MAX_LINE``."""
    while line := file.readline(MAX_LINE + 1):
        if len(line) > MAX_LINE:
            raise OSError(errno.EFBIG, f"a line is longer than {MAX_LINE >> 20} MiB")
        yield line


def is_folder(path: Path) -> bool:
    """Whether a folder is there; of a name that no file can have: no."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def is_file(path: Path) -> bool:
    """Whether a regular file is there; of a name that no file can have: no."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def reason(error: Exception) -> str:
    """Why a file could not be read, in one line, without the file: the caller names it."""
    message = (isinstance(error, OSError) and error.strerror) or str(error)
    return message.splitlines()[0] if message else type(error).__name__
