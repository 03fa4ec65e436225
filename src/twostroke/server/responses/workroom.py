"""The responses of one server: those that run in the background, and the store of all others."""

from __future__ import annotations

from functools import partial

import msgspec

from twostroke.server.generation.generation import Generation
from twostroke.server.http.json_response import encode_json
from twostroke.server.responses.objects import ResponseObject
from twostroke.server.responses.run import ResponseRun
from twostroke.server.responses.store import ResponseStore
from twostroke.server.responses.table import StoredResponse


class Workroom:
    """What all routes share.

    Attributes:
        store: Responses that have ended, and the first state of those in the background.
    """

    def __init__(self, store: ResponseStore) -> None:
        self.store = store
        self._running: dict[str, tuple[str, ResponseRun]] = {}

    def begin(self, run: ResponseRun, generation: Generation, tenant: str, given: bytes) -> None:
        """Start a run that is to be stored; one in the background can be read from here on.

        Args:
            given: JSON of its input items.
        """
        response = run.response
        if response.background:
            self._running[response.id] = (tenant, run)
            first = _stored(run, tenant, given, encode_json(response))
            self.store.put(response.id, lambda: first)
        run.begin(generation)

    def keep(self, run: ResponseRun, tenant: str, given: bytes) -> None:
        """Store a run that has ended."""
        self._running.pop(run.response.id, None)
        # Encoded on the store's thread: nothing changes it any more.
        self.store.put(run.response.id, partial(_stored, run, tenant, given))

    def running(self, tenant: str, response_id: str) -> ResponseRun | None:
        """A run of this tenant that goes on in the background."""
        owner, run = self._running.get(response_id, (None, None))
        return run if owner == tenant else None

    async def read(self, tenant: str, response_id: str) -> ResponseObject:
        """The response as it is now.

        Raises:
            ResponseNotFoundError: This tenant has none under that id.
        """
        if (run := self.running(tenant, response_id)) is not None:
            return run.snapshot()
        stored = await self.store.get(tenant, response_id)
        return msgspec.json.decode(stored.response, type=ResponseObject)

    async def cancel(self, tenant: str, response_id: str) -> ResponseObject:
        """End a response of the background, if it has not ended."""
        if (run := self.running(tenant, response_id)) is not None:
            run.cancel()
            return run.response
        return await self.read(tenant, response_id)

    async def delete(self, tenant: str, response_id: str) -> None:
        """Forget a response; one that still runs is ended before."""
        if (run := self.running(tenant, response_id)) is not None:
            run.cancel()
        await self.store.delete(tenant, response_id)

    async def events(self, tenant: str, response_id: str) -> bytes | None:
        """All events of a response that has ended; ``None`` if they were not kept."""
        return (await self.store.get(tenant, response_id)).events


def _stored(
    run: ResponseRun, tenant: str, given: bytes, encoded: bytes | None = None
) -> StoredResponse:
    response = run.response
    return StoredResponse(
        response.id,
        tenant,
        response.previous_response_id,
        encoded is None,
        encode_json(response) if encoded is None else encoded,
        given,
        run.events() if encoded is None else None,
    )
