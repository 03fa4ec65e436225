"""Replicas against each other: one that is slower, or has more to do."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

from twostroke.doctor.cause import Cause
from twostroke.doctor.causes import MIN_SHARE
from twostroke.doctor.time_spent import TimeSpent
from twostroke.doctor.window import StepWindow

# The same steps take that much longer than on the middle replica.
SLOWER = 1.25
# A replica with that many times the work of the mean has too much.
UNEVEN = 1.3


def compare_replicas(windows: Sequence[StepWindow], spent: Sequence[TimeSpent]) -> list[Cause]:
    """Causes that no replica shows alone.

    What a cause counts: how much longer the requests of those replicas took than those of the
    others do.
    """
    means = [each.total / max(1, len(w.requests)) for w, each in zip(windows, spent)]
    total = max(1e-9, sum(each.total for each in spent))
    # One common load, on each: the steps of all replicas.
    shapes = [shape for each in spent for shape in each.shapes][:2000]
    speeds = [float(each.times.seconds_of(shapes).sum()) for each in spent]
    usual = sorted(speeds)[(len(speeds) - 1) // 2]
    slow = [place for place, seconds in enumerate(speeds) if seconds > SLOWER * usual]
    loads = [sum(r.prompt - r.cached + r.output for r in w.requests) for w in windows]
    uneven = [
        place
        for place, load in enumerate(loads)
        if load > UNEVEN * fmean(loads) and place not in slow
    ]
    causes = []
    for name, places in (("slow-replica", slow), ("imbalance", uneven)):
        if not places or len(places) == len(windows):
            continue
        mean_elsewhere = fmean(mean for place, mean in enumerate(means) if place not in places)
        seconds = sum(
            max(0.0, means[place] - mean_elsewhere) * len(windows[place].requests)
            for place in places
        )
        if seconds / total < MIN_SHARE:
            continue
        if name == "slow-replica":
            text = [
                f"{windows[p].name} takes {speeds[p] / usual:.2g} times as long for the same steps;"
                f" a request there takes {means[p]:.3g} s, elsewhere {mean_elsewhere:.3g} s"
                for p in places
            ]
        else:
            text = [
                f"{windows[p].name} has {loads[p] / max(1.0, fmean(loads)):.2g} times the mean"
                f" work ({len(windows[p].requests)} requests, of others"
                f" {median(len(w.requests) for w in windows):g}); a request there takes"
                f" {means[p]:.3g} s, elsewhere {mean_elsewhere:.3g} s"
                for p in places
            ]
        causes.append(Cause(name, seconds / total, seconds, text))
    return causes
