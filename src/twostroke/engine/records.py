"""What an engine has recorded of itself, to be read while it runs and after its end."""

from __future__ import annotations

from typing import NamedTuple

from twostroke.core.errors import InvalidRequestError
from twostroke.observability.events import StepEvent
from twostroke.observability.kv_events import KVEventBatch, KVEventLog
from twostroke.observability.metrics import EngineMetrics
from twostroke.observability.recorder import Recorder
from twostroke.observability.targets.observer import TargetObserver
from twostroke.observability.targets.watch import TargetsInForce


class EngineRecords(NamedTuple):
    """The observers that keep something; each has a lock of its own, so any thread may read.

    Reading sends no message: a step may hang, or the engine be dead, when people look at what it
    did. This is all that a front end has of an engine in its process; one in another would push
    copies of the same values.
    """

    recorder: Recorder
    metrics: EngineMetrics
    kv_log: KVEventLog | None
    target_observer: TargetObserver | None

    def events(self, since: int) -> list[StepEvent]:
        return self.recorder.events(since)

    def kv_events(self, since: int) -> list[KVEventBatch]:
        if self.kv_log is None:
            raise InvalidRequestError(
                "this server publishes no KV events", hint="start it with --kv-events"
            )
        return self.kv_log.since(since)

    def render_metrics(self) -> tuple[bytes, str]:
        return self.metrics.render()

    def targets(self) -> TargetsInForce:
        if self.target_observer is None:
            return TargetsInForce([], [])
        return self.target_observer.in_force()
