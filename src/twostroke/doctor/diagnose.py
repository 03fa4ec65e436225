"""From windows to a diagnosis: figures, targets, causes, and advice with its proof."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from statistics import fmean, median

from twostroke.core.targets import Target
from twostroke.doctor.cause import PLAIN, Cause, rank
from twostroke.doctor.causes import find_causes
from twostroke.doctor.figures import SHOWN, Figure, RequestTimes, duration
from twostroke.doctor.imbalance import ALIKE, RouterFacts, compare_replicas
from twostroke.doctor.levers import NO_LEVER
from twostroke.doctor.proof import Tried, prove_levers
from twostroke.doctor.replayed import Replayer
from twostroke.doctor.time_spent import TimePart, TimeSpent, time_spent
from twostroke.doctor.window import RequestReading, StepWindow

# The slowest first tokens: what sets them apart from the others is looked at.
SLOWEST = 0.05
# A P95 of first tokens that is so many times the median is a spike.
SPIKE = 3.0


@dataclass(frozen=True)
class TargetVerdict:
    """A target in the window. ``value``: what the percentile, or the share, is.

    ``server_only``: the server says that it is missed, and the window does not show it.
    """

    target: Target
    value: float
    missed: bool
    server_only: bool = False


@dataclass
class Diagnosis:
    """All that is said of a server.

    Attributes:
        figures: Latencies in seconds, as recorded.
        causes: The largest first, see ``proven_first``; the last is what binds anyway.
        elsewhere: Where to look for causes that no flag changes.
        spike: What sets the slowest first tokens apart, if they are far off.
        parts: Seconds of the requests by part.
    """

    windows: list[StepWindow]
    figures: list[tuple[Figure, float]]
    verdicts: list[TargetVerdict]
    causes: list[Cause]
    tried: Tried
    spike: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    parts: dict[TimePart, float] = field(default_factory=dict)

    @property
    def is_missed(self) -> bool:
        return any(verdict.missed for verdict in self.verdicts)


def diagnose(
    windows: Sequence[StepWindow],
    targets: Sequence[tuple[Target, bool | None]] = (),
    *,
    fleet: RouterFacts = ALIKE,
    proof: bool = True,
    block_bytes: int = 0,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> Diagnosis:
    """Look at one engine, or at several replicas behind one router.

    Args:
        targets: With the server's own verdict, where it has one.
        fleet: What the router says of the replicas.
        block_bytes: What a KV block takes, if that is known.

    Raises:
        ConfigError: Too few steps to fit step times to.
    """
    progress("fitting step times", 0, 1)
    spent = [time_spent(window) for window in windows]
    requests = [request for window in windows for request in window.requests]
    times = [_times(request) for request in requests if request.token_times]
    verdicts = [_verdict(target, said, windows, times) for target, said in targets]
    compared = compare_replicas(windows, spent, fleet)
    merged = _merge(windows, spent, compared.slow)
    if any(cause.name == "pool-ratio" for cause in compared.causes):
        # Its engines are saturated, which is the same seconds; others of the fleet are not.
        merged = [replace(each, is_floor=each.name in PLAIN) for each in merged]
    causes = sorted([*compared.causes, *merged], key=rank)
    tried = Tried()
    if proof and not fleet.has_roles:  # a replay knows one kind of engines
        missed = next((v.target for v in verdicts if v.missed), None)
        faults = [cause.name for cause in causes if not cause.is_floor]
        names = faults or [cause.name for cause in causes]
        tried = prove_levers(
            Replayer(windows, len(fleet.idle)), names, missed, block_bytes, progress
        )
    causes = proven_first(causes, tried)
    parts = {part: sum(each.of(part) for each in spent) for part in TimePart}
    return Diagnosis(
        list(windows),
        [(figure, figure.of(times)) for figure in SHOWN],
        verdicts,
        causes,
        tried,
        _spike(windows, spent),
        [NO_LEVER[cause.name] for cause in causes if cause.name in NO_LEVER],
        parts,
    )


def proven_first(causes: Sequence[Cause], tried: Tried) -> list[Cause]:
    """Put the cause of the best advice before one that no flag changes, if it explains more.

    What a lever takes off its figure is a share of the waiting that its cause is proven to make. A
    share of all requests' time, as that of the host, is only what was seen beside it. Calls that
    were refused and replicas that are down are no share of time, and stay where they are.
    """
    first, advice = causes[0], next(iter(tried.advice), None)
    if advice is None or first.name not in NO_LEVER or not first.seconds:
        return list(causes)
    if advice.main.saved <= first.share:
        return list(causes)
    return sorted(causes, key=lambda cause: cause.name != advice.cause)


def _merge(
    windows: Sequence[StepWindow], spent: Sequence[TimeSpent], slow: Sequence[int]
) -> list[Cause]:
    """Causes of all replicas, weighted by their requests' time.

    Args:
        slow: Replicas that are slow, which is not said again of their machines.
    """
    total = max(1e-9, sum(each.total for each in spent))
    merged: dict[str, Cause] = {}
    for place, (window, each) in enumerate(zip(windows, spent)):
        for cause in find_causes(window, each):
            if place in slow and cause.name in ("machine", "host"):
                continue
            share = cause.share * each.total / total
            evidence = list(cause.evidence)
            if len(windows) > 1:
                evidence = [f"{window.name}: {sentence}" for sentence in evidence[:1]]
            if (before := merged.get(cause.name)) is not None:
                share += before.share
                evidence = [*before.evidence, *evidence][:4]
            seconds = cause.seconds + (before.seconds if before is not None else 0.0)
            floor = cause.is_floor and (before is None or before.is_floor)
            merged[cause.name] = Cause(cause.name, share, seconds, evidence, floor)
    return sorted(merged.values(), key=rank)


def _times(request: RequestReading) -> RequestTimes:
    tokens = request.token_times
    return RequestTimes(request.arrival, tokens[0], tokens[-1], tuple(request.gaps))


def _verdict(
    target: Target, said: bool | None, windows: Sequence[StepWindow], times: Sequence[RequestTimes]
) -> TargetVerdict:
    """Judge a target by the window; the server's own verdict counts too."""
    if target.metric in ("ttft", "tpot", "e2el"):
        figure = Figure(target.metric, target.percentile or 95)
        value = figure.of(times)
        values = [v for each in times for v in each.values(target.metric)]
        misses = sum(each > target.limit for each in values)
        missed = misses > target.allowed * len(values)
    else:
        value, missed = _state(target, windows)
    return TargetVerdict(target, value, missed or bool(said), bool(said) and not missed)


