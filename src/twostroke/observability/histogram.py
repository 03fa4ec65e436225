"""A Prometheus histogram that can count many equal observations at once."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector


class BulkHistogram(Collector):
    """A ``prometheus_client.Histogram`` of one set of labels, which observes ``count`` at once.

    A run of decode steps gives the same gap to thousands of tokens. One thread observes; a scrape
    on another thread may see a bucket one observation ahead of the sum. The sum is kept in whole
    billionths, so that neither order nor grouping of the observations changes it.

    Args:
        labels: Names and values.
        edges: Upper ends of the buckets, each part of its bucket, rising; ``+Inf`` is added.
    """

    def __init__(
        self,
        name: str,
        text: str,
        labels: dict[str, str],
        edges: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._edges = [float(edge) for edge in edges]
        self._bounds = [*map(str, self._edges), "+Inf"]
        self._counts = [0] * len(self._bounds)
        self._sum_billionths = 0
        self._created = time.time()
        registry.register(self)

    def observe(self, value: float, count: int = 1) -> None:
        """Count ``count`` observations of ``value``."""
        self._counts[bisect_left(self._edges, value)] += count
        self._sum_billionths += round(value * 1e9) * count

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._text, labels=list(self._labels))
        total, buckets = 0, []
        for bound, count in zip(self._bounds, self._counts):
            total += count
            buckets.append((bound, float(total)))
        family.add_metric(list(self._labels.values()), buckets, self._sum_billionths / 1e9)
        family.add_sample(f"{self._name}_created", self._labels, self._created)
        yield family
