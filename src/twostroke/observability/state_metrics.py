"""How prefix hits of models with recurrent layers fare, and why they are not longer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from twostroke.core.prefix_hit import PrefixEnd
from twostroke.core.request import Request


class StateMetrics(Collector):
    """Counts prefix hits of models with recurrent layers; other models have no such metrics.

    Args:
        labels: Label names and values that all metrics of the engine have.
    """

    def __init__(self, labels: dict[str, str], registry: CollectorRegistry) -> None:
        self._labels = labels
        self._ends: Counter[PrefixEnd] = Counter()
        self._recomputed = 0
        registry.register(self)

    def observe(self, started: Iterable[Request]) -> None:
        """Count the hits of requests that run for the first time."""
        for request in started:
            if (hit := request.prefix_hit) is not None:
                self._ends[hit.end] += 1
                self._recomputed += hit.block_tokens - hit.state_tokens

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        if not self._ends:
            return
        names, values = list(self._labels), list(self._labels.values())
        ends = CounterMetricFamily(
            "twostroke:prefix_hit_ends",
            "Requests, by why their prefix hit was not longer.",
            labels=[*names, "reason"],
        )
        for end in PrefixEnd:
            ends.add_metric([*values, end.value], self._ends[end])
        yield ends
        recomputed = CounterMetricFamily(
            "twostroke:prefix_tokens_without_state",
            "Tokens whose blocks were cached, computed again for want of a checkpoint.",
            labels=names,
        )
        recomputed.add_metric(values, self._recomputed)
        yield recomputed
