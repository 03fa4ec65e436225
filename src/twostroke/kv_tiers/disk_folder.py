"""A folder of KV blocks on disk: who owns it, what lies in it, and how its files are touched.

Layout: ``lock``; one folder for each kind of block, named after a hash of it; in it a file for each
block, named after its key. A file appears under its name when it is complete. Whatever happens to
the process, a file is complete, or has no name that anybody reads. Nothing follows a link inside.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import re
import secrets
import stat
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from twostroke.core.errors import ConfigError
from twostroke.core.files import is_file, reason
from twostroke.kv_tiers.block_file import (
    KEY_BYTES,
    BlockFileError,
    BlockKind,
    decode_block,
    encode_head,
)

logger = logging.getLogger(__name__)

_BLOCK_NAME = re.compile(rf"[0-9a-f]{{{2 * KEY_BYTES}}}([0-9a-f]{{2}}){{0,4}}\.kv")
_KIND_NAME = re.compile(r"[0-9a-f]{32}")
_TEMPORARY = ".part"
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


# Files as (folder, name), with their bytes; least recently used first.
Found = OrderedDict[tuple[str, str], int]


class _Descriptors(NamedTuple):
    """Descriptors of the folder, its lock file, and its subfolder for one kind of block."""

    root: int
    lock: int
    folder: int


class DiskFolder:
    """Opens, and owns from then on, ``path``.

    Args:
        path: Made if it is not there, for this user only.
        kind: The blocks that are kept; files of other kinds count and may be evicted, no more.
        flag: Which flag names the folder, for error messages.

    Attributes:
        file_bytes: Length of each block's file.
        found: The files at the start; folders are relative to ``path``.

    Raises:
        ConfigError: It cannot be made or opened, or another process owns it.
    """

    def __init__(self, path: Path, kind: BlockKind, flag: str = "--kv-disk") -> None:
        self.kind = kind
        self.file_bytes = kind.file_bytes
        self.name = hashlib.blake2b(repr(tuple(kind)).encode(), digest_size=16).hexdigest()
        self._path, self._flag = path.absolute(), flag
        self._held = _open(self._path, flag, self.name)
        try:
            self.found = self._look()
        except ConfigError:
            self._close_descriptors()
            raise

    def restore(self) -> Found | None:
        """Make the folder again if it was removed while it is in use.

        Returns:
            What lies there now; ``None`` where nothing was removed.

        Raises:
            ConfigError: It cannot be made, or another process or user has done so.
        """
        with contextlib.suppress(OSError):
            there = (self._path / self.name).stat(follow_symlinks=False)
            if os.path.samestat(there, os.fstat(self._held.folder)):
                return None
        opened = _open(self._path, self._flag, self.name, self._held)
        # The numbers stay, so that a thread that is using them goes on in the new folder.
        for fresh, held in zip(opened, self._held, strict=True):
            os.dup2(fresh, held, inheritable=False)
            os.close(fresh)
        return self._look()

    def _look(self) -> Found:
        try:
            return OrderedDict(self._scan())
        except OSError as error:
            raise ConfigError(
                f"{self._flag} {self._path}: {reason(error)}", hint="give a folder of its own"
            ) from error

    # ---- files -----------------------------------------------------------------------------------

    def write(self, key: bytes, payload: memoryview) -> int:
        """Write a block's file. Returns its bytes. Raises OSError; then there is no file."""
        # A name that nobody can have put there before, be it as a link.
        temporary = f"{key.hex()}-{secrets.token_hex(8)}{_TEMPORARY}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE_FLAGS
        descriptor = os.open(temporary, flags, 0o600, dir_fd=self._held.folder)
        try:
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                for part in (encode_head(self.kind, key, crc32(payload)), payload):
                    left = memoryview(part)
                    while left:
                        left = left[file.write(left) :]
            os.rename(
                temporary,
                _file_name(key),
                src_dir_fd=self._held.folder,
                dst_dir_fd=self._held.folder,
            )
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=self._held.folder)
            raise
        return self.file_bytes

    def read(self, key: bytes) -> memoryview:
        """A block's payload; the file counts as just used.

        Raises:
            OSError: There is no such file, or it cannot be read.
            BlockFileError: It is not that block.
        """
        descriptor = os.open(_file_name(key), os.O_RDONLY | _FILE_FLAGS, dir_fd=self._held.folder)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            data = bytearray(self.file_bytes + 1)
            length = 0
            while count := file.readinto(memoryview(data)[length:]):
                length += count
            payload = decode_block(memoryview(data)[:length], self.kind, key)
            with contextlib.suppress(OSError):
                os.utime(descriptor)
        return payload

    def remove(self, folder: str, name: str) -> None:
        """Remove a file of ``found``, or one that was written since; nothing happens without it."""
        with contextlib.suppress(OSError):
            if folder == self.name:
                os.unlink(name, dir_fd=self._held.folder)
                return
            other = os.open(folder, _FOLDER_FLAGS, dir_fd=self._held.root)
            try:
                os.unlink(name, dir_fd=other)
            finally:
                os.close(other)

    def close(self) -> None:
        """Give the folder up."""
        self._close_descriptors()

    def _close_descriptors(self) -> None:
        for descriptor in reversed(self._held):  # the lock after the folder
            os.close(descriptor)

    # ---- what lies there at the start ------------------------------------------------------------

    def _scan(self) -> list[tuple[tuple[str, str], int]]:
        entries = []
        num_other = num_broken = 0
        with os.scandir(self._held.root) as folders:
            names = sorted(entry.name for entry in folders)
        for folder in names:
            if not _KIND_NAME.fullmatch(folder):
                continue
            for name, status in self._files_of(folder):
                if name.endswith(_TEMPORARY):
                    self.remove(folder, name)  # nobody writes it: the lock is ours
                elif not (stat.S_ISREG(status.st_mode) and _BLOCK_NAME.fullmatch(name)):
                    continue
                elif folder == self.name and status.st_size != self.file_bytes:
                    self.remove(folder, name)
                    num_broken += 1
                else:
                    num_other += folder != self.name
                    entries.append((status.st_mtime_ns, (folder, name), status.st_size))
        if num_other or num_broken:
            logger.warning(
                "%s: %d blocks of other models are ignored, %d broken ones removed",
                self._path,
                num_other,
                num_broken,
            )
        return [(place, size) for _, place, size in sorted(entries)]

    def _files_of(self, folder: str) -> Iterator[tuple[str, os.stat_result]]:
        try:
            descriptor = os.open(folder, _FOLDER_FLAGS, dir_fd=self._held.root)
        except OSError:
            return
        try:
            with os.scandir(descriptor) as files:
                for file in files:
                    with contextlib.suppress(OSError):
                        yield file.name, file.stat(follow_symlinks=False)
        finally:
            os.close(descriptor)


