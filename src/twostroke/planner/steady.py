"""Latencies of a replica in its steady state, by formulas: no request is simulated.

Times are means and variances of what a request waits for: the step under way, prompts before its
own, a place in the batch, its own prompt. Percentiles are those of a gamma distribution with both.
The simulator is the judge of the best few (``planner/proof.py``); a test holds the formulas to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import exp, inf, log, sqrt
from statistics import NormalDist

from twostroke.planner.goals import Goal, Metric
from twostroke.planner.step_curve import SteadyPoint, StepCurve
from twostroke.planner.traffic import Lengths
from twostroke.simulator.jumping.decode_curve import Bound

# How much of the swing of the batch's size a request sees in its own mean: it lasts about as long
# as the swing does.
SEEN_SWING = 0.8
# What is left of the arrivals' chance where each waits for an answer: lengths differ.
LEAST_SWING = 0.3
# Formulas of queues have no answer at 1.
MOST_USE = 0.97


@dataclass(frozen=True, slots=True)
class TimeSpread:
    """A time by mean and variance, and a rare wait on top.

    Attributes:
        rare: Probability of that wait; ``wait`` its mean in seconds (exponential), ``longest`` what
            a percentile of it has at most.
    """

    mean: float
    variance: float
    rare: float = 0.0
    wait: float = 0.0
    longest: float = inf

    def at(self, percentile: float | None) -> float:
        """Seconds at a percentile; ``None``: the mean."""
        if percentile is None:
            return self.mean + self.rare * self.wait
        upper = 1 - percentile / 100
        tail = self.wait * log(self.rare / upper) if self.rare > upper else 0.0
        tail = min(tail, self.longest)
        if self.mean <= 0 or self.variance <= 0:
            return max(self.mean, 0.0) + tail
        shape = self.mean**2 / self.variance
        root = 1 - 1 / (9 * shape) + _normal(percentile) / (3 * sqrt(shape))
        return self.mean * max(root, 0.0) ** 3 + tail


@cache
def _normal(percentile: float) -> float:
    return NormalDist().inv_cdf(percentile / 100)


@dataclass(frozen=True, slots=True)
class Steady:
    """One replica under its share of the traffic.

    Attributes:
        rate: Requests per second that it ends.
        running: Requests that decode at once, on average; ``limit`` is the most that can.
        point: Its steps.
        load: The part that comes of what it could end in a second.
    """

    rate: float
    running: float
    limit: float
    point: SteadyPoint
    ttft: TimeSpread
    tpot: TimeSpread
    e2e: TimeSpread
    load: float

    def time(self, metric: Metric, percentile: float | None) -> float:
        """Seconds that are predicted."""
        spread: TimeSpread = getattr(self, metric)
        return spread.at(percentile)

    def misses(self, goals: tuple[Goal, ...]) -> list[Goal]:
        return [goal for goal in goals if self.time(goal.metric, goal.percentile) > goal.limit]

    def tightness(self, goals: tuple[Goal, ...]) -> float:
        """The largest prediction over its limit; 0 without goals."""
        return max(
            (self.time(goal.metric, goal.percentile) / goal.limit for goal in goals), default=0.0
        )


def open_loop(curve: StepCurve, limit: float, rate: float, bound: Bound) -> Steady | None:
    """A replica to which ``rate`` requests come in a second; ``None``: more than it can end."""
    running = curve.solve(rate, limit, bound)
    if running is None:
        return None
    most = curve.at(limit, bound).rate
    return _latencies(
        curve, limit, running, rate, bound, load=rate / most, swing=1.0, contended=True
    )


def closed_loop(
    curve: StepCurve, limit: float, users: float, think_time: float, bound: Bound
) -> Steady:
    """A replica with ``users`` that each wait for an answer, and then pause."""

    most = min(limit, users)
    running = most
    if (needed := _users(curve, most, think_time, bound)) > users:
        running = _running(curve, users, most, think_time, bound)
        needed = users
    rate = curve.at(running, bound).rate
    waiting = (users - needed) / rate
    swing = max(0.0, 1 - running / users)
    top = curve.at(min(limit, users), bound).rate
    return _latencies(
        curve,
        limit,
        running,
        rate,
        bound,
        load=rate / top,
        swing=swing,
        waiting=waiting,
        contended=running < limit < users,
        queue=max(users - limit, 0.0),
    )


def _users(curve: StepCurve, running: float, think_time: float, bound: Bound) -> float:
    """Users that keep so many requests decoding."""
    point = curve.at(running, bound)
    first = _first_token(point, curve.lengths, point.rate, running, 0.0).mean
    return running + point.rate * (think_time + first)


def _running(curve: StepCurve, users: float, most: float, think_time: float, bound: Bound) -> float:
    """Requests that ``users`` keep decoding: on the line between two sizes of the batch."""
    low, low_users = 0.0, 0.0
    computed = curve.users.setdefault((bound, think_time), [])
    for index, point in enumerate(curve.points(bound)):
        if index == len(computed):
            computed.append(_users(curve, point.n, think_time, bound))
        high, high_users = point.n, computed[index]
        if high >= most:
            high, high_users = most, _users(curve, most, think_time, bound)
        if high_users >= users or high == most:
            part = (users - low_users) / max(high_users - low_users, 1e-12)
            return low + min(max(part, 0.0), 1.0) * (high - low)
        low, low_users = high, high_users
    return most


def _latencies(
    curve: StepCurve,
    limit: float,
    running: float,
    rate: float,
    bound: Bound,
    *,
    load: float,
    swing: float,
    waiting: float = 0.0,
    contended: bool = False,
    queue: float = inf,
) -> Steady:
    """Latencies while ``running`` requests decode.

    Args:
        swing: 1: the number of requests varies freely, as open arrivals make it; 0: it is fixed.
        waiting: Seconds that every request waits for a place.
        contended: More requests may come than there are places.
        queue: Requests that wait for a place at once, at most: each for as many answers to end.
    """
    point, lengths, gain = curve.at(running, bound), curve.lengths, curve.drafts.gain
    ttft = _first_token(point, lengths, rate, running, swing)
    hold = lengths.output / gain * point.step
    full = (load if swing == 1 else running / limit) if contended else 0.0
    free = 1 - min(full, 0.999)
    rare = full ** (sqrt(2 * (limit + 1)) - 1) if full else 0.0
    wait = min(hold / (limit * free), queue / rate)
    longest = (queue + 2 * sqrt(queue)) / rate  # two deviations of that many ends
    ttft = TimeSpread(ttft.mean + waiting, ttft.variance + (waiting / 3) ** 2, rare, wait, longest)
    tpot = _further_tokens(curve, point, running, bound, swing)
    length = lengths.output - 1
    e2e = TimeSpread(
        ttft.mean + tpot.mean * length,
        ttft.variance + tpot.mean**2 * lengths.output_variance + tpot.variance * length**2,
        ttft.rare,
        ttft.wait,
        longest,
    )
    return Steady(rate, running, limit, point, ttft, tpot, e2e, load)


def _first_token(
    point: SteadyPoint, lengths: Lengths, rate: float, running: float, swing: float
) -> TimeSpread:
    """Waits for the step under way and for prompts before, then computes its own prompt."""
    decode, mixed, share = point.decode, point.mixed, point.share
    moments = [(1 - share) * decode**k + share * mixed**k for k in (1, 2, 3)]
    busy = 1 - exp(-running)
    rest = busy * moments[1] / (2 * moments[0])
    rest_variance = max(busy * moments[2] / (3 * moments[0]) - rest**2, 0.0)
    pieces = point.pieces
    per_token, squares = _per_token(point, lengths), _squares(lengths)
    work = per_token * lengths.fresh
    beside = max(point.prompt - lengths.fresh, 0.0) * per_token
    own = work + pieces * decode + beside
    slope = per_token + (decode / point.room if pieces > 1 else 0.0)
    own_variance = slope**2 * lengths.fresh_variance
    # Prompts that share its steps: as many as come meanwhile, and they make it longer.
    own_variance += rate * mixed * work**2 * squares * _feedback(rate * work, swing)
    # Prompts before: a queue in which each takes its share of full steps.
    service = lengths.fresh / point.room * point.full
    use = min(rate * service, MOST_USE)
    queue = use * service * squares / (2 * (1 - use))
    queue = max(queue - use * min(service, point.full) / 2, 0.0)
    queue_variance = queue**2 * (2 - use) / use if use > 0 else 0.0
    return TimeSpread(rest + own + queue, rest_variance + own_variance + queue_variance)


def _per_token(point: SteadyPoint, lengths: Lengths) -> float:
    """Seconds of a prompt's token, beyond the decode step that it shares."""
    if point.prompt < min(lengths.fresh, point.room):
        return max(point.full - point.decode, 0.0) / point.room
    return max(point.mixed - point.decode, 0.0) / max(point.prompt, 1.0)


def _feedback(use: float, swing: float) -> float:
    """How much more prompts vary than chance: longer steps let more come, unless users are few."""
    return max(swing, LEAST_SWING) / (1 - swing * min(use, MOST_USE)) ** 2


def _squares(lengths: Lengths) -> float:
    """Mean of a prompt's squared length over the square of the mean."""
    return 1 + lengths.fresh_variance / max(lengths.fresh, 1.0) ** 2


def _further_tokens(
    curve: StepCurve, point: SteadyPoint, running: float, bound: Bound, swing: float
) -> TimeSpread:
    """Each step takes longer by the prompts in it, and by the requests beside."""
    gain, lengths = curve.drafts.gain, curve.lengths
    work = _per_token(point, lengths) * lengths.fresh
    prompts = point.rate * point.step * work**2 * _squares(lengths)
    variance = prompts * _feedback(point.rate * work, swing) * lengths.per_output / gain
    if swing and running > 0:
        slope = curve.slope(running, bound)
        elasticity = min(slope * running / point.step, MOST_USE)
        size_variance = running * swing / (1 - elasticity)
        variance += SEEN_SWING * slope**2 * size_variance / gain**2
    return TimeSpread(point.step / gain, variance)
