"""One batch: its lines checked, answered by the server's own application, and written down.

What is stored is enough to go on from: a line is answered once its answer is a part of the output,
under the number of the line.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Container, Sequence
from functools import partial
from importlib import import_module
from typing import NamedTuple, Protocol, TypeVar

from starlette.types import ASGIApp

from twostroke.batch.lines import BatchOutput, GoodLine, parse_line
from twostroke.server.batches.gate import Gate
from twostroke.server.batches.record import BatchRecord, Status
from twostroke.server.batches.stored_lines import MARGIN, check_stored, stored_lines
from twostroke.server.batches.table import BatchTable
from twostroke.server.files.store import FileStore
from twostroke.server.files.table import PART_OVERHEAD, FilePart, FileTable

T = TypeVar("T")
# Lines up to here are parsed at once, longer ones on a thread.
SHORT_LINE = 2**15
# So often a line is sent again while the server is busy with others; then that is its answer.
MAX_REFUSALS = 100
# How many unanswered lines are written at a time.
WRITTEN_AT_ONCE = 1000


class OutputForm(Protocol):
    """How an API writes the lines of its output, without the line feed."""

    purpose: str  # of the files

    def answered(self, output: BatchOutput) -> bytes:
        """The line of a request that was sent."""

    def unanswered(self, line: GoodLine, record: BatchRecord) -> bytes:
        """The line of a request that was not, since the batch has ended before."""


class Workplace(NamedTuple):
    """What all batches of a server share.

    Attributes:
        app: Answers their lines.
        checking: Held while lines are looked at before a batch begins.
        max_body: Bytes of the body of one request.
    """

    app: ASGIApp
    store: FileStore
    table: BatchTable
    gate: Gate
    checking: asyncio.Lock
    max_body: int

    @property
    def max_line(self) -> int:
        """Bytes of one line."""
        return self.max_body + MARGIN


class BatchRun:
    """The work on one batch, in three steps; each may be cancelled and begun again.

    Attributes:
        record: The batch as it is now; stored when its status changes.
    """

    def __init__(self, record: BatchRecord, form: OutputForm, work: Workplace) -> None:
        self.record = record
        self._form = form
        self._work = work

    async def check(self) -> bool:
        """Look at all lines; returns whether there is something to answer."""
        record, work = self.record, self._work
        if record.status == "validating":
            checks = await check_stored(work.store, record, work.max_line, work.checking)
            record.total = checks.total
            if record.mistakes:
                return False
            await self.begin(checks.unanswered_bytes)
        return True

    async def begin(self, unanswered_bytes: int) -> None:
        """The lines have been checked, and may be answered from now on.

        Raises:
            FilesFullError: There is no room to say what became of them.
        """
        record = self.record
        await self._store(lambda files: files.reserve(record.error_file, unanswered_bytes))
        record.reserved = unanswered_bytes
        record.status, record.times.in_progress = "in_progress", self._now()
        await self.save()

    async def answer(self) -> None:
        """Answer all lines that have no answer yet.

        Raises:
            FilesFullError: There is no room for an answer.
            TwostrokeError: The server refuses the key, or all lines.
        """
        # Imported here, and first on a thread: httpx takes a tenth of a second.
        await asyncio.to_thread(import_module, "twostroke.server.batches.in_process")
        from twostroke.batch.runner import LineSender
        from twostroke.server.batches.in_process import background_client

        done = await self._done_lines()
        tenant, gate = self.record.tenant, self._work.gate
        async with background_client(self._work.app, gate, tenant) as http:
            sender = LineSender(http, patience=float("inf"), max_refusals=MAX_REFUSALS)

            async def answer(line: GoodLine) -> None:
                await self._write(line.number, await sender.answer(line))

            try:
                async with asyncio.TaskGroup() as group:
                    async for line in self._lines(done):
                        size = len(line.body)
                        await gate.hold(tenant, size)
                        task = group.create_task(answer(line))
                        # Not by the task itself: one that is cancelled may never have begun.
                        task.add_done_callback(partial(self._let_go, size))
            except ExceptionGroup as failures:
                raise failures.exceptions[0] from None

    async def finish(self, outcome: Status) -> None:
        """Write what became of the lines that have no answer, and end with this status."""
        record = self.record
        if record.status != "finalizing":
            await self._done_lines()
            record.status, record.outcome = "finalizing", outcome
            record.times.finalizing = self._now()
            await self.save()
        if outcome != "completed" and record.times.in_progress is not None:
            await self._write_unanswered()
        await self._store(self._end)

    def _end(self, files: FileTable) -> None:
        """Store the end of a batch, all of it or (after a crash) nothing; on the store's thread."""
        record, now = self.record, self._now()
        outputs = {record.output_file: "output", record.error_file: "error"}
        empty: set[str] = set()
        with files.transaction():
            for file_id, kind in outputs.items():
                name = f"{record.id}_{kind}.jsonl"
                files.settle(file_id)
                expires = now + record.output_seconds
                file = files.finish(file_id, name, self._form.purpose, expires)
                empty |= set() if file.num_bytes else {file_id}
            record.status, record.times.ended = record.outcome or "failed", now
            record.output_file = "" if record.output_file in empty else record.output_file
            record.error_file = "" if record.error_file in empty else record.error_file
            self._work.table.update(record)
        for file_id in empty:
            files.delete(file_id)

    async def save(self) -> None:
        """Store the record as it is now."""
        await self._store(lambda _: self._work.table.update(self.record))

    def _let_go(self, num_bytes: int, _: asyncio.Task[None]) -> None:
        self._work.gate.let_go(self.record.tenant, num_bytes)

    async def _done_lines(self) -> set[int]:
        """The lines that are answered; they are counted anew."""
        record = self.record
        good = await self._store(lambda files: files.part_numbers(record.output_file))
        bad = await self._store(lambda files: files.part_numbers(record.error_file))
        record.completed, record.failed = len(good), len(bad)
        return good | bad

    async def _lines(self, done: Container[int]) -> AsyncIterator[GoodLine]:
        """The lines that have been checked, but for those that are done."""
        work = self._work
        async for number, text in stored_lines(work.store, self.record.input_file, work.max_line):
            if number in done or text is None:
                continue
            if len(text) > SHORT_LINE:
                line = await asyncio.to_thread(parse_line, text, number)
            else:
                line = parse_line(text, number)
            if isinstance(line, GoodLine):
                yield line

    async def _write(self, number: int, output: BatchOutput) -> None:
        record = self.record
        file_id = record.output_file if output.succeeded else record.error_file

        def write(files: FileTable) -> None:
            files.append(file_id, [FilePart(number, self._form.answered(output) + b"\n")])

        await self._store(write)
        if output.succeeded:
            record.completed += 1
        else:
            record.failed += 1

    async def _write_unanswered(self) -> None:
        record = self.record
        good = await self._store(lambda files: files.part_numbers(record.output_file))
        bad = await self._store(lambda files: files.part_numbers(record.error_file))
        parts: list[FilePart] = []
        async for line in self._lines(good | bad):
            parts.append(FilePart(line.number, self._form.unanswered(line, record) + b"\n"))
            if len(parts) == WRITTEN_AT_ONCE:
                await self._write_parts(parts)
                parts = []
        await self._write_parts(parts)

    async def _write_parts(self, parts: Sequence[FilePart]) -> None:
        """Add parts to the error file, where room is kept for them."""
        record = self.record
        size = min(record.reserved, sum(len(part.data) + PART_OVERHEAD for part in parts))
        record.reserved -= size

        def write(files: FileTable) -> None:
            files.release(record.error_file, size)
            files.append(record.error_file, parts)

        await self._store(write)

    async def _store(self, work: Callable[[FileTable], T]) -> T:
        return await self._work.store.run(work)

    def _now(self) -> int:
        return int(self._work.store.clock())