def _state(target: Target, windows: Sequence[StepWindow]) -> tuple[float, bool]:
    """Share of time or of requests beyond the limit, and the value."""
    if target.metric == "errors":
        ends = [ended for w in windows for e in w.events for ended in e.finished]
        value = sum(each.reason.value == "error" for each in ends) / max(1, len(ends))
        return value, value > target.limit
    weighed = sorted(
        (
            1 - event.free_blocks / max(1, event.total_blocks)
            if target.metric == "kv"
            else float(event.num_waiting),
            event.duration,
        )
        for window in windows
        for event in window.events
    )
    total = sum(seconds for _, seconds in weighed)
    beyond = sum(seconds for value, seconds in weighed if value > target.limit)
    allowed, passed = float(1 - Fraction(target.allowed)) * total, 0.0
    for value, seconds in weighed:
        passed += seconds
        if passed >= allowed:
            return value, beyond > float(target.allowed) * total
    return 0.0, False


def _spike(windows: Sequence[StepWindow], spent: Sequence[TimeSpent]) -> list[str]:
    """What sets the slowest first tokens apart: queue, prompt, or eviction, with numbers."""
    rows = [
        (request, each.first[row])
        for window, each in zip(windows, spent)
        for row, request in enumerate(window.requests)
        if request.ttft is not None
    ]
    if len(rows) < 10:
        return []
    rows.sort(key=lambda pair: -(pair[0].ttft or 0.0))
    count = max(1, round(SLOWEST * len(rows)))
    slow, others = rows[:count], rows[count:]
    usual = median(request.ttft or 0.0 for request, _ in others)
    slowest = fmean(request.ttft or 0.0 for request, _ in slow)
    if slowest < SPIKE * usual:
        return []
    parts = {part: fmean(float(r[place]) for _, r in slow) for place, part in enumerate(TimePart)}
    part, seconds = max(parts.items(), key=lambda pair: pair[1])

    def compare(name: str, values: Callable[[RequestReading], float]) -> str:
        first = fmean(values(request) for request, _ in slow)
        return f"{name} {first:,.0f} against {fmean(values(r) for r, _ in others):,.0f}"

    return [
        f"the slowest {count} first tokens took {duration(slowest)}, the others"
        f" {duration(usual)} in the middle; {duration(min(seconds, slowest))} of it: {part.value}",
        "; ".join(
            (
                compare("prompt tokens", lambda request: request.prompt),
                compare("of them cached", lambda request: request.cached),
                compare("requests ahead at arrival", lambda r: _ahead(windows, r)),
            )
        ),
    ]


def _ahead(windows: Sequence[StepWindow], request: RequestReading) -> float:
    """Requests that were there when it came, and had no token yet."""
    return sum(
        each.arrival < request.arrival < (each.first_token or float("inf"))
        for window in windows
        for each in window.requests
    )
