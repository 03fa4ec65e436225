"""Fits three numbers to half of the measured configurations, and judges the other half."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp, log

from benchmarks.simulator.disaggregated.measured_pools import PoolRow, halves
from benchmarks.simulator.disaggregated.simulated_pools import (
    Fitted,
    SimulatedPools,
    simulate_row,
)
from benchmarks.simulator.kernels import Pair, Result

# Between these a time per token's logarithm is taken to be linear in the number.
NETWORK, ACCEPTANCE = (5e-6, 5e-5), (0.6, 0.8)
LATENCIES = [step / 100 for step in range(51)]
TRIES = 40
SPLIT = "every other configuration; through `simulate`"


@dataclass(frozen=True, slots=True)
class JudgedPools:
    row: PoolRow
    simulated: SimulatedPools

    @property
    def tpot(self) -> Pair:
        return Pair(self.row.tpot, self.simulated.tpot)

    @property
    def ttft(self) -> Pair:
        return Pair(self.row.ttft, self.simulated.ttft)


def fit_pools(rows: Sequence[PoolRow]) -> Fitted:
    """The numbers with the least mean ``|log(estimated / measured)|`` of these rows."""
    start = Fitted(latency=LATENCIES[0])
    plain = [row for row in rows if not row.drafts]
    low, high = [_simulate(plain, replace(start, network=value)) for value in NETWORK]
    share = _best([(row.tpot, low[row].tpot, high[row].tpot) for row in plain])
    fitted = replace(start, network=_between(NETWORK, share))
    drafting = [row for row in rows if row.drafts]
    low, high = [_simulate(drafting, replace(fitted, acceptance=value)) for value in ACCEPTANCE]
    share = _best([(row.tpot, low[row].tpot, high[row].tpot) for row in drafting])
    fitted = replace(fitted, acceptance=_between(ACCEPTANCE, share))
    # What a prompt's way takes longer, its first token comes later, to the second.
    soonest = _simulate([row for row in rows if not row.is_full], fitted)

    def loss(latency: float) -> float:
        pairs = soonest.items()
        return sum(abs(log((each.ttft + latency) / row.ttft)) for row, each in pairs)

    return replace(fitted, latency=min(LATENCIES, key=loss))


def _simulate(rows: Sequence[PoolRow], fitted: Fitted) -> dict[PoolRow, SimulatedPools]:
    return {row: simulate_row(row, fitted) for row in rows}


def _best(times: Sequence[tuple[float, float, float]]) -> float:
    """The share of the way from one end to the other, from (measured, at one, at the other)."""

    def loss(share: float) -> float:
        estimates = (exp(log(low) + share * (log(high) - log(low))) for _, low, high in times)
        return sum(abs(log(e / measured)) for e, (measured, _, _) in zip(estimates, times))

    return min((step / TRIES for step in range(TRIES + 1)), key=loss)


def _between(ends: tuple[float, float], share: float) -> float:
    return round(ends[0] + share * (ends[1] - ends[0]), 7)


def judge_pools(step: int = 1) -> tuple[Fitted, list[JudgedPools]]:
    """What was fitted to one half, and the other half by it; of each every ``step``-th row."""
    fit, kept = halves(step)
    fitted = fit_pools(fit)
    return fitted, [JudgedPools(row, simulate_row(row, fitted)) for row in kept]


def results(judged: Sequence[JudgedPools]) -> Iterator[Result]:
    """Lines of the report."""
    parts = (
        ("", judged),
        (", without drafts", [each for each in judged if not each.row.drafts]),
        (", with drafts", [each for each in judged if each.row.drafts]),
        (", places to spare", [each for each in judged if not each.row.is_full]),
        (", every place taken", [each for each in judged if each.row.is_full]),
    )
    for name, target in (("TPOT", 0.15), ("TTFT", 0.30)):
        for kind, chosen in parts:
            pairs = [each.tpot if name == "TPOT" else each.ttft for each in chosen]
            yield Result(f"{name}{kind}", SPLIT, pairs, "median", None if kind else target)
