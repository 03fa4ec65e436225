"""What requests waited for, in seconds by reason: of each request, and in each minute.

A plan says why a request got nothing, and that holds until the next plan. Of a queue it names the
first; those behind it wait for the same reason.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import inf

import msgspec

from twostroke.core.step import Reason
from twostroke.observability.events import HeldBackRequest, StepEvent

NEXT_STEP = "next_step"  # it came while a step ran: no plan could have had it
WAKING = "waking"  # it came while the engine rested: no step ran until its own did
PREEMPTED = "preempted"
MINUTE = 60.0
_ASIDE = (Reason.SHARES_PROMPT, Reason.LOADING)  # of requests beside the queue


class LostBlocks(msgspec.Struct):
    """A request lost its blocks at ``time`` to the request ``by``, and ran again later.

    Attributes:
        by: ``None``: it yielded to all, or the caller may not know.
        seconds: Until it ran again; ``None`` while it waits.
    """

    time: float
    by: str | None
    seconds: float | None = None


class RequestWaits(msgspec.Struct):
    """Seconds that one request stood still, by reason.

    Attributes:
        queue: Before its first step.
        later: Between two of its steps: a plan left it out, or it was preempted.
    """

    request_id: str
    tenant: str = ""
    queue: dict[str, float] = {}
    later: dict[str, float] = {}
    preemptions: list[LostBlocks] = []


class MinuteWaits(msgspec.Struct):
    """Seconds that all requests together waited in a minute that began at ``begin``."""

    begin: float
    seconds: dict[str, float] = {}


@dataclass(slots=True)
class _Kept:
    """A request; ``named``: (begin, end, reason) of times in which plans named it in the queue."""

    waits: RequestWaits
    named: list[tuple[float, float, str]] = field(default_factory=list)
    started: bool = False
    lost: LostBlocks | None = None


class WaitBook:
    """Filled step by step by one thread, read by any.

    Args:
        keep: Ended requests that are kept, the latest ones; ``None``: all.
    """

    def __init__(self, keep: int | None = None) -> None:
        self._keep = keep
        self._kept: dict[str, _Kept] = {}
        self._ended: dict[str, None] = {}
        self._minutes: dict[int, MinuteWaits] = {}
        self._times = array("d")  # when steps began
        self._rests = array("d")  # since when there was nothing to do before them; inf: not at all
        self._runs: list[tuple[float, str]] = []  # from when on the queue waits for what
        self._before: StepEvent | None = None

    @property
    def last_step(self) -> int:
        return -1 if self._before is None else self._before.step

    def add(self, event: StepEvent) -> None:
        """Take in the next step."""
        if self._before is not None:
            self._pass(self._before, event)
        self._rests.append(_rested_since(self._before, event))
        self._before = event
        self._times.append(event.time)
        reason = next((h.reason.value for h in _left_out(event) if h.reason not in _ASIDE), "")
        if not self._runs or self._runs[-1][1] != reason:
            self._runs.append((event.time, reason))
        tenants = {started.request_id: started.tenant for started in event.started}
        for share in event.scheduled:
            kept = self._of(share.request_id)
            if not kept.started:
                kept.started = True
                kept.waits.tenant = tenants.get(share.request_id, "")
                if share.queued_since is not None:
                    self._count_queue(kept, share.queued_since, event.time)
                kept.named.clear()
            if kept.lost is not None:
                kept.lost.seconds = event.time - kept.lost.time
                _add(kept.waits.later, PREEMPTED, kept.lost.seconds)
                kept.lost = None
        for preempted in event.preempted:
            kept = self._of(preempted.request_id)
            kept.lost = LostBlocks(event.time, preempted.by)
            kept.waits.preemptions.append(kept.lost)
        for finished in event.finished:
            if finished.request_id in self._kept:
                self._ended[finished.request_id] = None
        self._forget()

    def of(self, request_id: str) -> RequestWaits | None:
        """What is known of a request so far, once a plan has named it."""
        kept = self._kept.get(request_id)
        if kept is None:
            return None
        waits = kept.waits
        if kept.started:
            return waits
        queue: dict[str, float] = {}
        for begin, end, reason in kept.named:
            _add(queue, reason, end - begin)
        return msgspec.structs.replace(waits, queue=queue)

    def minutes(self, begin: float, end: float) -> list[MinuteWaits]:
        """The minutes between two times in which something waited, in order."""
        first, last = int(begin // MINUTE), int(end // MINUTE)
        return [self._minutes[n] for n in sorted(self._minutes) if first <= n <= last]

    def _of(self, request_id: str) -> _Kept:
        kept = self._kept.get(request_id)
        if kept is None:
            kept = self._kept[request_id] = _Kept(RequestWaits(request_id, queue={}, later={}))
            kept.waits.preemptions = []
        return kept

    def _pass(self, before: StepEvent, after: StepEvent) -> None:
        """The time between two plans went by as the first of them had said."""
        begin, end = before.time, after.time
        if after.step != before.step + 1:  # steps between them are not known
            end = min(end, begin + before.duration)
        for held in _left_out(before):
            number = held.behind + bool(held.request_id)
            self._count_minute(held.reason.value, begin, end, number)
            if not held.request_id:
                continue
            kept = self._of(held.request_id)
            if not kept.started:
                if kept.named and kept.named[-1][1:] == (begin, held.reason.value):
                    kept.named[-1] = (kept.named[-1][0], end, held.reason.value)
                else:
                    kept.named.append((begin, end, held.reason.value))
            elif kept.lost is None:
                _add(kept.waits.later, held.reason.value, end - begin)

    def _count_queue(self, kept: _Kept, arrival: float, started: float) -> None:
        """Where plans named the request, by their reasons; else by those of the queue's first."""
        queue = kept.waits.queue
        place = bisect_left(self._times, arrival)
        planned = min(started, self._times[place]) if place < len(self._times) else started
        if planned > arrival:
            rest = self._rests[place] if place < len(self._rests) else inf
            woken = min(planned, max(arrival, rest))
            for reason, begin, end in ((NEXT_STEP, arrival, woken), (WAKING, woken, planned)):
                _add(queue, reason, end - begin)
                self._count_minute(reason, begin, end, 1)
        at = planned
        for begin, end, reason in kept.named:
            begin, end = max(begin, at), min(end, started)
            if end <= begin:
                continue
            self._count_runs(queue, at, begin)
            _add(queue, reason, end - begin)
            at = end
        self._count_runs(queue, at, started)

    def _count_runs(self, queue: dict[str, float], begin: float, end: float) -> None:
        place = bisect_right(self._runs, begin, key=lambda run: run[0]) - 1
        while begin < end:
            after = self._runs[place + 1][0] if place + 1 < len(self._runs) else end
            until = min(end, after)
            _add(queue, self._runs[place][1] or NEXT_STEP, until - begin)
            begin, place = until, place + 1

    def _count_minute(self, reason: str, begin: float, end: float, number: int) -> None:
        for minute, seconds in _by_minute(begin, end):
            row = self._minutes.get(minute)
            if row is None:
                row = self._minutes[minute] = MinuteWaits(minute * MINUTE, {})
            _add(row.seconds, reason, number * seconds)

    def _forget(self) -> None:
        if self._keep is None:
            return
        while len(self._ended) > self._keep:
            request_id = next(iter(self._ended))
            del self._ended[request_id]
            self._kept.pop(request_id, None)
        if len(self._times) > 64 * self._keep:
            del self._times[: 32 * self._keep]
            del self._rests[: 32 * self._keep]
            oldest = bisect_right(self._runs, self._times[0], key=lambda run: run[0]) - 1
            del self._runs[: max(0, oldest)]
        while len(self._minutes) > self._keep:
            del self._minutes[next(iter(self._minutes))]


def _rested_since(before: StepEvent | None, event: StepEvent) -> float:
    """When the engine had nothing to do before a step; a pause of its loop is no rest."""
    if event.step == 0:
        return -inf
    if before is None or event.step != before.step + 1:
        return inf  # what ran before it is not known
    end = before.time + before.duration
    # Requests that were aborted after a step count as running in it.
    return end + before.duration if before.num_running or before.num_waiting else end


def _left_out(event: StepEvent) -> Iterable[HeldBackRequest]:
    """Requests that a plan left out; others that it held back got a part of what they lack."""
    if not event.held_back:
        return ()
    ran = {share.request_id for share in event.scheduled}
    return [held for held in event.held_back if held.request_id not in ran]


def _by_minute(begin: float, end: float) -> Iterator[tuple[int, float]]:
    while begin < end:
        minute = int(begin // MINUTE)
        until = min(end, (minute + 1) * MINUTE)
        yield minute, until - begin
        begin = until


def _add(seconds: dict[str, float], reason: str, more: float) -> None:
    if more > 0:
        seconds[reason] = seconds.get(reason, 0.0) + more
