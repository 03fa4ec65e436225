"""A file of lines that somebody else may still write to, or cut short: read, never mapped.

A mapped file that shrinks ends the process with SIGBUS at the next look; a read comes back short.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

from twostroke.core.errors import ConfigError
from twostroke.core.files import MAX_LINE, open_at_once, reason

_PIECE = 2**22  # bytes that are read at once


class LineFile:
    """Lines by their place in the file, as long as that was when it was opened.

    Attributes:
        size: Bytes.

    Raises:
        ConfigError: It cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = FileIO(path, opener=open_at_once)
        except OSError as error:
            raise self._unreadable(error) from error
        found = os.fstat(self._file.fileno())
        self.size = found.st_size
        if not stat.S_ISREG(found.st_mode):
            self.close()
            raise ConfigError(f"cannot read {path}: it is no regular file", hint="check the path")

    def close(self) -> None:
        self._file.close()

    def read(self, begin: int, end: int) -> bytes:
        """The bytes from ``begin`` to ``end``, which is not included; safe on any thread.

        Raises:
            ConfigError: The file cannot be read, or has been cut short.
        """
        try:
            data = os.pread(self._file.fileno(), end - begin, begin)
            while 0 < len(data) < end - begin:
                more = os.pread(self._file.fileno(), end - begin - len(data), begin + len(data))
                if not more:
                    break
                data += more
        except (OSError, ValueError) as error:  # ValueError: it has been closed
            raise self._unreadable(error) from error
        if len(data) < end - begin:
            message = f"{self._path} has been cut short since it was opened"
            raise ConfigError(message, hint="open it again")
        return data

    def lines(self) -> Iterator[tuple[int, bytes, int, int]]:
        """Each line that is not empty: its place in the file, and where it is in a piece of it.

        Raises:
            ConfigError: See ``read``; or a line is longer than ``MAX_LINE``.
        """
        rest, place = b"", 0  # what is not ended yet, and where it begins in the file
        while place + len(rest) < self.size:
            at = place + len(rest)
            piece = rest + self.read(at, min(self.size, at + _PIECE))
            is_last = place + len(piece) == self.size
            begin = 0
            while begin < len(piece):
                end = piece.find(b"\n", begin)
                if end < 0 and not is_last:
                    break
                end = len(piece) if end < 0 else end
                self._check_length(end - begin)
                if end > begin:
                    yield place + begin, piece, begin, end
                begin = end + 1
            rest, place = piece[begin:], place + min(begin, len(piece))
            self._check_length(len(rest))

    def _check_length(self, length: int) -> None:
        if length > MAX_LINE:
            message = f"{self._path}: a line is longer than {MAX_LINE >> 20} MiB"
            raise ConfigError(message, hint="give a file that was written with --record")

    def _unreadable(self, error: Exception) -> ConfigError:
        why = reason(error) if isinstance(error, OSError) else "it is closed"
        return ConfigError(f"cannot read {self._path}: {why}", hint="check the path")
