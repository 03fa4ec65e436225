"""What a client of several engines adds to their metrics: what it sees of each from outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

from twostroke.engine.clients.exposition import exposition_of


class SeenEngine(NamedTuple):
    """One engine, as the requests' way to it is concerned.

    Attributes:
        labels: Those of its metrics.
        up: Whether it takes requests.
        left_out: Whether it gets none since it fails again and again.
        failures: How often it has ended by itself.
        failovers: Requests of it that went on in another.
    """

    labels: dict[str, str]
    up: bool
    left_out: bool
    failures: int
    failovers: int


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
    for each in engines:
        values = [each.labels[name] for name in names]
        up.add_metric(values, each.up)
        left_out.add_metric(values, each.left_out)
        failures.add_metric(values, each.failures)
        failovers.add_metric(values, each.failovers)
    return exposition_of([up, left_out, failures, failovers])
