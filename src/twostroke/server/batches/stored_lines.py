"""The lines of a stored file: read in pieces, checked before a batch begins."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from twostroke.batch.lines import BYTE_ORDER_MARK, BadLine, GoodLine, parse_line
from twostroke.server.batches.record import MAX_MISTAKES, BatchRecord
from twostroke.server.files.store import FileStore

MAX_LINES = 100_000  # of a batch; blank ones count as far as there are as many of them
MAX_CUSTOM_ID = 512  # characters
# What is said of a request that is left unanswered, besides its custom_id.
UNANSWERED_BYTES = 384
# Beside the body, whose size is the server's limit for all bodies.
MARGIN = 2**12


class RawLine(NamedTuple):
    """A line as it was written; ``text`` is ``None`` if it is longer than allowed."""

    number: int
    text: bytes | None


class LineSplitter:
    """Cuts a text that comes in pieces into lines; blank ones are skipped but counted.

    Args:
        max_bytes: Limit of a line; what is beyond is never held.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._begun = bytearray()
        self._too_long = False
        self._number = 0

    def feed(self, piece: bytes) -> Iterator[RawLine]:
        """The lines that end in a piece."""
        *ended, begun = piece.split(b"\n")
        for text in ended:
            self._add(text)
            yield from self.end()
        self._add(begun)

    def end(self) -> Iterator[RawLine]:
        """The line that has begun, which ends here."""
        self._number += 1
        text, self._begun = bytes(self._begun), bytearray()
        too_long, self._too_long = self._too_long, False
        if self._number == 1:
            text = text.removeprefix(BYTE_ORDER_MARK)
        if too_long or (text := text.strip()) or self._number > 2 * MAX_LINES:
            yield RawLine(self._number, None if too_long else text)

    def _add(self, text: bytes) -> None:
        self._too_long = self._too_long or len(self._begun) + len(text) > self._max_bytes
        if self._too_long:
            self._begun = bytearray()
        else:
            self._begun += text


async def stored_lines(store: FileStore, file_id: str, max_bytes: int) -> AsyncIterator[RawLine]:
    """The lines of a file that has been checked, in order."""
    splitter = LineSplitter(max_bytes)
    async for piece in store.contents(file_id):
        for line in splitter.feed(piece):
            yield line
    for line in splitter.end():
        yield line


def digest_of(custom_id: str) -> bytes:
    """What tells custom_ids from each other; a hundred thousand of them take little room."""
    return blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=12).digest()


class LineChecks:
    """Checks the lines of one batch, and counts them.

    Attributes:
        total: How many there are.
        unanswered_bytes: What has to be written if none is answered.
        failed: Whether there is no need to look any further.
    """

    def __init__(self, record: BatchRecord, max_bytes: int) -> None:
        self._record = record
        self._max_bytes = max_bytes
        self._numbers: dict[bytes, int] = {}  # of lines, by a digest of their custom_id
        self.total = 0
        self.unanswered_bytes = 0
        self.failed = False

    def check(self, lines: Iterable[RawLine]) -> None:
        """Look at some lines; mistakes are noted in the record."""
        for number, text in lines:
            self.total += 1
            if self.total > MAX_LINES or number > 2 * MAX_LINES:
                message = f"the file has more than {MAX_LINES} requests, or as many blank lines"
                self._record.note("too_many_lines", message, number)
                self.failed = True
            elif text is None:
                message = f"line {number} is longer than {self._max_bytes} bytes"
                self._record.note("line_too_long", message, number)
            else:
                self._check_line(parse_line(text, number))
            self.failed = self.failed or len(self._record.mistakes) >= MAX_MISTAKES
            if self.failed:
                return

    def end(self) -> None:
        """All lines have been looked at."""
        if not self.total:
            self._record.note("empty_file", "the file holds no requests")

    def _check_line(self, line: GoodLine | BadLine) -> None:
        number = line.number
        if isinstance(line, BadLine):
            self._record.note("invalid_line", line.message, number)
            return
        name = line.custom_id
        self.unanswered_bytes += len(msgspec.json.encode(name)) + UNANSWERED_BYTES
        if line.url != self._record.url:
            message = (
                f"line {number}: url is {line.url}, and the batch's endpoint {self._record.url}"
            )
            self._record.note("mismatched_url", message, number)
        if len(name) > MAX_CUSTOM_ID:
            message = f"line {number}: custom_id has more than {MAX_CUSTOM_ID} characters"
            self._record.note("invalid_line", message, number)
        elif (same := self._numbers.get(digest_of(name))) is not None:
            message = f"lines {same} and {number} have the same custom_id, {name[:80]!a}"
            self._record.note("duplicate_custom_id", message, number)
        self._numbers[digest_of(name)] = number


async def check_stored(
    store: FileStore, record: BatchRecord, max_bytes: int, turn: asyncio.Lock
) -> LineChecks:
    """Check the lines of a batch's file, on a thread, which rests as long as it works.

    Args:
        max_bytes: Limit of a line.
        turn: Held while lines are looked at: those of one batch at a time.
    """
    splitter, checks = LineSplitter(max_bytes), LineChecks(record, max_bytes)
    async for piece in store.contents(record.input_file):
        async with turn:
            seconds = await asyncio.to_thread(_timed, checks, splitter.feed(piece))
        await asyncio.sleep(seconds)
        if checks.failed:
            return checks
    checks.check(splitter.end())
    checks.end()
    return checks


def _timed(checks: LineChecks, lines: Iterator[RawLine]) -> float:
    began = time.thread_time()
    checks.check(lines)
    return time.thread_time() - began
