"""What an engine has told of its steps, kept for those who ask its client."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from twostroke.core.errors import EngineDeadError, InvalidRequestError
from twostroke.engine.clients.answers import Answers
from twostroke.engine.messages import EngineRecords, StepReport
from twostroke.observability.events import StepEvent
from twostroke.observability.kv_events import KVEventBatch, KVEventRing
from twostroke.observability.recorder import StepRing

PATIENCE = 1.0  # seconds that an answer is waited for; people look while a step hangs, too


class KeptRecords:
    """Step events, KV events and the latest metrics and targets, all as values.

    ``take`` runs on one thread, whichever brings the reports; the rest on the event loop's.

    Args:
        num_events: Step events that are kept.
        publishes_kv: Whether the engine tells of its KV cache.

    Attributes:
        latest: The metrics and targets that came last.
        answers: To ``ask``.
    """

    def __init__(self, num_events: int, *, publishes_kv: bool) -> None:
        self._steps = StepRing(num_events)
        self._kv = KVEventRing() if publishes_kv else None
        self.latest = EngineRecords(b"", "text/plain")
        self.answers: Answers[EngineRecords] = Answers(PATIENCE)

    def take(self, report: StepReport) -> None:
        """Keep what a report tells."""
        self._steps.add(report.events)
        if self._kv is not None:
            for batch in report.kv_events:
                self._kv.add(batch)
        if report.records is not None:
            self.latest = report.records

    def events(self, since: int) -> list[StepEvent]:
        """Those of steps after ``since``."""
        return self._steps.since(since)

    def kv_events(self, since: int) -> list[KVEventBatch]:
        """See ``EngineClient.kv_events``."""
        if self._kv is None:
            raise InvalidRequestError(
                "this server publishes no KV events", hint="start it with --kv-events"
            )
        return self._kv.since(since)

    async def ask(self, send: Callable[[int], None]) -> EngineRecords:
        """Metrics and targets as they are, or where no answer comes, as they were last sent."""
        with suppress(EngineDeadError):  # a step hangs, or the engine has ended
            self.latest = await self.answers.ask(send)
        return self.latest
