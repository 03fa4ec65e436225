"""The output file: what is finished, and further lines behind it. Every line is whole, or is known
not to be.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from twostroke.batch.lines import ID_PREFIX, BatchOutput, Key
from twostroke.core.errors import ConfigError, EngineError

# How every line that we write begins.
BEGINNING = f'{{"id":"{ID_PREFIX}'.encode()


class Finished(NamedTuple):
    """An answer that is there: the request's id, and whether it is one."""

    id: str
    succeeded: bool


class ResultsFile:
    """Appends answers to a file, which no other run may write meanwhile.

    A run that was killed can leave half a line at the end; it is taken off, so that its request is
    sent again.

    Args:
        overwrite: Empty the file first.

    Attributes:
        finished: The answers in it, by key.

    Raises:
        ConfigError: The file cannot be written, is being written by another run, or holds something
            else.
    """

    def __init__(self, path: Path, *, overwrite: bool = False) -> None:
        self._path = path
        self._failed = False
        try:
            self._file = _open_locked(path)
            try:
                if overwrite:
                    self._file.truncate(0)
                self.finished = self._read()
            except BaseException:
                self._file.close()
                raise
        except OSError as error:
            hint = "give a file in a folder that is there, with -o"
            raise ConfigError(
                f"cannot write {path}: {error.strerror or error}", hint=hint
            ) from error

    def append(self, output: BatchOutput) -> None:
        """Add a line; it is the operating system's when this returns."""
        try:
            self._file.write(msgspec.json.encode(output) + b"\n")
            self._file.flush()
        except OSError as error:
            self._failed = True
            hint = "make room; the same command goes on where this run ended"
            raise EngineError(
                f"cannot write {self._path}: {error.strerror or error}", hint=hint
            ) from error
        self.finished[output.key] = Finished(output.id, output.succeeded)

    def reconcile(self, wanted: Mapping[Key, str], *, retry_failed: bool) -> None:
        """Forget failures of requests that have been changed since, or of all.

        Args:
            wanted: Key and id of each request.

        Raises:
            ConfigError: A request that was answered has been changed; or the answer is one to
                another batch.
        """
        again: set[Key] = set()
        for key, (request_id, succeeded) in self.finished.items():
            if key not in wanted:
                continue
            if succeeded and wanted[key] != request_id:
                raise ConfigError(
                    f"{self._path} answers another request under the custom_id {key!r}",
                    hint="give another file with -o, or --overwrite to start anew",
                )
            if not succeeded and (retry_failed or wanted[key] != request_id):
                again.add(key)
        if again:
            self._remove(again)

    def close(self) -> None:
        try:
            self._file.close()
        except OSError:
            # Closing writes what is left once more; that it cannot be written has been said.
            if not self._failed:
                raise

    def _read(self) -> dict[Key, Finished]:
        finished: dict[Key, Finished] = {}
        end = 0
        for number, line in enumerate(self._lines(), 1):
            try:
                output = msgspec.json.decode(line, type=BatchOutput)
                finished[output.key] = Finished(output.id, output.succeeded)
            except (msgspec.DecodeError, ValueError) as error:
                if not line.endswith(b"\n") and line.startswith(BEGINNING[: len(line)]):
                    self._file.truncate(end)
                    break
                hint = "give another file with -o, or --overwrite to lose what it holds"
                raise ConfigError(
                    f"{self._path}, line {number}, is no line of batch output", hint=hint
                ) from error
            end += len(line)
            if not line.endswith(b"\n"):
                self._file.seek(0, os.SEEK_END)
                self._file.write(b"\n")
        self._file.seek(0, os.SEEK_END)
        return finished

    def _lines(self) -> Iterator[bytes]:
        self._file.seek(0)
        yield from iter(self._file.readline, b"")

    def _remove(self, keys: Collection[Key]) -> None:
        """Write the file anew without some lines; it is never half there."""
        beside = self._path.with_name(f".{self._path.name}.new")
        old, new = self._file, _open_locked(beside)
        new.truncate(0)
        for line in self._lines():
            if msgspec.json.decode(line, type=BatchOutput).key not in keys:
                new.write(line)
        new.flush()
        # The lock goes with the new file, which has it before it takes the old one's name.
        beside.replace(self._path)
        self._file = new
        old.close()
        for key in keys:
            del self.finished[key]


def _open_locked(path: Path) -> BinaryIO:
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise ConfigError(
            f"another run writes {path}", hint="wait for it, or give another file with -o"
        ) from error
    return file
