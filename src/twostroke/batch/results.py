"""The output file of a batch: the answers in it, and those that a run appends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from twostroke.batch.lines import ID_PREFIX, BatchOutput, Key
from twostroke.core.errors import ConfigError, EngineError

# How each line begins that a run writes.
BEGINNING = f'{{"id":"{ID_PREFIX}'.encode()


class Finished(NamedTuple):
    """A line of the output file: its request's id, and whether the request succeeded."""

    id: str
    succeeded: bool


class ResultsFile:
    """Appends answers to a file, which is locked against other runs.

    A run that was killed can leave half a line at the end. It is removed, so that its request is
    sent again.

    Args:
        overwrite: Empty the file first.

    Attributes:
        finished: The lines in it, by key.

    Raises:
        ConfigError: The file cannot be written, another run writes it, or it is no batch output.
    """

    def __init__(self, path: Path, *, overwrite: bool = False) -> None:
        self._path = path
        self._write_failed = False
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
        """Add a line; when this returns, the operating system has it."""
        try:
            self._file.write(msgspec.json.encode(output) + b"\n")
            self._file.flush()
        except OSError as error:
            self._write_failed = True
            raise self._write_error(error) from error
        self.finished[output.key] = Finished(output.id, output.succeeded)

    def reconcile(self, request_ids: Mapping[Key, str], *, retry_failed: bool) -> None:
        """Remove failures whose request has changed since, so that it is sent again.

        Args:
            request_ids: The id of each request of the batch, by key.
            retry_failed: Remove the failures of unchanged requests too.

        Raises:
            ConfigError: A request has changed that was answered, or the file is another batch's.
            EngineError: The file cannot be replaced; it is as it was.
        """
        outdated: set[Key] = set()
        for key, (request_id, succeeded) in self.finished.items():
            if key not in request_ids:
                continue
            changed = request_ids[key] != request_id
            if succeeded and changed:
                raise ConfigError(
                    f"{self._path} answers another request under the custom_id {key!r}",
                    hint="give another file with -o, or --overwrite to start anew",
                )
            if not succeeded and (retry_failed or changed):
                outdated.add(key)
        if outdated:
            try:
                self._remove(outdated)
            except OSError as error:
                raise self._write_error(error) from error

    def _write_error(self, error: OSError) -> EngineError:
        hint = "make room; the same command goes on where this run ended"
        return EngineError(f"cannot write {self._path}: {error.strerror or error}", hint=hint)

    def close(self) -> None:
        try:
            self._file.close()
        except OSError:
            # Closing tries once more to write what could not be written, which append has raised.
            if not self._write_failed:
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
        """Replace the file by one without some lines; it is complete at any time."""
        # A name that cannot be foreseen, opened only if it is new: a link there is not followed.
        new_path = self._path.with_name(f".batch-{secrets.token_hex(8)}.new")
        old, new = self._file, _open_locked(new_path, os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            for line in self._lines():
                if msgspec.json.decode(line, type=BatchOutput).key not in keys:
                    new.write(line)
            new.flush()
            os.fchmod(new.fileno(), stat.S_IMODE(os.fstat(old.fileno()).st_mode))
            # The new file is locked before it takes the old one's name.
            new_path.replace(self._path)
        except BaseException:
            new_path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # closing writes what could not be written
                new.close()
            raise
        self._file = new
        old.close()
        for key in keys:
            del self.finished[key]


def _open_locked(path: Path, flags: int = 0, mode: int = 0o666) -> BinaryIO:
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | flags, mode), "r+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise ConfigError(
            f"another run writes {path}", hint="wait for it, or give another file with -o"
        ) from error
    return file
