"""What an engine is asked beside calls, and its answers."""

from __future__ import annotations

from collections.abc import Callable

from twostroke.core.errors import ErrorMessage
from twostroke.engine.adapters.orders import AdapterOrder, KnownAdapter
from twostroke.engine.cache_orders import CacheOrder, CacheReport
from twostroke.engine.clients.answers import Answers
from twostroke.engine.messages import (
    AdaptersAnswer,
    CacheAnswer,
    EngineMessage,
    ManageAdapters,
    ManageCache,
    SnapshotAnswer,
    TakeSnapshot,
)
from twostroke.observability.snapshot import EngineSnapshot

SNAPSHOT_SECONDS = 10.0  # a step that takes longer leaves a reader without an answer


class Questions:
    """Asked and answered on the event loop's thread.

    Args:
        send: Sends a message to the engine.
    """

    def __init__(self, send: Callable[[EngineMessage], None]) -> None:
        self._send = send
        self._of_cache: Answers[CacheReport] = Answers()
        self._of_adapters: Answers[KnownAdapter] = Answers()
        self._of_state: Answers[EngineSnapshot] = Answers(SNAPSHOT_SECONDS)

    async def manage_cache(self, order: CacheOrder) -> CacheReport:
        return await self._of_cache.ask(lambda n: self._send(ManageCache(n, order)))

    async def manage_adapters(self, order: AdapterOrder) -> KnownAdapter:
        return await self._of_adapters.ask(lambda n: self._send(ManageAdapters(n, order)))

    async def snapshot(self, *, with_blocks: bool) -> EngineSnapshot:
        return await self._of_state.ask(lambda n: self._send(TakeSnapshot(n, with_blocks)))

    def answer(self, reply: CacheAnswer | AdaptersAnswer | SnapshotAnswer) -> None:
        """Give it to who asked."""
        match reply:
            case CacheAnswer():
                self._of_cache.put(reply.number, reply.value, reply.error)
            case AdaptersAnswer():
                self._of_adapters.put(reply.number, reply.value, reply.error)
            case SnapshotAnswer():
                self._of_state.put(reply.number, reply.value, reply.error)

    def fail_all(self, error: ErrorMessage) -> None:
        """No answers will come."""
        self._of_cache.fail_all(error)
        self._of_adapters.fail_all(error)
        self._of_state.fail_all(error)
