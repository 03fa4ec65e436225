"""Time of collectives.

Of an all-reduce within a node three algorithms, as in today's servers, for ``N`` devices
and ``s`` bytes:

- One-shot: every device reads all messages and adds them; one synchronisation, ``(N - 1) s`` bytes.
- Two-shot: every device reduces its part, then the parts are gathered; two synchronisations,
  ``2 (N - 1) / N s`` bytes.
- Ring: the communication library's, for large messages; bytes as two-shot, a longer start.

For small messages the faster of the first two counts.
"""

from __future__ import annotations

from math import pow, sqrt

from twostroke.simulator.cost.efficiencies import AllReduceEfficiency, AllToAllEfficiency


def all_reduce_time(
    size: float, ranks: int, *, efficiency: AllReduceEfficiency, link: float
) -> float:
    """Seconds to add up ``size`` bytes over ``ranks`` devices; 0 for one device.

    Args:
        link: Bytes/s per direction between two devices.
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
    """Seconds until every device has all ``size`` bytes, of which each holds an equal part."""
    if ranks == 1 or not size:
        return 0.0
    return (
        efficiency.launch
        + efficiency.rank * (ranks - 2)
        + size * (ranks - 1) / ranks / (efficiency.two_shot * link)
    )


def all_to_all_time(
    size: float, ranks: int, *, efficiency: AllToAllEfficiency, link: float
) -> float:
    """Seconds until each device has sent its ``size`` bytes, equal parts to all; 0 for one."""
    if ranks == 1 or not size:
        return 0.0
    return efficiency.launch + size * (ranks - 1) / ranks / (efficiency.share * link)
