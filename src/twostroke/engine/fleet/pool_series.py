"""What a pool of replicas adds to the metrics of its engines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

from twostroke.engine.clients.exposition import exposition_of
from twostroke.engine.fleet.supervised import PoolMember

STATES = ("ready", "starting", "leaving", "asleep", "down")


def pool_exposition(
    model_name: str, wanted: int, members: Sequence[PoolMember], num_starting: int
) -> bytes:
    """Prometheus text: how many replicas there are and should be, and how often each has ended."""
    counts = Counter(each.state for each in members)
    counts["starting"] += num_starting
    replicas = GaugeMetricFamily(
        "twostroke:replicas", "Replicas of a pool by state.", labels=["model_name", "state"]
    )
    for state in STATES:
        replicas.add_metric([model_name, state], counts[state])
    target = GaugeMetricFamily(
        "twostroke:replicas_wanted", "Replicas that a pool should have.", labels=["model_name"]
    )
    target.add_metric([model_name], wanted)
    restarts = CounterMetricFamily(
        "twostroke:replica_restarts",
        "How often a replica's process has ended by itself and was started again.",
        labels=["model_name", "engine"],
    )
    for each in members:
        restarts.add_metric([model_name, str(each.number)], each.num_restarts)
    return exposition_of([replicas, target, restarts])
