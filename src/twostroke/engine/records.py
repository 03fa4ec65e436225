"""What an engine has recorded of itself and its client does not have yet, as values."""

from __future__ import annotations

import logging

from msgspec.structs import replace

from twostroke.engine.llm_engine import LLMEngine
from twostroke.engine.messages import EngineRecords
from twostroke.observability.events import StepEvent
from twostroke.observability.kv_events import KVEventBatch
from twostroke.observability.metrics import CONTENT_TYPE

logger = logging.getLogger(__name__)

# How old records are at most that are shown while a step lasts, as long as steps ran before it:
# to render them takes some 3 ms.
RECORDS_SECONDS = 5.0


class NewRecords:
    """Takes them from the observers that keep them. The engine's thread calls everything."""

    def __init__(self, engine: LLMEngine) -> None:
        self._engine = engine
        latest = engine.recorder.events(-1)  # of former clients
        self._first_step = latest[-1].step + 1 if latest else 0
        self._last_step, self._last_batch = self._first_step - 1, -1
        self._rendered_at = engine.clock()

    def events(self) -> list[StepEvent]:
        """Events since the last call; the first that this client sees has number 0."""
        if events := self._engine.recorder.events(self._last_step):
            self._last_step = events[-1].step
        if self._first_step:
            return [replace(each, step=each.step - self._first_step) for each in events]
        return events

    def kv_events(self) -> list[KVEventBatch]:
        """KV events since the last call; none where they are not published."""
        if (log := self._engine.cache.events) is None:
            return []
        if batches := log.kept.since(self._last_batch):
            self._last_batch = batches[-1].seq
        return batches

    def are_due(self) -> bool:
        """Whether metrics and targets were taken long ago."""
        return self._engine.clock() - self._rendered_at >= RECORDS_SECONDS

    def take(self) -> EngineRecords | None:
        """Metrics and targets as they stand; none, and a line in the log, if they cannot be shown.

        That does not end the engine.
        """
        self._rendered_at = self._engine.clock()
        targets = self._engine.targets
        try:
            counts = self._engine.metrics.render_counts()
            reports = [] if targets is None else targets.report()
        except MemoryError:
            raise
        except Exception:
            logger.exception("the engine's metrics cannot be shown")
            return None
        return EngineRecords(counts, CONTENT_TYPE, reports)
