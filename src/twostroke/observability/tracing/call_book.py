"""The stations of recent calls, for the inspector and for recordings."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque

import msgspec

from twostroke.observability.tracing.stations import CallStations, stations_of
from twostroke.observability.tracing.trace import RequestTrace

MAX_ENDED = 1024  # requests; a record takes about 1 kB
MAX_OF_ONE_CALL = 64  # a call may have 256 prompts, which all have the same stations
MAX_UNWRITTEN = 8192
MAX_STATUSES = 16_384  # of calls that have ended, whatever became of them
TOO_MANY = 429


class EndedCalls(msgspec.Struct, frozen=True):
    """How calls ended, the refused ones too.

    Attributes:
        since: From when on they are known, in seconds on the engine's clock.
        statuses: How many got each status; 499: the client left before its answer began.
    """

    since: float
    statuses: dict[int, int]


class CallBook:
    """Keeps the traces of open calls, and a record of those that have ended.

    A call costs an entry in a dictionary, and some microseconds when it ends. All but ``take`` is
    called on the event loop's thread.

    Args:
        keep_unwritten: A recording takes what has ended, by ``take``.
    """

    def __init__(self, *, keep_unwritten: bool = False) -> None:
        self._open: dict[str, RequestTrace] = {}
        self._ended: OrderedDict[str, CallStations] = OrderedDict()
        self._statuses: deque[tuple[float, int]] = deque(maxlen=MAX_STATUSES)
        self._unwritten: deque[CallStations] | None = None
        if keep_unwritten:
            self._unwritten = deque(maxlen=MAX_UNWRITTEN)

    def begin(self, trace: RequestTrace, request_id: str) -> None:
        """The engine gets a request of this call."""
        if len(trace.request_ids) <= MAX_OF_ONE_CALL:
            self._open[request_id] = trace

    def end(self, trace: RequestTrace) -> None:
        """The call is through: HTTP, and the engine."""
        self._statuses.append((trace.ended, trace.status))
        request_ids = trace.request_ids[:MAX_OF_ONE_CALL]
        if not request_ids and trace.status != TOO_MANY:  # it was refused before it got anywhere
            return
        call = stations_of(trace)
        for request_id in request_ids:
            self._open.pop(request_id, None)
            self._ended[request_id] = call
        while len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)
        if self._unwritten is not None:
            self._unwritten.append(call)

    def find(self, request_id: str) -> CallStations | None:
        """The call of a request, or of one of its samples; None if it is not known any more."""
        name = request_id.split("#", 1)[0]
        if (trace := self._open.get(name)) is not None:
            return stations_of(trace)
        return self._ended.get(name)

    def ended_since(self, time: float) -> EndedCalls:
        """How calls ended after a time, as far as that is kept."""
        kept = list(self._statuses)
        full = len(kept) == MAX_STATUSES
        since = max(time, kept[0][0]) if full else time
        counts = Counter(status for ended, status in kept if ended >= since)
        return EndedCalls(since, dict(sorted(counts.items())))

    def take(self) -> list[CallStations]:
        """What has ended since this was called last; on the thread that writes the recording."""
        waiting = self._unwritten
        return [waiting.popleft() for _ in range(len(waiting))] if waiting else []
