"""What an engine has told of its steps, kept for those who ask its client."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest

from twostroke.core.config import EngineConfig
from twostroke.core.errors import EngineDeadError, InvalidRequestError
from twostroke.engine.clients.answers import Answers
from twostroke.engine.messages import EngineRecords, StepReport
from twostroke.observability.events import SchedulerStats, StepEvent
from twostroke.observability.kv_events import AllBlocksCleared, KVEventBatch, KVEventRing
from twostroke.observability.load_gauges import LoadGauges
from twostroke.observability.recorder import Recorder, StepRing

PATIENCE = 1.0  # seconds that an answer is waited for; people look while a step hangs, too


class KeptRecords:
    """Step events, KV events and the latest metrics and targets, all as values.

    ``take`` and ``keep`` run on one thread, whichever brings the reports, and put whole values in
    the place of others; the rest runs on the event loop's.

    Args:
        num_events: Step events that are kept.
        labels: Labels of the engine's metrics.
        publishes_kv: Whether the engine tells of its KV cache.
        recorder: Writes them to a file, where the engine does not.

    Attributes:
        answers: To ``ask``.
    """

    def __init__(
        self,
        num_events: int,
        labels: dict[str, str],
        *,
        publishes_kv: bool,
        recorder: Recorder | None = None,
    ) -> None:
        self._steps = StepRing(num_events)
        self._recorder = recorder
        # Of the engine that runs; one that is started after another counts from zero again.
        self._first_step = self._first_batch = self._next_step = self._next_batch = 0
        self._kv = KVEventRing() if publishes_kv else None
        self._latest = EngineRecords(b"", "text/plain")
        self._stats = SchedulerStats()
        self._gauges = self._label(labels)
        self.answers: Answers[EngineRecords] = Answers(PATIENCE)

    @classmethod
    def configured(
        cls, config: EngineConfig, labels: dict[str, str], recorder: Recorder | None
    ) -> KeptRecords:
        """Make those of an engine that is configured like this, and runs elsewhere."""
        num_events, publishes_kv = config.observability.step_events, config.tiers.kv_events
        return cls(num_events, labels, publishes_kv=publishes_kv, recorder=recorder)

    def _label(self, labels: dict[str, str]) -> CollectorRegistry:
        gauges = CollectorRegistry()
        gauges.register(LoadGauges(labels, lambda: self._stats))
        return gauges

    def take(self, report: StepReport) -> list[StepEvent]:
        """Keep what a report tells; returns its steps, numbered on from former engines' ones."""
        self._stats, events = report.status.stats, report.events
        if self._first_step:
            events = [replace(each, step=self._first_step + each.step) for each in events]
        for event in events:
            self._steps.add((event,))
            if self._recorder is not None:
                self._recorder.add(event)
            self._next_step = event.step + 1
        for batch in report.kv_events:
            self._publish(batch)
        if report.records is not None:
            self.keep(report.records)
        return events

    def keep(self, records: EngineRecords) -> None:
        """These are the latest."""
        self._latest = records

    def stop(self, stats: SchedulerStats) -> None:
        """The engine has ended, and this is its load."""
        self._stats = stats

    def begin_again(self, now: float, labels: dict[str, str]) -> None:
        """Another engine goes on, whose cache is empty; its steps follow those there are."""
        self._gauges = self._label(labels)
        seq = self._next_batch - self._first_batch
        self._publish(KVEventBatch(seq=seq, ts=now, events=[AllBlocksCleared()]))
        self._first_step, self._first_batch = self._next_step, self._next_batch

    def close(self) -> None:
        """Write what is to be recorded; all stays readable."""
        if self._recorder is not None:
            self._recorder.close()

    def _publish(self, batch: KVEventBatch) -> None:
        if self._kv is not None:
            if self._first_batch:
                batch = replace(batch, seq=self._first_batch + batch.seq)
            self._kv.add(batch)
            self._next_batch = batch.seq + 1

    def events(self, since: int) -> list[StepEvent]:
        """Events of steps after ``since``."""
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
            await self.answers.ask(send)  # kept by whichever thread brought it
        return self.latest()

    def latest(self) -> EngineRecords:
        """The latest events, with the load of the last report."""
        metrics = generate_latest(self._gauges) + self._latest.metrics
        return EngineRecords(metrics, self._latest.content_type, self._latest.targets)
