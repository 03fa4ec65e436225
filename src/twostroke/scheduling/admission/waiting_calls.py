"""The calls that wait for their first step, and which of them go before a new one."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from twostroke.core.config import PolicyName
from twostroke.scheduling.step_times import PromptWork


class WaitingCall(NamedTuple):
    """What is known of a call before it runs.

    Attributes:
        work: What its prompt takes, without what the prefix cache is expected to hold.
        num_samples: Places that it needs.
        latest_start: When its prompt must begin, so that it meets its target; ``inf`` without one.
    """

    call_id: str
    tenant: str
    work: PromptWork
    num_samples: int = 1
    priority: int = 0
    latest_start: float = float("inf")


class Ahead(NamedTuple):
    """What goes before a call: places that it takes, and its prompts."""

    num_samples: int = 0
    work: PromptWork = PromptWork()

    def plus(self, call: WaitingCall) -> Ahead:
        return Ahead(self.num_samples + call.num_samples, self.work.plus(call.work))


class WaitingCalls:
    """In order of arrival."""

    def __init__(self) -> None:
        self._calls: dict[str, WaitingCall] = {}

    def add(self, call: WaitingCall) -> None:
        self._calls[call.call_id] = call

    def sample_left(self, call_id: str) -> None:
        """One of its samples waits no more: it runs or has ended. The first takes the prompt."""
        call = self._calls.pop(call_id, None)
        if call is not None and call.num_samples > 1:
            rest = call._replace(num_samples=call.num_samples - 1, work=PromptWork())
            self._calls[call_id] = rest

    def __len__(self) -> int:
        return len(self._calls)

    def ahead_of(self, call: WaitingCall, policy: PolicyName, now: float) -> Ahead:
        """What the policy lets run before ``call``, if nothing else arrives.

        Under ``fair`` tenants take turns, so of each other tenant as many as the call's own tenant
        has waiting, and one. Under ``deadline`` those that must begin before it and still can.
        """
        waiting: Iterable[WaitingCall] = self._calls.values()
        if policy == "priority":
            waiting = (other for other in waiting if other.priority <= call.priority)
        elif policy == "deadline":
            waiting = (other for other in waiting if now <= other.latest_start <= call.latest_start)
        elif policy == "fair":
            waiting = self._in_turns(call.tenant)
        ahead = Ahead()
        for other in waiting:
            ahead = ahead.plus(other)
        return ahead

    def _in_turns(self, tenant: str) -> Iterable[WaitingCall]:
        by_tenant: dict[str, list[WaitingCall]] = {}
        for call in self._calls.values():
            by_tenant.setdefault(call.tenant, []).append(call)
        own = by_tenant.pop(tenant, [])
        yield from own
        for calls in by_tenant.values():
            yield from islice(calls, len(own) + 1)
