"""The calls that wait for their first step, and which of them go before a new one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from twostroke.core.config import PolicyName
from twostroke.timing.step_times import PromptWork

NOTHING = PromptWork()


class WaitingCall(NamedTuple):
    """What is known of a call before it runs.

    Attributes:
        work: What its prompt takes, without what the prefix cache is expected to hold.
        num_samples: Places that it needs.
        latest_start: When its prompt must begin, so that it meets its target; ``inf`` without one.
        entered: When it joined the queue.
        expected: Seconds that it was to wait for a place, as counted, without any correction.
    """

    call_id: str
    tenant: str
    work: PromptWork
    num_samples: int = 1
    priority: int = 0
    latest_start: float = float("inf")
    entered: float = 0.0
    expected: float = 0.0


class Ahead(NamedTuple):
    """What goes before a call: places that it takes, and its prompts."""

    num_samples: int = 0
    work: PromptWork = PromptWork()

    def plus(self, call: WaitingCall, num_samples: int | None = None) -> Ahead:
        """This, with a call's samples (all, or the first ``num_samples``) and its prompt."""
        if num_samples is None:
            num_samples = call.num_samples
        return Ahead(self.num_samples + num_samples, self.work.plus(call.work))


class WaitingCalls:
    """The waiting calls in order of arrival.

    Attributes:
        version: Grows with each change.
    """

    def __init__(self) -> None:
        self._calls: dict[str, WaitingCall] = {}
        self._num_samples: Counter[str] = Counter()  # by tenant
        self.version = 0

    def add(self, call: WaitingCall) -> None:
        self._calls[call.call_id] = call
        self._num_samples[call.tenant] += call.num_samples
        self.version += 1

    def sample_left(self, call_id: str) -> WaitingCall | None:
        """One of its samples waits no more: it runs or has ended. The first takes the prompt.

        Returns the call, if that was its first sample.
        """
        call = self._calls.get(call_id)
        if call is None:
            return None
        self.version += 1
        self._num_samples[call.tenant] -= 1
        if call.num_samples > 1:
            # In its place: a call that was added later goes after it.
            rest = call._replace(num_samples=call.num_samples - 1, work=NOTHING)
            self._calls[call_id] = rest
        else:
            del self._calls[call_id]
            if not self._num_samples[call.tenant]:
                del self._num_samples[call.tenant]
        return None if call.work is NOTHING else call

    def of_tenant(self, tenant: str) -> int:
        """Samples that wait for it."""
        return self._num_samples[tenant]

    def __len__(self) -> int:
        return len(self._calls)

    def ahead_of(self, call: WaitingCall, policy: PolicyName, now: float) -> Ahead:
        """What the policy lets run before ``call``, if nothing else arrives.

        Under ``fair`` tenants take turns, so of each other tenant as many samples as the call's own
        tenant has waiting, and one. Under ``deadline`` those that must begin before it and still
        can.
        """
        waiting: Iterable[WaitingCall] = self._calls.values()
        if policy == "priority":
            waiting = (other for other in waiting if other.priority <= call.priority)
        elif policy == "deadline":
            waiting = (other for other in waiting if now <= other.latest_start <= call.latest_start)
        elif policy == "fair":
            return self._in_turns(call.tenant)
        ahead = Ahead()
        for other in waiting:
            ahead = ahead.plus(other)
        return ahead

    def _in_turns(self, tenant: str) -> Ahead:
        ahead, turns = Ahead(), self._num_samples[tenant] + 1
        left = dict.fromkeys(self._num_samples, turns)
        for call in self._calls.values():
            num_samples = call.num_samples
            if call.tenant != tenant:
                num_samples = min(num_samples, left[call.tenant])
                left[call.tenant] -= num_samples
            if num_samples:
                ahead = ahead.plus(call, num_samples)
        return ahead
