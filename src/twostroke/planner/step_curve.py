"""Steps of one engine in its steady state, by how many requests decode at once.

The cost model of the simulator is asked at a few sizes of the batch; lines join its answers. A step
decodes one token of each of ``n`` requests. Every ``output`` tokens a request ends and another
comes, so that ``n / output`` prompts come in a step: some steps compute prompts beside, in as large
pieces as the token budget leaves.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from math import exp
from typing import NamedTuple

from twostroke.planner.traffic import Lengths
from twostroke.simulator.cost.cost_model import RooflineCostModel
from twostroke.simulator.cost.estimate import Estimate
from twostroke.simulator.jumping.decode_curve import Bound
from twostroke.timing.step_shape import StepShape

# Sizes of the batch at which the cost model is asked. Below one request, one decodes alone.
GRID = (
    1,
    2,
    3,
    4,
    6,
    8,
    12,
    16,
    24,
    32,
    48,
    64,
    96,
    128,
    192,
    256,
    384,
    512,
    768,
    1024,
    1536,
    2048,
    3072,
    4096,
    8192,
)
BOUNDS: tuple[Bound, ...] = ("low", "seconds", "high")


class SteadyPoint(NamedTuple):
    """The steps while ``n`` requests decode. Times in seconds.

    Attributes:
        decode: Seconds of a step that only decodes.
        mixed: Seconds of one that computes prompts, too.
        full: Seconds of one that computes as many prompt tokens as the budget leaves.
        share: Part of all steps that are mixed.
        pieces: Steps that a prompt of mean length takes.
        prompt: Prompt tokens of a mixed step.
        room: Prompt tokens that the budget leaves.
        step: Seconds of a step on average.
        rate: Requests that end in a second.
        load: Part of the prompt tokens that the budget allows; above 1, more come than are read.
    """

    n: float
    decode: float
    mixed: float
    full: float
    share: float
    pieces: float
    prompt: float
    room: float
    step: float
    rate: float
    load: float


class DraftSetting(NamedTuple):
    """Speculation: draft tokens of a step, and the share that comes true, one after the other."""

    tokens: int = 0
    acceptance: float = 0.0
    costs: bool = False

    @property
    def gain(self) -> float:
        """Tokens that a request gets in a step, on average."""
        if not self.tokens:
            return 1.0
        return (1 - self.acceptance ** (self.tokens + 1)) / (1 - self.acceptance)


NO_DRAFTS = DraftSetting()


class StepCurve:
    """Steady steps of an engine, at the middle and at both ends of the cost model's interval.

    Args:
        budget: Tokens of a step at most.
        chunk: Tokens of one prompt in a step at most; by default all of them.
    """

    def __init__(
        self,
        cost: RooflineCostModel,
        lengths: Lengths,
        budget: int,
        drafts: DraftSetting,
        chunk: int | None = None,
    ) -> None:
        self.lengths, self.budget, self.drafts = lengths, budget, drafts
        self._chunk = chunk or budget
        # By bound and think time: users that keep each size of the batch busy (``steady``).
        self.users: dict[tuple[Bound, float], list[float]] = {}
        self._cost = cost
        self._points: dict[Bound, list[SteadyPoint]] = {bound: [] for bound in BOUNDS}
        self._rates: dict[Bound, list[float]] = {bound: [] for bound in BOUNDS}

    def reach(self, n: float) -> None:
        """Ask the cost model for every size up to ``n``, and one beyond."""
        have = len(self._points["seconds"])
        while have < len(GRID) and (not have or GRID[have - 1] < n):
            if GRID[have] * (1 + self.drafts.tokens) >= self.budget:
                break
            self._add(GRID[have])
            have += 1

    def points(self, bound: Bound) -> Sequence[SteadyPoint]:
        return self._points[bound]

    @property
    def most(self) -> int:
        """The largest size that was asked for; 0: the budget leaves no room for a prompt."""
        have = len(self._points["seconds"])
        return GRID[have - 1] if have else 0

    def at(self, n: float, bound: Bound) -> SteadyPoint:
        """The steps at any size: on the line between two; past the ends, on the last one's."""
        points = self._points[bound]
        if n <= 1:
            return self._alone(n, bound)
        index = min(bisect_right(GRID, n), len(points) - 1)
        low, high = points[index - 1], points[index]
        part = min((n - low.n) / (high.n - low.n), 1.0)
        rest = 1 - part
        return SteadyPoint(*[rest * a + part * b for a, b in zip(low, high)])

    def slope(self, n: float, bound: Bound) -> float:
        """Seconds by which a request more makes a step longer."""
        points = self._points[bound]
        index = min(bisect_right(GRID, n), len(points) - 1)
        low, high = points[max(index - 1, 0)], points[index]
        return max(high.step - low.step, 0.0) / (high.n - low.n) if high.n > low.n else 0.0

    def solve(self, rate: float, limit: float, bound: Bound) -> float | None:
        """How many requests decode at once where ``rate`` come in a second.

        Args:
            limit: The most that can.

        Returns:
            ``None`` if more come than end.
        """
        if self.at(limit, bound).rate < rate:
            return None
        points, rates = self._points[bound], self._rates[bound]
        if rate > rates[0]:
            index = bisect_left(rates, rate)
            low, high = index - 1, index
            part = (rate - rates[low]) / (rates[high] - rates[low])
            return min(points[low].n + part * (points[high].n - points[low].n), limit)
        running = rate / rates[0]
        for _ in range(3):  # alone, it also has prompts beside less often
            running *= rate / self.at(running, bound).rate
        return min(running, limit)

    def _alone(self, n: float, bound: Bound) -> SteadyPoint:
        """Fewer than one request on average: each runs alone, and prompts come one by one."""
        first, n = self._points[bound][0], max(n, 1e-6)
        output = self.lengths.output / self.drafts.gain
        share = min(first.share, n / output * first.pieces)
        step = (1 - share) * first.decode + share * first.mixed
        return first._replace(
            n=n, share=share, step=step, rate=n / (output * step), load=first.load * n
        )

    def _add(self, n: int) -> None:
        lengths, drafts = self.lengths, self.drafts
        per_step = n * drafts.gain / lengths.output
        room = self.budget - n * (1 + drafts.tokens)
        wanted = per_step * lengths.fresh
        load = wanted / room
        share = min(1.0, max(1 - exp(-per_step), load))
        prompt = min(wanted / share, room)
        pieces = max(1.0, lengths.fresh / min(room, self._chunk))
        rounds = drafts.tokens if drafts.costs else 0
        context, drafted = round(n * lengths.context), n * drafts.tokens
        alone = self._cost.step(StepShape(n, context, (), n, drafts=drafted, draft_rounds=rounds))
        mixed = self._mixed(n, context, prompt, drafted, rounds)
        full = mixed if prompt == room else self._mixed(n, context, room, drafted, rounds)
        for bound in BOUNDS:
            decode, beside, whole = (getattr(each, bound) for each in (alone, mixed, full))
            step = (1 - share) * decode + share * beside
            # What waits for a place among the prompts does not decode meanwhile.
            rate = per_step / step / max(load, 1.0)
            rates = self._rates[bound]
            rate = max(rate, rates[-1] * (1 + 1e-9)) if rates else rate
            shared = (share, pieces, prompt, float(room))
            point = SteadyPoint(float(n), decode, beside, whole, *shared, step, rate, load)
            self._points[bound].append(point)
            rates.append(rate)

    def _mixed(self, n: int, context: int, prompt: float, drafted: int, rounds: int) -> Estimate:
        tokens = max(1, round(prompt))
        fresh = max(1, round(self.lengths.fresh))
        if tokens <= min(1.5 * fresh, self._chunk):
            before = self.lengths.cached + max(0, fresh - tokens) // 2
            chunks: tuple[tuple[int, int], ...] = ((tokens, before),)
        else:
            count = max(1, round(tokens / fresh), -(-tokens // self._chunk))
            chunks = ((tokens // count, self.lengths.cached),) * count
        shape = StepShape(n, context, chunks, n + len(chunks), drafts=drafted, draft_rounds=rounds)
        return self._cost.step(shape._replace(draft_prefill=chunks) if rounds else shape)
