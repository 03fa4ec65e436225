"""``--admission predicted``: refuse at once what would come too late."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from twostroke.core.config import SchedulerConfig
from twostroke.observability.events import RefusedRequest
from twostroke.scheduling.admission.corrections import Corrections
from twostroke.scheduling.admission.load_meter import Left
from twostroke.scheduling.admission.prediction import EngineLoad, entries_before, predict_ttft
from twostroke.scheduling.admission.ttft_targets import TTFTTargets
from twostroke.scheduling.admission.waiting_calls import (
    NOTHING,
    Ahead,
    WaitingCall,
    WaitingCalls,
)
from twostroke.timing.step_times import PromptWork

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


class LoadReadings(Protocol):
    """What an engine has told of itself: a ``LoadMeter``, or the copy of one elsewhere.

    Attributes:
        load: After the latest step.
        left: What has stopped waiting since it was looked at, in order.
    """

    load: EngineLoad
    left: deque[Left]


class PredictedAdmission:
    """Keeps the calls that wait, and judges new ones by them. One thread calls all methods.

    A tenant of which nothing waits is always let in, whatever was measured: so none can shut out
    another, and what was measured wrongly is soon measured anew. What the calls that were let in
    truly waited corrects what is expected of the tenant's next ones.
    """

    def __init__(
        self, config: SchedulerConfig, targets: TTFTTargets, readings: LoadReadings
    ) -> None:
        self._policy = config.policy
        self._factor = config.admission_factor
        self._targets = targets
        self._readings = readings
        self._waiting = WaitingCalls()
        self._corrections = Corrections()
        # Of the least call of each tenant, as long as nothing changes.
        self._least: dict[str, tuple[float, Ahead]] = {}
        self._least_holds: tuple[EngineLoad, int] | None = None

    def judge(
        self, arrival: Arrival, now: float, num_cached: Callable[[], int]
    ) -> RefusedRequest | None:
        """``None`` lets the call in; the caller then says so by ``enter``.

        Args:
            now: On the engine's clock.
            num_cached: Prompt tokens that the prefix cache holds; asked only if that may decide.
        """
        target = self._target_to_meet(arrival)
        if target is None:
            return None
        limit = self._factor * target - arrival.waited
        call = self._waiting_call(arrival, now)
        load = self._load_for(arrival.tenant)
        ahead = self._waiting.ahead_of(call, self._policy, now)
        predicted = predict_ttft(load, ahead, call.work)
        if predicted > limit and predict_ttft(load, ahead, PromptWork()) <= limit:
            cached = min(num_cached(), arrival.num_tokens - 1)
            work = PromptWork.of(cached, arrival.num_tokens - cached)
            predicted = predict_ttft(load, ahead, work)
        return self._refusal(arrival, predicted, ahead.num_samples, target)

    def judge_least(self, arrival: Arrival, now: float) -> RefusedRequest | None:
        """Judge the smallest possible call: one sample, no prompt.

        A tenant refused here would be refused whatever it asked for, except more time. This
        costs little while nothing changes: the prediction is kept until the next step or entry.
        """
        target = self._target_to_meet(arrival)
        if target is None or self._policy == "priority":
            return None
        holds = self._readings.load, self._waiting.version
        if self._least_holds is None or self._least_holds != holds:
            self._least.clear()
            self._least_holds = holds
        tenant = arrival.tenant
        if tenant not in self._least:
            call = self._waiting_call(arrival, now)
            ahead = self._waiting.ahead_of(call, self._policy, now)
            self._least[tenant] = predict_ttft(self._load_for(tenant), ahead, NOTHING), ahead
        predicted, ahead = self._least[tenant]
        return self._refusal(arrival, predicted, ahead.num_samples, target)

    def enter(self, arrival: Arrival, now: float) -> None:
        """The call waits from now on."""
        call = self._waiting_call(arrival, now)
        load = self._load_for(arrival.tenant, corrected=False)
        num_entries = entries_before(load, self._waiting.ahead_of(call, self._policy, now))
        expected = num_entries * load.seconds_per_entry
        self._waiting.add(call._replace(entered=now, expected=expected))

    def _target_to_meet(self, arrival: Arrival) -> float | None:
        """``None`` for a call that is let in in any case."""
        self._take_left()
        if not arrival.can_be_late or not self._waiting.of_tenant(arrival.tenant):
            return None
        return self._targets.of(arrival.tenant, arrival.ttft_target)

    def _refusal(
        self, arrival: Arrival, predicted: float, num_ahead: int, target: float
    ) -> RefusedRequest | None:
        if predicted <= self._factor * target - arrival.waited:
            return None
        return RefusedRequest(
            request_id=arrival.call_id,
            tenant=arrival.tenant,
            predicted_ttft=arrival.waited + predicted,
            ttft_target=target,
            factor=self._factor,
            ahead=num_ahead,
        )

    def _load_for(self, tenant: str, *, corrected: bool = True) -> EngineLoad:
        """The engine as a tenant finds it: with a place for each that it may take from others."""
        load = self._readings.load
        if corrected:
            seconds = load.seconds_per_entry * self._corrections.of(tenant)
            load = load._replace(seconds_per_entry=seconds)
        if self._policy != "fair":
            return load
        places = sum(load.running.values()) + load.num_free
        own_places = places // len({*load.running, tenant}) - load.running.get(tenant, 0)
        return load._replace(num_free=max(load.num_free, own_places))

    def _waiting_call(self, arrival: Arrival, now: float) -> WaitingCall:
        target = self._targets.of(arrival.tenant, arrival.ttft_target)
        work = self._readings.load.expected_work(arrival.tenant, arrival.num_tokens)
        latest = (
            math.inf
            if target is None
            else now + target - arrival.waited - self._readings.load.prices.seconds(work)
        )
        return WaitingCall(
            arrival.call_id, arrival.tenant, work, arrival.num_samples, arrival.priority, latest
        )

    def _take_left(self) -> None:
        left = self._readings.left
        for _ in range(len(left)):
            call_id, time, ran = left.popleft()
            call = self._waiting.sample_left(call_id)
            if call is None or not call.expected:
                continue
            waited = max(0.0, time - call.entered)
            # One that left unrun would have waited longer: that says something only if it was long.
            if ran or waited > call.expected:
                self._corrections.add(call.tenant, waited, call.expected)


def retry_after(refused: RefusedRequest) -> int:
    """Whole seconds until a call like it would be let in, if no others come."""
    excess = refused.predicted_ttft - refused.factor * refused.ttft_target
    return max(1, min(math.ceil(excess), LONGEST_RETRY))
