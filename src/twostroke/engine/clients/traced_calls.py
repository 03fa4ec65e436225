"""Has the trace of a call tell what an engine does for it."""

from __future__ import annotations

from collections.abc import Mapping

from twostroke.engine.clients.base import ChargedTokens
from twostroke.engine.clients.stream import AsyncStream
from twostroke.engine.messages import AddRequest
from twostroke.observability.tracing.attempts import Outcome
from twostroke.observability.tracing.engine_timelines import EngineTimelines


def follow_call(
    timelines: EngineTimelines, message: AddRequest, stream: AsyncStream, labels: Mapping[str, str]
) -> None:
    """Note what the engine does from here on, if the call is traced, until its stream ends."""
    so_far = message.resumed
    counts = None if so_far is None else {each.index: len(each.token_ids) for each in so_far}
    if not timelines.begin(message.request, counts, labels):
        return

    def end(usage: ChargedTokens) -> None:
        outcome = Outcome.ABORTED if stream.aborted else Outcome.FAILED
        timelines.end(message.request_id, outcome)

    stream.when_ended(end)
