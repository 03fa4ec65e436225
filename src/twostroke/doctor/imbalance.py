"""Replicas against each other: one that is slower, busier, gone, or of the wrong kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean, median

from twostroke.doctor.cause import Cause
from twostroke.doctor.causes import MIN_SHARE
from twostroke.doctor.time_spent import TimePart, TimeSpent
from twostroke.doctor.window import StepWindow

# The same steps take that much longer than on the middle replica.
SLOWER = 1.25
# A replica with that many times the work of the mean has too much.
UNEVEN = 1.3
# A pool that is busy, and that many times as busy as the other, has too few engines.
BUSY, BUSIER = 0.7, 1.6
# A beginning that so many of a replica's prompts share is why they are there.
SHARED = 0.5


@dataclass(frozen=True)
class RouterFacts:
    """What a router says of its engines beside their steps, by their names.

    Attributes:
        idle: Those that had no request in the window.
        roles: What each is for, where that differs.
        routed: How many requests each was sent since the router began, by why.
        trouble: Why it takes no requests, or has not answered for long.
    """

    idle: Sequence[str] = ()
    roles: Mapping[str, str] = field(default_factory=dict)
    routed: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    trouble: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_roles(self) -> bool:
        return len(set(self.roles.values())) > 1

    def role(self, name: str) -> str:
        return self.roles.get(name, "both")


ALIKE = RouterFacts()


@dataclass(frozen=True)
class Compared:
    """Causes that no replica shows alone, and which replicas are slow."""

    causes: list[Cause]
    slow: list[int]


def compare_replicas(
    windows: Sequence[StepWindow], spent: Sequence[TimeSpent], fleet: RouterFacts = ALIKE
) -> Compared:
    """Find what sets some replicas apart.

    What a cause counts: how much longer the requests of those replicas took than those of the
    others do.
    """
    causes = []
    if fleet.trouble:
        number = len(windows) + len(fleet.idle)
        text = [f"{name}: {why}" for name, why in fleet.trouble.items()]
        causes.append(Cause("replica-down", len(fleet.trouble) / max(1, number), 0.0, text))
    fleet_seconds = _Fleet(windows, spent)
    slow = fleet_seconds.slow()
    causes += fleet_seconds.cause("slow-replica", slow, fleet_seconds.slow_evidence)
    for role in sorted({fleet.role(window.name) for window in windows}):
        alike = [p for p, window in enumerate(windows) if fleet.role(window.name) == role]
        idle = [name for name in fleet.idle if fleet.role(name) == role]
        uneven = [place for place in fleet_seconds.uneven(alike, len(idle)) if place not in slow]

        evidence = partial(fleet_seconds.uneven_evidence, alike=alike, idle=idle, fleet=fleet)
        causes += fleet_seconds.cause("imbalance", uneven, evidence, alike)
    if fleet.has_roles:
        causes += _pool_ratio(windows, spent, fleet)
    return Compared(causes, slow)


class _Fleet:
    """Numbers of all replicas."""

    def __init__(self, windows: Sequence[StepWindow], spent: Sequence[TimeSpent]) -> None:
        self._windows, self._spent = windows, spent
        self.means = [each.total / max(1, len(w.requests)) for w, each in zip(windows, spent)]
        self.total = max(1e-9, sum(each.total for each in spent))
        # One common load, on each: the steps of all replicas.
        shapes = [shape for each in spent for shape in each.shapes][:2000]
        self.speeds = [
            float(each.times.seconds_of(shapes).sum()) * _delay(window, each)
            for window, each in zip(windows, spent)
        ]
        self.usual = sorted(self.speeds)[(len(self.speeds) - 1) // 2]
        self.loads = [sum(r.prompt - r.cached + r.output for r in w.requests) for w in windows]

    def slow(self) -> list[int]:
        """Replicas that take longer for the same steps, or stand still between them."""
        return [p for p, seconds in enumerate(self.speeds) if seconds > SLOWER * self.usual]

    def uneven(self, alike: Sequence[int], num_idle: int) -> list[int]:
        """Replicas of one kind that have too much, where others have less or nothing."""
        mean = sum(self.loads[place] for place in alike) / (len(alike) + num_idle)
        return [place for place in alike if self.loads[place] > UNEVEN * mean]

    def cause(
        self,
        name: str,
        places: Sequence[int],
        evidence: Callable[[int], str],
        alike: Sequence[int] | None = None,
    ) -> list[Cause]:
        """The cause, if the requests of these replicas take longer than elsewhere."""
        elsewhere = self._elsewhere(places, alike)
        if not places or elsewhere is None:
            return []
        seconds = sum(
            max(0.0, self.means[place] - elsewhere) * len(self._windows[place].requests)
            for place in places
        )
        if seconds / self.total < MIN_SHARE:
            return []
        text = [
            f"{evidence(place)}; a request there takes {self.means[place]:.3g} s, elsewhere"
            f" {elsewhere:.3g} s"
            for place in places
        ]
        return [Cause(name, seconds / self.total, seconds, text)]

    def _elsewhere(self, places: Sequence[int], alike: Sequence[int] | None) -> float | None:
        """What a request takes on the others; where they have none, what one takes alone."""
        every = range(len(self._windows)) if alike is None else alike
        means = [self.means[place] for place in every if place not in places]
        if means:
            return fmean(means)
        if alike is None:
            return None  # nothing to compare with
        alone = [
            self._spent[place].of(TimePart.MODEL, TimePart.PROMPT)
            / max(1, len(self._windows[place].requests))
            for place in places
        ]
        return fmean(alone) if alone else None

    def slow_evidence(self, place: int) -> str:
        """How much longer the same steps take."""
        window = self._windows[place]
        times = self.speeds[place] / self.usual
        text = f"{window.name} takes {times:.2g} times as long for the same steps"
        delay = _delay(window, self._spent[place])
        if delay > SLOWER:
            text += f", and {delay:.2g} times its own usual time: it stands still at times"
        return text

    def uneven_evidence(
        self, place: int, alike: Sequence[int], idle: Sequence[str], fleet: RouterFacts
    ) -> str:
        """How much more it has to do than the others, and why it was sent there."""
        window = self._windows[place]
        counts = [len(self._windows[each].requests) for each in alike if each != place]
        counts += [0] * len(idle)
        mean = sum(self.loads[each] for each in alike) / (len(alike) + len(idle))
        text = (
            f"{window.name} has {self.loads[place] / max(1.0, mean):.2g} times the mean work"
            f" ({len(window.requests)} requests, of others {median(counts or [0]):g})"
        )
        if shared := _hot_prefix(window):
            text += f", {shared}"
        routed = fleet.routed.get(window.name, {})
        if (followed := routed.get("prefix", 0)) and sum(routed.values()):
            text += (
                f"; the router sent {followed} of {sum(routed.values())} there because it had"
                " their beginning"
            )
        return text


def _delay(window: StepWindow, spent: TimeSpent) -> float:
    """What its steps and the pauses between them took, of what such steps usually take there."""
    events = window.events
    taken = 0.0
    for place, event in enumerate(events):
        end = event.time + event.duration
        if event.num_running and place + 1 < len(events):
            end = max(end, events[place + 1].time)
        taken += end - event.time
    usual = float(spent.times.seconds_of(spent.shapes).sum())
    return max(1.0, taken / usual) if usual > 0 else 1.0


def _hot_prefix(window: StepWindow) -> str:
    """The longest beginning that most of its prompts share; empty if they share none."""
    counts: Counter[tuple[int, int]] = Counter()
    for request in window.requests:
        counts.update(request.prefixes(window.settings.block_size))
    common = [
        (tokens, n) for (tokens, _), n in counts.items() if n >= SHARED * len(window.requests)
    ]
    if not common:
        return ""
    tokens, number = max(common)
    return f"{number} of which begin with the same {tokens} tokens"


def _pool_ratio(
    windows: Sequence[StepWindow], spent: Sequence[TimeSpent], fleet: RouterFacts
) -> list[Cause]:
    """One pool has too few engines for its part of the work, and the other too many."""
    names = [window.name for window in windows] + list(fleet.idle)
    kinds = {kind: [n for n in names if fleet.role(n) == kind] for kind in ("prefill", "decode")}
    if not all(kinds.values()):
        return []
    begin, end = min(w.begin for w in windows), max(w.end for w in windows)
    work, lost = dict.fromkeys(kinds, 0.0), dict.fromkeys(kinds, 0.0)
    for window, each in zip(windows, spent):
        kind = fleet.role(window.name)
        if kind not in work:
            continue
        work[kind] += sum(event.duration for event in window.events)
        lost[kind] += each.of(*_CROWDED[kind])
    busy = {kind: work[kind] / len(kinds[kind]) / max(1e-9, end - begin) for kind in kinds}
    tight, loose = sorted(kinds, key=lambda kind: -busy[kind])
    seconds = lost[tight]
    total = max(1e-9, sum(each.total for each in spent))
    if busy[tight] < BUSY or busy[tight] < BUSIER * busy[loose] or seconds / total < MIN_SHARE:
        return []
    number = len(kinds["prefill"]) + len(kinds["decode"])
    even = round(number * work["prefill"] / max(1e-9, work["prefill"] + work["decode"]))
    even = min(number - 1, max(1, even))
    now = len(kinds["prefill"])
    advice = (
        f"by their work {even} of {number} engines should compute prompts, now {now} do"
        if even != now
        else f"one more engine for {_WORDS[tight]} is what the work asks for"
    )
    text = [
        f"{len(kinds[tight])} {_engines(tight, len(kinds[tight]))} busy {busy[tight]:.0%} of the"
        f" time, {len(kinds[loose])} {_engines(loose, len(kinds[loose]))} busy {busy[loose]:.0%}",
        advice,
    ]
    return [Cause("pool-ratio", seconds / total, seconds, text)]


_WORDS = {"prefill": "prompts", "decode": "answers"}
# What requests of a pool spend on each other.
_CROWDED = {
    "prefill": (
        *(TimePart.BUDGET, TimePart.SEQS, TimePart.BLOCKS, TimePart.PROMPTS, TimePart.POLICY),
    ),
    "decode": (
        *(TimePart.BUDGET, TimePart.SEQS, TimePart.BLOCKS, TimePart.BATCH, TimePart.PREEMPTED),
    ),
}


def _engines(kind: str, number: int) -> str:
    return f"engine for {_WORDS[kind]} is" if number == 1 else f"engines for {_WORDS[kind]} are"
