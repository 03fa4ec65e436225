"""Time of an all-reduce within a node.

Three ways, as in servers of today. One-shot: every device reads everybody's message and adds; one
synchronisation, ``(N - 1) s`` bytes in. Two-shot: everyone reduces its part and the parts are
gathered; two, ``2 (N - 1) / N s`` bytes. Ring: the library's own, for large messages; the same
bytes as two-shot, a longer start. For small messages the better of the first two counts.
"""

from __future__ import annotations

from math import pow, sqrt

from twostroke.simulator.cost.efficiencies import AllReduceEfficiency


def all_reduce_time(
    size: float, ranks: int, *, efficiency: AllReduceEfficiency, link: float
) -> float:
    """Seconds to add ``size`` bytes over ``ranks`` devices joined by ``link`` bytes/s per
    direction; 0 for one.
    """
    if ranks == 1 or not size:
        return 0.0
    e = efficiency
    share = 2 * (ranks - 1) / ranks * size / link
    if size >= e.ring_from:
        return e.ring_launch * sqrt(ranks - 1) + share / e.ring * pow(ranks / 2, e.ring_crowding)
    crowding = pow(ranks / 2, e.crowding)
    start = e.launch + e.rank * (ranks - 2)
    one_shot = (ranks - 1) * size / (e.one_shot * link) * crowding
    two_shot = e.sync + share / e.two_shot * crowding
    return start + min(one_shot, two_shot)


def all_gather_time(
    size: float, ranks: int, *, efficiency: AllReduceEfficiency, link: float
) -> float:
    """Seconds until every device has the ``size`` bytes of which each holds an equal part."""
    if ranks == 1 or not size:
        return 0.0
    return (
        efficiency.launch
        + efficiency.rank * (ranks - 2)
        + size * (ranks - 1) / ranks / (efficiency.two_shot * link)
    )
