"""Latencies where replicas compute prompts for others that write the answers, by formulas.

A request waits for its prompt among prompts alone; its blocks move; it waits for a place among
requests that decode. The client has its first token when the prompt is computed, as `twostroke
serve` sends it: what follows until the second is part of the time for each further token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from twostroke.planner.apart.prompt_curve import PromptCurve
from twostroke.planner.steady import MOST_USE, Steady, TimeSpread, open_loop
from twostroke.planner.step_curve import StepCurve
from twostroke.planner.traffic import Lengths, Traffic
from twostroke.simulator.jumping.decode_curve import Bound

# Halvings of the interval in which a closed loop's rate is: it is right to a thousandth.
HALVINGS = 12


@dataclass(frozen=True, slots=True)
class Handover:
    """How a prompt's blocks move.

    Attributes:
        seconds: What the fresh blocks of a mean prompt take at one end of the link.
        latency: Until the first comes.
    """

    seconds: float
    latency: float


@dataclass(frozen=True, slots=True)
class SplitReplicas:
    """Engines of two roles, and how many there are of each.

    Attributes:
        limit: Most requests that decode at once in one of ``answers``.
    """

    prompts: PromptCurve
    num_prompts: int
    answers: StepCurve
    num_answers: int
    limit: float
    handover: Handover


def split_steady(
    replicas: SplitReplicas, traffic: Traffic, bound: Bound
) -> tuple[Steady, float] | None:
    """One replica that writes answers, and the load of those that compute prompts.

    Returns:
        ``None`` if more comes than they can do.
    """
    if traffic.users is None:
        return _at_rate(replicas, traffic.rate, traffic.lengths, bound)
    most = MOST_USE * _capacity(replicas, bound)
    low, high = 0.0, most
    best = None
    for _ in range(HALVINGS):
        rate = (low + high) / 2
        state = _at_rate(replicas, rate, traffic.lengths, bound)
        # As many come as users are left who neither think nor wait.
        under_way = (
            traffic.users + 1.0
            if state is None
            else rate * (traffic.think_time + state[0].e2e.at(None))
        )
        if under_way > traffic.users:
            high = rate
        else:
            low, best = rate, state
    if best is None:  # so few users that the last half is still too much
        return _at_rate(replicas, high, traffic.lengths, bound)
    if low < most * 0.999:
        return best
    # More users than fit wait for a place.
    full, load = best
    waiting = traffic.users / low - traffic.think_time - full.e2e.at(None)
    return _waiting(full, max(waiting, 0.0)), load


def _capacity(replicas: SplitReplicas, bound: Bound) -> float:
    """Requests in a second that no part of the way keeps up with."""
    rates = [
        replicas.num_prompts * replicas.prompts.rates[bound],
        replicas.num_answers * replicas.answers.at(replicas.limit, bound).rate,
    ]
    if replicas.handover.seconds:
        ends = min(replicas.num_prompts, replicas.num_answers)
        rates.append(ends / replicas.handover.seconds)
    return min(rates)


def _at_rate(
    replicas: SplitReplicas, rate: float, lengths: Lengths, bound: Bound
) -> tuple[Steady, float] | None:
    of_one = rate / replicas.num_prompts
    first = replicas.prompts.first_token(of_one, bound)
    state = open_loop(replicas.answers, replicas.limit, rate / replicas.num_answers, bound)
    move = _move(replicas, rate)
    if first is None or state is None or move is None:
        return None
    gap_mean, gap_variance = move.mean + state.ttft.mean, move.variance + state.ttft.variance
    tpot = TimeSpread(
        state.tpot.mean + gap_mean * lengths.per_output,
        state.tpot.variance + (gap_variance + gap_mean**2) * lengths.per_output**2,
    )
    steps = lengths.output - 1
    e2e = TimeSpread(
        first.mean + gap_mean + state.tpot.mean * steps,
        first.variance
        + gap_variance
        + state.tpot.mean**2 * lengths.output_variance
        + state.tpot.variance * steps**2,
        state.ttft.rare,
        state.ttft.wait,
    )
    load = replicas.prompts.load(of_one, bound)
    return replace(state, ttft=first, tpot=tpot, e2e=e2e, load=max(state.load, load)), load


def _move(replicas: SplitReplicas, rate: float) -> TimeSpread | None:
    """Seconds that blocks take; each end of the link has one prompt at a time."""
    handover = replicas.handover
    waits = 0.0
    for count in (replicas.num_prompts, replicas.num_answers):
        use = rate / count * handover.seconds
        if use >= MOST_USE:
            return None
        waits += use * handover.seconds / (1 - use)
    return TimeSpread(handover.latency + handover.seconds + waits, waits**2)


def _waiting(state: Steady, seconds: float) -> Steady:
    later = replace(state.ttft, mean=state.ttft.mean + seconds)
    return replace(
        state, ttft=later, e2e=replace(state.e2e, mean=state.e2e.mean + seconds), load=1.0
    )
