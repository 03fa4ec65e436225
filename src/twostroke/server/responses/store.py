"""Stored responses beside the event loop: one thread has the table, and works in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from twostroke.core.errors import InvalidRequestError, RequestTooLargeError
from twostroke.server.http.errors import PreviousResponseNotFoundError, ResponseNotFoundError
from twostroke.server.responses.items_index import TooMuchToReadError
from twostroke.server.responses.table import (
    MAX_SHARE,
    BrokenChainError,
    ChainTooLongError,
    ResponseTable,
    StoredResponse,
    StoredTurn,
)

T = TypeVar("T")
logger = logging.getLogger(__name__)

# Of a conversation that is put together again: several times what any context holds.
MAX_CHAIN_BYTES = 32 * 2**20
CONVERSATION_PREFIX = "conv"
STOPPED = "the server was stopped while this response ran"


class ResponseStore:
    """What the routes see of the table. A read sees every write that was asked for before it.

    Args:
        path: The file; ``None`` keeps everything in memory.
        max_bytes: Most bytes of all responses together.

    Raises:
        ConfigError: See ``ResponseTable``.
    """

    def __init__(self, path: str | None, max_bytes: int) -> None:
        self._table = ResponseTable(path, max_bytes)
        self.max_bytes = max_bytes
        self._closed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="twostroke-responses")
        for stored in self._table.unfinished():
            self._table.put(_stopped(stored))

    async def close(self) -> None:
        """Finish what was asked for, and let go of the file; what comes later is not stored."""
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(self._thread, self._table.close)
        self._thread.shutdown()

    def put(self, response_id: str, make: Callable[[], StoredResponse]) -> None:
        """Store a response, or its newer state, soon; a failure is logged.

        Args:
            make: Encodes it, on the store's thread.
        """

        def store() -> None:
            try:
                if not self._table.put(make()):
                    logger.warning("response %s is too large for the store", response_id)
            except Exception:
                logger.exception("response %s could not be stored", response_id)

        if not self._closed:
            self._thread.submit(store)

    async def get(self, tenant: str, response_id: str) -> StoredResponse:
        """A response of this tenant.

        Raises:
            ResponseNotFoundError: There is none.
        """
        stored = await self._run(lambda: self._table.get(tenant, response_id))
        if stored is None or _is_conversation(response_id):
            raise not_stored(response_id)
        return stored

    async def delete(self, tenant: str, response_id: str) -> None:
        """Delete a response of this tenant.

        Raises:
            ResponseNotFoundError: There is none.
        """
        if _is_conversation(response_id) or not await self.remove(tenant, response_id):
            raise not_stored(response_id)

    async def conversation(self, tenant: str, response_id: str) -> list[StoredTurn]:
        """What was said up to a response of this tenant, oldest first.

        Raises:
            PreviousResponseNotFoundError: It, or one before it, is not stored.
            RequestTooLargeError: It is too long.
        """
        param = "previous_response_id"
        try:
            if _is_conversation(response_id):
                raise BrokenChainError(response_id)
            return await self._run(lambda: self._table.chain(tenant, response_id, MAX_CHAIN_BYTES))
        except BrokenChainError as error:
            before = "" if error.missing == response_id else f", on which {response_id!a} builds,"
            raise PreviousResponseNotFoundError(
                f"the response {error.missing!a}{before} is not stored",
                param=param,
                hint="send the whole conversation as input",
            ) from error
        except ChainTooLongError as error:
            raise RequestTooLargeError(
                f"the conversation up to {response_id!a} takes more than {MAX_CHAIN_BYTES} bytes",
                needed=MAX_CHAIN_BYTES + 1,
                available=MAX_CHAIN_BYTES,
                param=param,
                hint="begin a new one",
            ) from error

    async def items(self, tenant: str, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Items of this tenant's stored responses by their ids, those that there are.

        Raises:
            RequestTooLargeError: They lie in too many or too large responses.
        """
        try:
            return await self._run(lambda: self._table.items(tenant, ids, MAX_CHAIN_BYTES))
        except TooMuchToReadError as error:
            raise RequestTooLargeError(
                f"the items lie in responses of more than {MAX_CHAIN_BYTES} bytes",
                needed=MAX_CHAIN_BYTES + 1,
                available=MAX_CHAIN_BYTES,
                param="input",
                hint="send the items themselves",
            ) from error

    # ---- rows of any kind ------------------------------------------------------------------------

    async def put_now(self, row: StoredResponse) -> bool:
        """Store a row; returns whether there was room for it."""
        return await self._run(lambda: self._table.put(row))

    async def read(self, tenant: str, row_id: str, read: Callable[[StoredResponse], T]) -> T | None:
        """What ``read`` makes of a row on the store's thread; ``None``: there is no row."""

        def look_up() -> T | None:
            row = self._table.get(tenant, row_id)
            return None if row is None else read(row)

        return await self._run(look_up)

    async def change(
        self, tenant: str, row_id: str, change: Callable[[StoredResponse], StoredResponse]
    ) -> bool | None:
        """Replace a row by what ``change`` makes of it, and nothing comes between.

        Returns:
            Whether there was room for it, else it stays; ``None``: there is no row.
        """

        def replace() -> bool | None:
            row = self._table.get(tenant, row_id)
            return None if row is None else self._table.put(change(row), or_keep=True)

        return await self._run(replace)

    def change_soon(
        self, tenant: str, row_id: str, change: Callable[[StoredResponse], StoredResponse]
    ) -> None:
        """Queue a ``change`` after earlier ones, without waiting for it; log a failure."""

        def replace() -> None:
            try:
                row = self._table.get(tenant, row_id)
                if row is not None and not self._table.put(change(row), or_keep=True):
                    logger.warning("%s is too large for the store", row_id)
            except Exception:
                logger.exception("%s could not be changed", row_id)

        if not self._closed:
            self._thread.submit(replace)

    async def remove(self, tenant: str, row_id: str) -> bool:
        """Delete a row; returns whether there was one."""
        return await self._run(lambda: self._table.delete(tenant, row_id))

    def check_size(self, num_bytes: int) -> None:
        """Raise ``InvalidRequestError`` if an input of this many bytes can never be stored."""
        if num_bytes > self.max_bytes // MAX_SHARE:
            raise InvalidRequestError(
                f"an input of {num_bytes} bytes is too large for this server's store",
                param="store",
                hint="send store: false, or start the server with a larger --responses-store-size",
            )

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def not_stored(response_id: str) -> ResponseNotFoundError:
    """The error for an id under which the caller has nothing."""
    return ResponseNotFoundError(
        f"no response {response_id[:100]!a} is stored for this key", param="response_id"
    )


def _is_conversation(row_id: str) -> bool:
    return row_id.startswith(f"{CONVERSATION_PREFIX}_")


def _stopped(stored: StoredResponse) -> StoredResponse:
    response = msgspec.json.decode(stored.response)
    error = {"code": "server_error", "message": STOPPED}
    response |= {"status": "failed", "error": error}
    return stored._replace(ended=True, response=msgspec.json.encode(response))
