"""The batches of one server: those of a key run one after the other, those of all keys in turn."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Coroutine, Mapping
from typing import Any

from starlette.types import ASGIApp

from twostroke.core.errors import TwostrokeError
from twostroke.http.body_size import BODIES_IN_MEMORY
from twostroke.server.batches.gate import Gate
from twostroke.server.batches.record import Api, BatchRecord, Status
from twostroke.server.batches.run import BatchRun, OutputForm, Workplace
from twostroke.server.batches.table import BatchTable
from twostroke.server.files.store import FileStore
from twostroke.server.files.table import StoredFile
from twostroke.server.http.errors import (
    BatchNotStoredError,
    TooManyBatchesError,
    error_rule,
    error_text,
)
from twostroke.server.state.server_state import ServerState

logger = logging.getLogger(__name__)

# Batches of one key that have not ended.
MAX_UNFINISHED = 32
# Files that are checked at once, one of each key: what is remembered of their lines takes memory.
CHECKED_AT_ONCE = 4
SWEEP_SECONDS = 600.0


class BatchQueue:
    """Begins batches, ends them, and knows how they stand; on the event loop's thread.

    Args:
        app: Answers their lines; it is called without a network.
        forms: How the APIs write output.
        max_body: Bytes of the body of one request.
    """

    def __init__(
        self,
        app: ASGIApp,
        state: ServerState,
        store: FileStore,
        forms: Mapping[Api, OutputForm],
        max_body: int,
    ) -> None:
        self.store = store
        self._forms = forms
        self._table = BatchTable(store.table)
        gate = Gate(state, BODIES_IN_MEMORY * max_body)
        self.workplace = Workplace(app, store, self._table, gate, asyncio.Lock(), max_body)
        self._runs: dict[str, BatchRun] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._adding: Counter[str] = Counter()
        self._checks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._all_checks = asyncio.Semaphore(CHECKED_AT_ONCE)
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._sweeping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Go on with the batches that a former server has not ended."""
        for record in await self.store.run(lambda _: self._table.unfinished()):
            self._begin(record)
        self._sweeping = asyncio.ensure_future(self._sweep())

    async def close(self) -> None:
        """Stop where they are: what is stored is enough to go on from."""
        tasks = [*self._tasks.values(), *([self._sweeping] if self._sweeping else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def check_number(self, tenant: str) -> None:
        """Raise ``TooManyBatchesError`` if a tenant may not begin another."""
        number = sum(run.record.tenant == tenant for run in self._runs.values())
        if number + self._adding[tenant] >= MAX_UNFINISHED:
            raise TooManyBatchesError(
                f"{number} batches of this key have not ended, and no more may be begun",
                hint="wait until one has ended, or put more requests into one",
            )

    async def add(self, record: BatchRecord, unanswered_bytes: int | None = None) -> None:
        """Begin a batch.

        Args:
            unanswered_bytes: See ``BatchRun.begin``, where its lines have been checked already.

        Raises:
            TooManyBatchesError: See ``check_number``.
            FilesFullError: There is no room for it.
        """
        self.check_number(record.tenant)
        self._adding[record.tenant] += 1
        try:
            await self._store_new(record, unanswered_bytes)
        finally:
            self._adding[record.tenant] -= 1
        self._begin(record)

    async def _store_new(self, record: BatchRecord, unanswered_bytes: int | None) -> None:
        now = record.created
        outputs = [
            StoredFile(file_id, record.tenant, "", "", "growing", now, now)
            for file_id in (record.output_file, record.error_file)
        ]
        await self.store.run(lambda _: self._table.add(record, outputs))
        if unanswered_bytes is not None:
            try:
                await self._run_of(record).begin(unanswered_bytes)
            except BaseException:
                await self.store.run(lambda _: self._table.delete(record))
                raise

    async def get(self, tenant: str, api: Api, batch_id: str) -> BatchRecord:
        """A batch of this tenant as it is now.

        Raises:
            BatchNotStoredError: There is none of this id.
        """
        record = await self.store.run(lambda _: self._table.get(tenant, api, batch_id))
        if record is None:
            raise BatchNotStoredError(
                f"no batch {batch_id[:100]!a} is stored for this key", param="batch_id"
            )
        return self._as_it_is(record)

    async def page(
        self, tenant: str, api: Api, limit: int, *, after: str | None, before: str | None = None
    ) -> list[BatchRecord]:
        """See ``BatchTable.page``."""
        records = await self.store.run(
            lambda _: self._table.page(tenant, api, limit, after=after, before=before)
        )
        return [self._as_it_is(record) for record in records]

    async def cancel(self, tenant: str, api: Api, batch_id: str) -> BatchRecord:
        """End a batch; what has been answered stays. One that has ended stays as it is."""
        record = await self.get(tenant, api, batch_id)
        run = self._runs.get(batch_id)
        if run is None or record.outcome is not None:
            return record
        record.outcome, record.status = "cancelled", "cancelling"
        record.times.cancelling = int(self.store.clock())
        self._put_task(run, self._finish_after(self._tasks[batch_id], run))
        await run.save()
        return record

    async def delete(self, record: BatchRecord) -> None:
        """Forget a batch that has ended."""
        await self.store.run(lambda _: self._table.delete(record))

    def reader_of(self, file_id: str) -> str | None:
        """The id of a batch that still reads a file."""
        ids = (id for id, run in self._runs.items() if run.record.input_file == file_id)
        return next(ids, None)

    def _as_it_is(self, stored: BatchRecord) -> BatchRecord:
        run = self._runs.get(stored.id)
        return stored if run is None else run.record

    def _run_of(self, record: BatchRecord) -> BatchRun:
        return BatchRun(record, self._forms[record.api], self.workplace)

    def _begin(self, record: BatchRecord) -> None:
        run = self._runs[record.id] = self._run_of(record)
        outcome = record.outcome
        self._put_task(run, self._work(run) if outcome is None else self._finish(run, outcome))

    def _put_task(self, run: BatchRun, work: Coroutine[Any, Any, None]) -> None:
        self._tasks[run.record.id] = asyncio.ensure_future(work)

    async def _work(self, run: BatchRun) -> None:
        await self._finish(run, await self._outcome(run))

    async def _outcome(self, run: BatchRun) -> Status:
        """How a batch ends, once all has been done for it that can be."""
        record = run.record
        seconds = max(0.0, record.expires - self.store.clock())
        try:
            async with asyncio.timeout(seconds) as until_it_expires:
                async with self._checks[record.tenant], self._all_checks:
                    if not await run.check():
                        return "failed"
                async with self._turns[record.tenant]:
                    await run.answer()
                return "completed"
        except TimeoutError:
            if not until_it_expires.expired():
                raise
            return "expired"
        except TwostrokeError as error:
            record.note(error_rule(error).code or "batch_failed", error_text(error))
            return "failed"
        except Exception:
            logger.exception("batch %s failed", record.id)
            record.note("internal_error", "internal server error; the server's log has the cause")
            return "failed"

    async def _finish_after(self, former: asyncio.Task[None], run: BatchRun) -> None:
        former.cancel()
        await asyncio.wait((former,))
        await self._finish(run, "cancelled")

    async def _finish(self, run: BatchRun, outcome: Status) -> None:
        record = run.record
        try:
            await run.finish(outcome)
        except Exception:  # the next server tries again
            logger.exception("batch %s could not be ended", record.id)
        del self._runs[record.id], self._tasks[record.id]

    async def _sweep(self) -> None:
        while True:
            try:
                await self.store.run(lambda _: self._table.delete_expired(self.store.clock()))
            except TwostrokeError as error:
                logger.error("what has expired could not be deleted: %s", error)
            await asyncio.sleep(SWEEP_SECONDS)
