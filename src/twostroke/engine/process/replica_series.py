"""What a client of several engines adds to their metrics: what it sees of each from outside."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

from twostroke.engine.clients.exposition import exposition_of
from twostroke.observability.tracing.names import FAILOVER, HANDED_ON

MOVES = (FAILOVER, HANDED_ON)


class SeenEngine(NamedTuple):
    """One engine, as the requests' way to it is concerned.

    Attributes:
        labels: Those of its metrics.
        up: Whether it takes requests.
        left_out: Whether it gets none since it fails again and again.
        failures: How often it has ended by itself.
        failovers: Requests of it that went on in another.
        routed: Requests that were sent to it, by why.
    """

    labels: dict[str, str]
    up: bool
    left_out: bool
    failures: int
    failovers: int
    routed: dict[str, int]


class RouteCounts:
    """Counts where requests went and why, by the index of an engine.

    Attributes:
        sent: Requests by engine and reason: a ``RouteReason``, or one of ``MOVES``.
        left: Requests that went on in another, by engine and reason.
    """

    def __init__(self) -> None:
        self.sent: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self.left: defaultdict[int, Counter[str]] = defaultdict(Counter)

    def note(self, index: int, reason: str, giver: int | None = None) -> None:
        """An engine has taken a request, that of another or a new one."""
        self.sent[index][reason] += 1
        if giver is not None:
            self.left[giver][reason] += 1

    def routed(self, index: int) -> dict[str, int]:
        """Requests that were sent to an engine, by why."""
        return dict(self.sent[index])

    def num_left(self, index: int) -> int:
        """Requests of an engine that went on in others."""
        return self.left[index].total()

    def forget(self, index: int) -> None:
        """An engine is gone for good."""
        self.sent.pop(index, None)
        self.left.pop(index, None)


def replica_exposition(engines: Sequence[SeenEngine]) -> bytes:
    """Prometheus text: which engines are there, and what has become of their requests."""
    names = list(engines[0].labels)
    up = GaugeMetricFamily("twostroke:engine_up", "1 where it takes requests.", labels=names)
    left_out = GaugeMetricFamily(
        "twostroke:engine_left_out",
        "1 where it gets no requests for a while, since it fails again and again.",
        labels=names,
    )
    failures = CounterMetricFamily(
        "twostroke:engine_failures", "How often it has ended by itself.", labels=names
    )
    failovers = CounterMetricFamily(
        "twostroke:engine_failovers",
        "Requests that went on in another engine when it had ended.",
        labels=names,
    )
    routed = CounterMetricFamily(
        "twostroke:routed_requests",
        "Requests that were sent to it, by why it was this one.",
        labels=[*names, "reason"],
    )
    for each in engines:
        values = [each.labels[name] for name in names]
        up.add_metric(values, each.up)
        left_out.add_metric(values, each.left_out)
        failures.add_metric(values, each.failures)
        failovers.add_metric(values, each.failovers)
        for reason, number in sorted(each.routed.items()):
            routed.add_metric([*values, reason], number)
    return exposition_of([up, left_out, failures, failovers, routed])