def _open(path: Path, flag: str, name: str, held: _Descriptors | None = None) -> _Descriptors:
    """Make what is not there, lock it and open it.

    Args:
        held: Those that it takes the place of; what they have locked stays so.
    """
    with contextlib.ExitStack() as opened:

        def own(descriptor: int) -> int:
            opened.callback(os.close, descriptor)
            return descriptor

        try:
            if is_file(path):
                raise ConfigError(f"{flag} {path} is a file", hint="give a folder")
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            root = own(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            _warn_of_other_writers(os.fstat(root), path, flag)
            if held is not None and os.fstat(held.root).st_uid != os.fstat(root).st_uid:
                raise ConfigError(f"{flag} {path} belongs to another user now", hint="remove it")
            lock = own(os.open("lock", os.O_RDWR | os.O_CREAT | _FILE_FLAGS, 0o600, dir_fd=root))
            if held is not None and os.path.samestat(os.fstat(held.lock), os.fstat(lock)):
                os.dup2(held.lock, lock, inheritable=False)  # the file is locked by that one
            else:
                _take(lock, path, flag)
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, mode=0o700, dir_fd=root)
            folder = own(os.open(name, _FOLDER_FLAGS, dir_fd=root))
        except OSError as error:
            forbidden = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
            which = "that this user may write" if forbidden else "of its own"
            raise ConfigError(
                f"{flag} {path}: {reason(error)}", hint=f"give a folder {which}"
            ) from error
        opened.pop_all()
    return _Descriptors(root, lock, folder)


def _take(lock: int, path: Path, flag: str) -> None:
    """Lock the folder's lock file for this process, which ends with the descriptor."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.read(lock, 32).decode("ascii", "replace").strip()
        raise ConfigError(
            f"{flag} {path} is in use by another process" + (f" ({owner})" if owner else ""),
            hint="end that process, or give each process a folder of its own",
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"pid {os.getpid()}\n".encode(), 0)


def _warn_of_other_writers(status: os.stat_result, path: Path, flag: str) -> None:
    """Checksums show accidents: who may write here can put blocks of his own under a key."""
    if status.st_uid not in (os.getuid(), 0) or status.st_mode & 0o022:
        logger.warning(
            "%s %s: other users may write here, and so change what the model has read;"
            " take their rights away (chmod go-w) or give a folder of your own",
            flag,
            path,
        )


def _file_name(key: bytes) -> str:
    return f"{key.hex()}.kv"


def key_of_file(name: str) -> bytes:
    """The inverse of the name that a block's file has."""
    return bytes.fromhex(name.removesuffix(".kv"))


def explain(error: Exception) -> str:
    """What a log says of a file that could not be used."""
    return str(error) if isinstance(error, BlockFileError) else reason(error)
