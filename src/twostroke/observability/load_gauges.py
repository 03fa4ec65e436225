"""What the scheduler has to do at the moment, as metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from twostroke.observability.events import SchedulerStats


class LoadGauges(Collector):
    """Read from the latest statistics when they are asked for.

    Args:
        labels: Label names and values that all metrics of the engine have.
        read_stats: The scheduler's state.
    """

    def __init__(self, labels: dict[str, str], read_stats: Callable[[], SchedulerStats]) -> None:
        self._labels = labels
        self._read_stats = read_stats

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        stats = self._read_stats()
        yield self._gauge(
            "vllm:num_requests_running", "Requests in model execution batches.", stats.num_running
        )
        yield self._gauge(
            "vllm:num_requests_waiting", "Requests waiting to be processed.", stats.num_waiting
        )
        by_reason = GaugeMetricFamily(
            "vllm:num_requests_waiting_by_reason",
            "Requests waiting, for room (capacity) or for a transfer (deferred).",
            labels=[*self._labels, "reason"],
        )
        values = list(self._labels.values())
        by_reason.add_metric([*values, "capacity"], stats.num_waiting - stats.num_deferred)
        by_reason.add_metric([*values, "deferred"], stats.num_deferred)
        yield by_reason
        total, slots = stats.total_blocks, stats.allocated_slots
        yield self._gauge(
            "vllm:kv_cache_usage_perc",
            "KV cache usage; 1 means 100 percent.",
            1 - stats.free_blocks / total if total else 0.0,
        )
        yield self._gauge(
            "twostroke:kv_cache_waste_ratio",
            "Share of allocated KV slots without a token.",
            1 - stats.used_slots / slots if slots else 0.0,
        )

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        gauge = GaugeMetricFamily(name, text, labels=[*self._labels])
        gauge.add_metric([*self._labels.values()], value)
        return gauge
