"""One target over its windows: value, verdict, burn rate, and the requests that missed most."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from heapq import heappush, heapreplace
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from twostroke.core.request import Request
from twostroke.core.targets import STATES, UNITS, Target
from twostroke.observability.targets.scales import SCALES
from twostroke.observability.targets.windows import MICROSECONDS, HeldValue, SlidingWindows

Verdict = Literal["met", "missed", "unknown"]
# The window whose verdict is the target's: short enough to follow, too long for one bad second.
VERDICT_SECONDS = 300
WORST_SECONDS, WORST_SLOT_SECONDS = 3600, 60
NUM_WORST = 10


class WindowReport(msgspec.Struct, frozen=True, kw_only=True):
    """One target in one window.

    Attributes:
        seconds: Length of the window.
        value: The percentile (nearest rank; seconds to 1 %), or the share of errors; none without
            observations.
        observations: Requests; for ``kv`` and ``queue``, seconds that the state was known.
        misses: Those of them beyond the limit.
        burn_rate: Share of misses over the share that the target allows: above 1 it is missed.
    """

    seconds: int
    verdict: Verdict
    value: float | None
    observations: float
    misses: float
    burn_rate: float


class MissedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that missed; ``labels`` are what its client calls it (``user`` ...)."""

    request_id: str
    value: float
    seconds_ago: float
    key: str
    labels: dict[str, str]


class TargetReport(msgspec.Struct, frozen=True, kw_only=True):
    """A target, its verdict (that of the last five minutes), and what it stands on.

    Attributes:
        target: The target as ``--target`` takes it.
        key: Names the API key whose requests count.
        total_observations: Since the server began, as ``total_misses``.
        worst: The requests of the last hour that missed most, the worst first.
        model: Whose requests, where a server has several models.
    """

    target: str
    name: str
    metric: str
    percentile: float | None
    limit: float
    unit: str
    key: str
    verdict: Verdict
    total_observations: float
    total_misses: float
    windows: list[WindowReport]
    worst: list[MissedRequest] = []
    model: str | UnsetType = UNSET


class TargetWatch:
    """Counts what happens for one target. Pure: time is passed in, in seconds, and never falls."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._scale = SCALES[target.metric]
        self._windows = SlidingWindows()
        self._state = HeldValue(self._windows) if target.metric in STATES else None
        self._worst = WorstRequests()
        self._observations = self._misses = 0  # of a state: microseconds

    def observe(self, value: float, now: float, request: Request) -> None:
        """Count one request."""
        # For errors 0.5 stands between an answer (0) and a failure (1).
        missed = value > (0.5 if self.target.metric == "errors" else self.target.limit)
        self._windows.add(int(now), 2 * self._scale.level(value) + missed)
        self._observations += 1
        if missed:
            self._misses += 1
            self._worst.add(value, now, request)

    def hold(self, value: float, now: float) -> None:
        """The state that this target is about has this value from now on."""
        if self._state is not None:
            key = 2 * self._scale.level(value) + (value > self.target.limit)
            self._count_time(self._state, now)
            self._state.set(int(now * MICROSECONDS), key)

    def report(self, now: float) -> TargetReport:
        """All about it at this moment."""
        if self._state is not None:
            self._count_time(self._state, now)
        self._windows.advance(int(now))
        target, unit = self.target, 1 if self._state is None else MICROSECONDS
        windows = [self._window(window.seconds, window.totals) for window in self._windows.windows]
        return TargetReport(
            target=target.text,
            name=target.name,
            metric=target.metric,
            percentile=target.percentile,
            limit=target.limit,
            unit=UNITS[target.metric],
            key=target.key,
            verdict=next(w.verdict for w in windows if w.seconds == VERDICT_SECONDS),
            total_observations=self._observations / unit,
            total_misses=self._misses / unit,
            windows=windows,
            worst=self._worst.list(now),
        )

    def _count_time(self, state: HeldValue, now: float) -> None:
        microseconds, key = state.hold(int(now * MICROSECONDS))
        self._observations += microseconds
        if key % 2:
            self._misses += microseconds

    def _window(self, seconds: int, totals: Mapping[int, int]) -> WindowReport:
        count = sum(totals.values())
        misses = sum(number for key, number in totals.items() if key % 2)
        allowed = self.target.allowed
        unit = 1 if self._state is None else MICROSECONDS
        value: float | None = None
        verdict: Verdict = "unknown"
        if count:
            verdict = "met" if misses <= allowed * count else "missed"
            value = misses / count if self.target.percentile is None else self._value(totals, count)
        return WindowReport(
            seconds=seconds,
            verdict=verdict,
            value=value,
            observations=count / unit,
            misses=misses / unit,
            burn_rate=misses / count / float(allowed) if count else 0.0,
        )

    def _value(self, totals: Mapping[int, int], count: int) -> float:
        """The percentile, on the side of the limit that it is on whatever its level spans."""
        rank = count - int(self.target.allowed * count)
        for key in sorted(totals):
            rank -= totals[key]
            if rank <= 0:
                break
        value = self._scale.value(key // 2)
        return max(value, self.target.limit) if key % 2 else min(value, self.target.limit)


class WorstRequests:
    """The ten worst of the last hour, exact to a minute: those of each minute are kept."""

    def __init__(self) -> None:
        self._slots: deque[tuple[int, list[tuple[float, int, _Miss]]]] = deque()
        self._count = 0

    def add(self, value: float, now: float, request: Request) -> None:
        number = int(now) // WORST_SLOT_SECONDS
        if not self._slots or self._slots[-1][0] < number:
            self._slots.append((number, []))
            self._drop_old(now)
        heap = self._slots[-1][1]
        self._count += 1
        # The count keeps misses of equal value from being compared; the earlier one stays.
        entry = (value, -self._count, _Miss(now, request))
        if len(heap) < NUM_WORST:
            heappush(heap, entry)
        elif heap[0] < entry:
            heapreplace(heap, entry)

    def list(self, now: float) -> list[MissedRequest]:
        """The worst first."""
        self._drop_old(now)
        entries = sorted((entry for _, heap in self._slots for entry in heap), reverse=True)
        return [
            MissedRequest(
                request_id=miss.request_id,
                value=value,
                seconds_ago=round(now - miss.time, 3),
                key=miss.key,
                labels=miss.labels,
            )
            for value, _, miss in entries[:NUM_WORST]
        ]

    def _drop_old(self, now: float) -> None:
        oldest = int(now) // WORST_SLOT_SECONDS - WORST_SECONDS // WORST_SLOT_SECONDS
        while self._slots and self._slots[0][0] <= oldest:
            self._slots.popleft()


class _Miss:
    """What is kept of a request: not its tokens."""

    __slots__ = ("key", "labels", "request_id", "time")

    def __init__(self, time: float, request: Request) -> None:
        self.time = time
        self.request_id = request.spec.parent_id
        self.key = request.tenant
        self.labels = dict(request.spec.labels)
