"""Targets as Prometheus series: those for all requests, or those of keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec import UNSET
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from twostroke.observability.targets.watch import TargetReport

Reports = Callable[[], Iterable[TargetReport]]


class TargetSeries(Collector):
    """The series ``PREFIX_limit``, ``_value``, ``_met``, ``_burn_rate`` and two counters.

    Args:
        prefix: ``twostroke:target``, or ``twostroke:tenant_target`` for those of keys, which
            have a label ``tenant``.
        reports: The targets at the time of a scrape.
        labels: Further labels of all series.
    """

    def __init__(self, prefix: str, reports: Reports, labels: Mapping[str, str]) -> None:
        self._prefix, self._reports, self._labels = prefix, reports, dict(labels)

    def describe(self) -> Iterable[Metric]:
        """Nothing: registration needs no report."""
        return []

    def collect(self) -> Iterator[Metric]:
        by_key = self._prefix.endswith("tenant_target")
        reports = list(self._reports())
        by_model = any(report.model is not UNSET for report in reports)
        names = [
            *self._labels,
            *(["tenant"] if by_key else []),
            *(["model_name"] if by_model else []),
            "target",
        ]

        def gauge(name: str, text: str, *more: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"{self._prefix}_{name}", text, labels=[*names, *more])

        def counter(name: str, text: str) -> CounterMetricFamily:
            return CounterMetricFamily(f"{self._prefix}_{name}", text, labels=names)

        limit = gauge("limit", "The target's limit, in its unit.")
        value = gauge("value", "Its percentile or share over a window.", "window")
        met = gauge("met", "1 where the window meets it or has nothing to judge.", "window")
        burn = gauge("burn_rate", "Misses over those that the target allows.", "window")
        observed = counter("observations", "What was held to the target: requests, or seconds.")
        missed = counter("misses", "What missed it.")
        for report in reports:
            values = [
                *self._labels.values(),
                *([report.key] if by_key else []),
                *([report.model or ""] if by_model else []),
                report.name,
            ]
            limit.add_metric(values, report.limit)
            observed.add_metric(values, report.total_observations)
            missed.add_metric(values, report.total_misses)
            for window in report.windows:
                labelled = [*values, f"{window.seconds // 60}m"]
                if window.value is not None:
                    value.add_metric(labelled, window.value)
                met.add_metric(labelled, float(window.verdict != "missed"))
                burn.add_metric(labelled, window.burn_rate)
        yield from (limit, value, met, burn, observed, missed)


def render_tenant_targets(reports: Iterable[TargetReport]) -> bytes:
    """The exposition of the targets of keys; empty without any."""
    reports = [report for report in reports if report.key]
    if not reports:
        return b""
    registry = CollectorRegistry()
    registry.register(TargetSeries("twostroke:tenant_target", lambda: reports, {}))
    return generate_latest(registry)
