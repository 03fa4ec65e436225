"""What a step gives whose pass raised."""

from __future__ import annotations

from twostroke.core.errors import (
    EngineDeadError,
    ErrorMessage,
    RequestFailedError,
    TwostrokeError,
)
from twostroke.core.step import StepPlan, StepResult


def failed_result(plan: StepPlan, cause: Exception, seconds: float) -> StepResult:
    """An error for every request in the plan.

    Args:
        cause: What the pass raised; one that ends the engine reaches clients as it is.
        seconds: That the step took.
    """
    failure = f"the forward pass failed: {type(cause).__name__}: {cause}"
    hint = cause.hint if isinstance(cause, TwostrokeError) else None
    failed = RequestFailedError(failure, hint=hint)
    error = ErrorMessage.of(cause if isinstance(cause, EngineDeadError) else failed)
    return StepResult(
        errors=dict.fromkeys(plan.scheduled, error), failure=failure, duration=seconds
    )
