"""Waiting calls that can no longer meet their TTFT targets end with a refusal."""

from __future__ import annotations

from twostroke.core.errors import ErrorMessage, PredictedLateError
from twostroke.core.output import RequestOutput
from twostroke.core.request import FinishReason
from twostroke.engine.engine import Engine
from twostroke.scheduling.admission.overdue import OverdueCalls


def refuse_overdue(engine: Engine, overdue: OverdueCalls) -> list[RequestOutput]:
    """End what is overdue between two steps; the next step event tells of it.

    Returns the last outputs, which carry the refusal: nothing of these calls has run, so a server
    can still answer with its status.
    """
    outputs: list[RequestOutput] = []
    now = engine.clock()
    for samples, refused in overdue.take(now):
        engine.note_refusal(refused)
        waited = now - samples[0].received_time
        error = PredictedLateError(
            f"the call has waited {waited:.2f} s, and its first token would come too late: its"
            f" target is {refused.ttft_target:g} s",
            hint="try again later, or allow more time (deadline_ms)",
        )
        outputs += engine.end(samples, FinishReason.ABORT, ErrorMessage.of(error))
    return outputs
