"""What lies in the tiers below the KV cache and what moves to and from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from twostroke.observability.events import TierStats


class TierMetrics(Collector):
    """Read from the latest statistics when they are asked for. Without tiers there are none.

    Args:
        labels: Label names and values that all metrics of the engine have.
    """

    def __init__(self, labels: dict[str, str], registry: CollectorRegistry) -> None:
        self._labels = labels
        self.stats: TierStats | None = None
        registry.register(self)

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        if (stats := self.stats) is None:
            return
        names, values = [*self._labels, "tier"], list(self._labels.values())
        size, tokens = stats.block_bytes, stats.block_size
        gauges = (
            ("blocks", "KV blocks in a tier.", stats.blocks, 1),
            ("bytes", "Bytes of the KV blocks in a tier.", stats.blocks, size),
        )
        counters = (
            ("saved_bytes", "Bytes of KV blocks sent to a tier.", stats.saved_blocks, size),
            (
                "loaded_bytes",
                "Bytes of KV blocks from a tier.",
                stats.loaded_blocks,
                size,
            ),
            (
                "hit_tokens",
                "Tokens that came from a tier and so were not computed.",
                Counter(stats.loaded_blocks) - Counter(stats.loaded_state_parts),
                tokens,
            ),
        )
        for name, text, blocks, factor in gauges:
            gauge = GaugeMetricFamily(f"twostroke:kv_tier_{name}", text, labels=names)
            for tier, count in blocks.items():
                gauge.add_metric([*values, tier], count * factor)
            yield gauge
        for name, text, blocks, factor in counters:
            counter = CounterMetricFamily(f"twostroke:kv_tier_{name}", text, labels=names)
            for tier in stats.blocks:
                counter.add_metric([*values, tier], blocks.get(tier, 0) * factor)
            yield counter
        for name, text, value in (
            ("tier_saved_seconds", "Computing less loading of loaded tokens.", stats.seconds_saved),
            ("tier_failed_loads", "Loads of KV blocks that failed.", stats.failed_loads),
            ("swapped_out_requests", "Preempted requests that were swapped.", stats.swapped_out),
            ("swapped_in_requests", "Swapped requests that ran again.", stats.swapped_in),
        ):
            total = CounterMetricFamily(f"twostroke:kv_{name}", text, labels=list(self._labels))
            total.add_metric(values, value)
            yield total
