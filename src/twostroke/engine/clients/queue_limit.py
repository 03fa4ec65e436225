"""Which calls may wait: how many samples, how many of them for one tenant, and how long."""

from __future__ import annotations

from collections.abc import Callable

from twostroke.core.errors import PredictedLateError, QueueFullError
from twostroke.core.generation_request import GenerationRequest
from twostroke.engine.waiting_samples import WaitingSamples
from twostroke.observability.events import RefusedRequest
from twostroke.scheduling.admission.predicted import Arrival, PredictedAdmission, retry_after


class QueueLimit:
    """Bounds what waits, so that no tenant's requests keep those of another out.

    A tenant that has nothing waiting is always let in, and so is one whose waiting samples are no
    more than its share, which is the limit divided by the tenants that have any. So the queue may
    exceed the limit, but a tenant that fills it delays and refuses only itself.

    Args:
        max_waiting: Samples of all tenants together; ``None`` takes them all.
        samples: Counts those that have left the queue, on the engine's thread.
    """

    def __init__(self, max_waiting: int | None, samples: WaitingSamples) -> None:
        self._max_waiting = max_waiting
        self._num_left = samples.num_left
        self._num_submitted: dict[str, int] = {}

    def check(self, tenant: str, num_samples: int) -> None:
        """Raise ``QueueFullError`` if the tenant has to wait before it may send a call.

        Args:
            num_samples: Of all prompts of the call.
        """
        limit, own = self._max_waiting, self._num_waiting(tenant)
        if limit is None or not own:
            return
        waiting = {name: num for name in self._num_submitted if (num := self._num_waiting(name))}
        total = sum(waiting.values())
        share = limit // len(waiting | {tenant: own})
        if total + num_samples <= limit or own + num_samples <= share:
            return
        message = f"{total} requests wait already, and at most {limit} may"
        if len(waiting) > 1:
            message += f"; {own} are this key's, whose share is {share}"
        if num_samples > 1:
            message += f"; this call adds {num_samples} (prompts times n)"
        hint = "try again when some have been answered"
        if num_samples > 1:
            hint += ", or send fewer prompts or a lower n"
        raise QueueFullError(message, hint=f"{hint}; the server's limit is --max-queued-requests")

    def add(self, tenant: str, num_samples: int) -> None:
        """Count samples that are on their way to the engine."""
        self._num_submitted[tenant] = self._num_submitted.get(tenant, 0) + num_samples

    def _num_waiting(self, tenant: str) -> int:
        return self._num_submitted.get(tenant, 0) - self._num_left.get(tenant, 0)


class TargetLimit:
    """Refuses what would miss its TTFT target (``--admission predicted``); else does nothing.

    Args:
        admission: Judges calls; ``None``: all may wait.
        clock: The engine's.
        num_cached: Prompt tokens of a call that the prefix cache holds.
        on_refusal: Gets each call that was refused.
    """

    def __init__(
        self,
        admission: PredictedAdmission | None,
        clock: Callable[[], float],
        num_cached: Callable[[GenerationRequest], int],
        on_refusal: Callable[[RefusedRequest], None],
    ) -> None:
        self._admission = admission
        self._clock = clock
        self._num_cached = num_cached
        self._on_refusal = on_refusal

    def check(self, call: GenerationRequest) -> None:
        """Raise ``PredictedLateError`` if the first token of a call would come too late."""
        if self._admission is None:
            return
        arrival, now = _arrival(call), self._clock()
        self._refuse(self._admission.judge(arrival, now, lambda: self._num_cached(call)))

    def check_least(self, tenant: str, call_id: str, waited: float) -> None:
        """The same for a call of which nothing else is known; what passes is checked once more."""
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

    def add(self, call: GenerationRequest) -> None:
        """Count a call that is on its way to the engine."""
        if self._admission is not None:
            self._admission.enter(_arrival(call), self._clock())

    def leave(self, call_id: str, num_samples: int) -> None:
        """Count a call that could not be added; on the engine's thread."""
        if self._admission is not None:
            self._admission.leave(call_id, num_samples)


def _arrival(call: GenerationRequest) -> Arrival:
    return Arrival(
        call_id=call.request_id,
        tenant=call.tenant,
        num_tokens=len(call.prompt_token_ids),
        num_samples=call.params.n,
        priority=call.priority,
        ttft_target=call.ttft_target,
        can_be_late=call.pooling is None,
        waited=call.waited,
    )
