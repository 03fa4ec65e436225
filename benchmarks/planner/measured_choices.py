"""Questions to which measured servers have the answer, and what the planner would have chosen.

A question is a serving stack, a model, lengths and a target. Its candidates are the servers that
were measured with them, which differ in the number of H100s and in how many requests run at once.
What one costs is devices times seconds for each request. The planner chooses by its formulas, or by
its simulations, from coefficients that were fitted to the rows of all other models.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from benchmarks.simulator.servers.measured import ServingRow

# A choice is right if its real cost is at most this much above the best measured one, and its real
# latency as little above the target.
TOLERANCE = 0.05
# Targets as people set them, in seconds: for each further token, and for the first.
TPOTS = (0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1)
TTFTS = (None, 0.2, 0.5, 1.0, 2.0)
# Or of the measured latencies: right at what one server reaches, so that an error of any size
# decides.
QUANTILES = (0.2, 0.4, 0.6, 0.8)
LEAST_CANDIDATES = 4
# A target is at the edge where a measured latency that decides is so near to it.
EDGE = 0.1


@dataclass(frozen=True, slots=True)
class Prediction:
    """What is expected of one measured server: means in seconds, requests per second."""

    ttft: float
    tpot: float
    rate: float


@dataclass(frozen=True, slots=True)
class Question:
    """Candidates and a target: most seconds of ``tpot``, and of ``ttft`` if there is a limit."""

    rows: tuple[ServingRow, ...]
    tpot: float
    ttft: float | None

    @property
    def name(self) -> str:
        row = self.rows[0]
        ttft = "" if self.ttft is None else f", TTFT {1e3 * self.ttft:.0f} ms"
        return (
            f"{row.backend} {row.model} {row.weights}, {row.input} + {row.output}:"
            f" TPOT {1e3 * self.tpot:.1f} ms{ttft}"
        )

    @property
    def meeting(self) -> frozenset[ServingRow]:
        """The servers that keep the target, as measured."""
        return frozenset(row for row in self.rows if self.keeps(row.tpot, row.ttft))

    @property
    def is_clear(self) -> bool:
        """Whether no measured latency is within ``EDGE`` of the target."""
        limits = [(row.tpot, self.tpot) for row in self.rows]
        if self.ttft is not None:
            limits += [(row.ttft, self.ttft) for row in self.rows]
        return all(abs(measured / limit - 1) > EDGE for measured, limit in limits)

    def keeps(self, tpot: float, ttft: float, slack: float = 0.0) -> bool:
        within = self.ttft is None or ttft <= self.ttft * (1 + slack)
        return within and tpot <= self.tpot * (1 + slack)


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen, and what it really costs; seconds of a device for each request.

    Attributes:
        chosen: ``None``: the planner says that no candidate meets the target.
        kept: Whether the target is really met, within ``TOLERANCE``.
    """

    question: Question
    chosen: ServingRow | None
    best: ServingRow
    kept: bool

    @property
    def excess(self) -> float:
        """Real cost over the best one's, less 1; infinite without a choice."""
        if self.chosen is None:
            return float("inf")
        return real_cost(self.chosen) / real_cost(self.best) - 1

    @property
    def costs_little(self) -> bool:
        """Whether its real cost is at most ``TOLERANCE`` above the best one's, or below it."""
        return self.chosen is not None and self.excess <= TOLERANCE

    @property
    def overshoot(self) -> float:
        """By how much the choice's real latencies exceed the targets; below 0 if they do not."""
        if self.chosen is None:
            return 0.0
        question = self.question
        shares = [self.chosen.tpot / question.tpot]
        if question.ttft is not None:
            shares.append(self.chosen.ttft / question.ttft)
        return max(shares) - 1

    @property
    def is_right(self) -> bool:
        return self.kept and self.costs_little


def real_cost(row: ServingRow) -> float:
    """Seconds of a device for each request, as measured."""
    return row.ranks * row.seconds / row.concurrency


def questions(rows: Sequence[ServingRow], *, on_the_edge: bool = False) -> Iterator[Question]:
    """All questions that some candidates answer, and some do not.

    Args:
        on_the_edge: Targets are measured latencies of candidates, not round numbers.
    """
    groups: dict[tuple[object, ...], list[ServingRow]] = defaultdict(list)
    for row in rows:
        groups[row.backend, row.model, row.weights, row.input, row.output].append(row)
    for group in groups.values():
        if len(group) < LEAST_CANDIDATES:
            continue
        for tpot, ttft in _measured_targets(group) if on_the_edge else product(TPOTS, TTFTS):
            question = Question(tuple(group), tpot, ttft)
            meeting = sum(question.keeps(row.tpot, row.ttft) for row in group)
            if 0 < meeting < len(group):
                yield question


def _measured_targets(group: Sequence[ServingRow]) -> Iterator[tuple[float, float | None]]:
    tpots, ttfts = sorted(row.tpot for row in group), sorted(row.ttft for row in group)
    for quantile in QUANTILES:
        for ttft in (None, ttfts[len(ttfts) // 2]):
            yield tpots[int(quantile * (len(tpots) - 1))], ttft


def choose(question: Question, predictions: Mapping[ServingRow, Prediction]) -> Choice:
    """The cheapest candidate that is predicted to meet the target."""
    meeting = [
        row for row in question.rows if question.keeps(predictions[row].tpot, predictions[row].ttft)
    ]
    chosen = min(meeting, key=lambda row: row.ranks / predictions[row].rate, default=None)
    really = [row for row in question.rows if question.keeps(row.tpot, row.ttft)]
    best = min(really, key=real_cost)
    kept = chosen is not None and question.keeps(chosen.tpot, chosen.ttft, TOLERANCE)
    return Choice(question, chosen, best, kept)
