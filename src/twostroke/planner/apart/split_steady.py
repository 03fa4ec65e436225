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
        last: What those of its last step take; all others move while it is computed.
        latency: Until the first comes.
    """

    seconds: float
    last: float
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
        return _at_rate(replicas, traffic.rate, traffic, bound)
    low, high = 0.0, MOST_USE * _capacity(replicas, bound)
    best, is_full = None, True  # nothing above ``high`` can be done
    for _ in range(HALVINGS):
        rate = (low + high) / 2
        state = _at_rate(replicas, rate, traffic, bound)
        # As many come as users are left who neither think nor wait.
        if state is None or rate * _round(state[0], traffic) > traffic.users:
            high, is_full = rate, state is None
        else:
            low, best = rate, state
    if best is None:  # so few users that the last half is still too much
        return _at_rate(replicas, high, traffic, bound)
    if not is_full:
        return best
    # More users than fit wait, for the part that is full.
    waiting = max(traffic.users / low - _round(best[0], traffic), 0.0)
    return _waiting(replicas, best, waiting, traffic.lengths), best[1]


def _round(state: Steady, traffic: Traffic) -> float:
    """Seconds from one request of a user to the next."""
    return traffic.think_time + state.e2e.at(None)


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
    replicas: SplitReplicas, rate: float, traffic: Traffic, bound: Bound
) -> tuple[Steady, float] | None:
    lengths = traffic.lengths
    of_prompts, of_answers = rate / replicas.num_prompts, rate / replicas.num_answers
    first = replicas.prompts.first_token(of_prompts, bound)
    state = open_loop(replicas.answers, replicas.limit, of_answers, bound)
    move = _move(replicas, rate)
    if first is None or state is None or move is None:
        return None
    rare, wait = state.ttft.rare, state.ttft.wait
    gap = TimeSpread(move.mean + state.ttft.mean, move.variance + state.ttft.variance)
    if traffic.users is not None:
        # Only those wait for a place who have none, and all of them about as long.
        over = max(traffic.users / replicas.num_answers - replicas.limit, 0.0)
        even = min(rare * wait, over / of_answers)
        gap = TimeSpread(gap.mean + even, gap.variance + (even / 3) ** 2)
        rare = wait = 0.0
    tpot = _with_gap(state.tpot, gap, lengths)
    tpot = replace(tpot, rare=rare, wait=wait * lengths.per_output)
    steps = lengths.output - 1
    e2e = TimeSpread(
        first.mean + gap.mean + state.tpot.mean * steps,
        first.variance
        + gap.variance
        + state.tpot.mean**2 * lengths.output_variance
        + state.tpot.variance * steps**2,
        rare,
        wait,
    )
    load = replicas.prompts.load(of_prompts, bound)
    return replace(state, ttft=first, tpot=tpot, e2e=e2e, load=max(state.load, load)), load


def _with_gap(tpot: TimeSpread, gap: TimeSpread, lengths: Lengths) -> TimeSpread:
    """Time for each further token, with what each answer waits once."""
    mean, square = gap.mean * lengths.per_output, gap.variance + gap.mean**2
    variance = square * lengths.per_output_square - mean**2
    return replace(tpot, mean=tpot.mean + mean, variance=tpot.variance + max(variance, 0.0))


def _move(replicas: SplitReplicas, rate: float) -> TimeSpread | None:
    """Seconds that blocks take; each end of the link has one prompt at a time."""
    handover = replicas.handover
    waits = 0.0
    for count in (replicas.num_prompts, replicas.num_answers):
        use = rate / count * handover.seconds
        if use >= MOST_USE:
            return None
        waits += use * handover.seconds / (1 - use)
    return TimeSpread(handover.latency + handover.last + waits, waits**2)


def _waiting(
    replicas: SplitReplicas, full: tuple[Steady, float], seconds: float, lengths: Lengths
) -> Steady:
    """All wait so long: for their prompts if those are what is full, else for second tokens."""
    state, prompts = full
    e2e = replace(state.e2e, mean=state.e2e.mean + seconds)
    ends = min(replicas.num_prompts, replicas.num_answers)
    link = state.rate * replicas.num_answers * replicas.handover.seconds / ends
    if prompts >= max(state.load, link):
        ttft = replace(state.ttft, mean=state.ttft.mean + seconds)
        return replace(state, ttft=ttft, e2e=e2e, load=1.0)
    tpot = _with_gap(state.tpot, TimeSpread(seconds, (seconds / 3) ** 2), lengths)
    return replace(state, tpot=tpot, e2e=e2e, load=1.0)
