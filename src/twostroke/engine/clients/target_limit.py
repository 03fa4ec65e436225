"""Which calls would come too late: judged where they arrive, by what the engine tells of itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from twostroke.core.config import SchedulerConfig
from twostroke.core.errors import PredictedLateError
from twostroke.core.generation_request import GenerationRequest
from twostroke.engine.messages import LoadReport
from twostroke.observability.events import RefusedRequest
from twostroke.scheduling.admission.load_meter import Left
from twostroke.scheduling.admission.predicted import Arrival, PredictedAdmission, retry_after
from twostroke.scheduling.admission.prediction import EngineLoad
from twostroke.scheduling.admission.ttft_targets import TTFTTargets


class TargetLimit:
    """Refuses what would miss its TTFT target (``--admission predicted``); else does nothing.

    Used on the event loop's thread; ``take`` may be called on another.

    Args:
        clock: The engine's.
        on_refusal: Gets each call that was refused.
        num_cached: How many tokens of a call's prompt the engine's cache holds.

    Attributes:
        load, left: What ``PredictedAdmission`` reads.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        targets: TTFTTargets,
        clock: Callable[[], float],
        on_refusal: Callable[[RefusedRequest], None],
        num_cached: Callable[[GenerationRequest], int],
    ) -> None:
        self.load = EngineLoad()
        self.left: deque[Left] = deque()
        self._admission: PredictedAdmission | None = None
        if config.admission == "predicted":
            self._admission = PredictedAdmission(config, targets, self)
        self._clock = clock
        self._on_refusal, self._num_cached = on_refusal, num_cached

    def take(self, report: LoadReport) -> None:
        """Go by what the engine says of itself from now on."""
        self.load = report.load
        self.left.extend(report.left)

    def check(self, call: GenerationRequest) -> None:
        """Raise ``PredictedLateError`` if the first token of a call would come too late."""
        if self._admission is None:
            return
        arrival, now = _arrival(call), self._clock()
        self._refuse(self._admission.judge(arrival, now, lambda: self._num_cached(call)))

    def check_least(self, tenant: str, call_id: str, waited: float) -> None:
        """Raise ``PredictedLateError`` if not even the smallest call would be in time."""
        if self._admission is not None:
            arrival = Arrival(call_id, tenant, num_tokens=0, waited=waited)
            self._refuse(self._admission.judge_least(arrival, self._clock()))

    def _refuse(self, refused: RefusedRequest | None) -> None:
        if refused is None:
            return
        self._on_refusal(refused)
        allowed = "" if refused.factor == 1 else f" times {refused.factor:g}"
        raise PredictedLateError(
            f"the first token would come in about {refused.predicted_ttft:.2f} s behind"
            f" {refused.ahead} waiting requests, and its target is {refused.ttft_target:g} s"
            f"{allowed}",
            retry_after=retry_after(refused),
            hint="try again later, or allow more time (deadline_ms)",
        )

    def add(self, call: GenerationRequest, num_samples: int) -> None:
        """Count so many samples of a call that are on their way to the engine."""
        if self._admission is not None:
            self._admission.enter(_arrival(call, num_samples), self._clock())


def _arrival(call: GenerationRequest, num_samples: int | None = None) -> Arrival:
    return Arrival(
        call_id=call.request_id,
        tenant=call.tenant,
        num_tokens=len(call.prompt_token_ids),
        num_samples=call.params.n if num_samples is None else num_samples,
        priority=call.priority,
        ttft_target=call.ttft_target,
        can_be_late=call.pooling is None,
        waited=call.waited,
    )
