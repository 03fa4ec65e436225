"""``--admission predicted``: refuse at once what would come too late."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from twostroke.core.config import SchedulerConfig
from twostroke.observability.events import RefusedRequest
from twostroke.scheduling.admission.load_meter import LoadMeter
from twostroke.scheduling.admission.prediction import EngineLoad, predict_ttft
from twostroke.scheduling.admission.ttft_targets import TTFTTargets
from twostroke.scheduling.admission.waiting_calls import WaitingCall, WaitingCalls
from twostroke.scheduling.step_times import PromptWork

# Longest time after which a client is told to try again, in seconds.
LONGEST_RETRY = 60


class Arrival(NamedTuple):
    """A call as it arrives.

    Attributes:
        num_samples: Answers that it wants: each needs a place.
        ttft_target: Its own; see ``TTFTTargets``.
        can_be_late: Whether it is held to a target at all (a vector has no first token).
        waited: Seconds of its target that are over.
    """

    call_id: str
    tenant: str
    num_tokens: int
    num_samples: int = 1
    priority: int = 0
    ttft_target: float | None = None
    can_be_late: bool = True
    waited: float = 0.0


class PredictedAdmission:
    """Keeps the calls that wait, and judges new ones by them. One thread calls all methods.

    The engine's side is a ``LoadMeter``, which may be on another thread. Where nothing waits,
    nothing is refused, whatever was measured: so what was measured wrongly is soon measured anew.
    """

    def __init__(self, config: SchedulerConfig, targets: TTFTTargets, meter: LoadMeter) -> None:
        self._policy = config.policy
        self._factor = config.admission_factor
        self._targets = targets
        self._meter = meter
        self._waiting = WaitingCalls()

    def judge(
        self, arrival: Arrival, now: float, num_cached: Callable[[], int]
    ) -> RefusedRequest | None:
        """``None`` lets the call in; the caller then says so by ``enter``.

        Args:
            now: On the engine's clock.
            num_cached: Prompt tokens that the prefix cache holds; asked only if that may decide.
        """
        self._forget_left()
        target = self._targets.of(arrival.tenant, arrival.ttft_target)
        if target is None or not arrival.can_be_late or not len(self._waiting):
            return None
        load, limit = self._meter.load, self._factor * target - arrival.waited
        call = self._waiting_call(arrival, now)
        ahead = self._waiting.ahead_of(call, self._policy, now)
        predicted = predict_ttft(load, ahead, call.work)
        if predicted > limit and predict_ttft(load, ahead, PromptWork()) <= limit:
            cached = min(num_cached(), arrival.num_tokens - 1)
            work = PromptWork.of(cached, arrival.num_tokens - cached)
            predicted = predict_ttft(load, ahead, work)
        if predicted <= limit:
            return None
        return RefusedRequest(
            request_id=arrival.call_id,
            tenant=arrival.tenant,
            predicted_ttft=arrival.waited + predicted,
            ttft_target=target,
            factor=self._factor,
            ahead=ahead.num_samples,
        )

    def enter(self, arrival: Arrival, now: float) -> None:
        """The call waits from now on."""
        self._waiting.add(self._waiting_call(arrival, now))

    def leave(self, call_id: str, num_samples: int) -> None:
        """The call was let in, but could not be added to the engine; safe on any thread."""
        self._meter.left.extend([call_id] * num_samples)

    @property
    def load(self) -> EngineLoad:
        """What the last predictions stood on."""
        return self._meter.load

    def _waiting_call(self, arrival: Arrival, now: float) -> WaitingCall:
        target = self._targets.of(arrival.tenant, arrival.ttft_target)
        work = self._meter.expected_work(arrival.tenant, arrival.num_tokens)
        latest = (
            math.inf
            if target is None
            else now + target - arrival.waited - self.load.prices.seconds(work)
        )
        return WaitingCall(
            arrival.call_id, arrival.tenant, work, arrival.num_samples, arrival.priority, latest
        )

    def _forget_left(self) -> None:
        left = self._meter.left
        for _ in range(len(left)):
            self._waiting.sample_left(left.popleft())


def retry_after(refused: RefusedRequest) -> int:
    """Whole seconds until a call like it would be let in, if no others come."""
    excess = refused.predicted_ttft - refused.factor * refused.ttft_target
    return max(1, min(math.ceil(excess), LONGEST_RETRY))
