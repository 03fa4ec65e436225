"""What drafts are expected to give and to cost: estimates from steps, without any decision.

A pass of some rows takes ``t(rows)``, drafting takes ``d(k)``; a draft's position is accepted at
a rate, of one request and of all. So ``k`` drafts give ``E(a, k) / (t(rows) + d(k))`` tokens a
second (docs/decisions/0012-step-times-are-measured.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from twostroke.core.step import StepPlan, StepResult
from twostroke.timing.draft_times import DraftTimes

# Acceptance that is expected of a position before anything is known: high, so that it is tried.
FIRST_GUESS = 0.8
# What is expected of a request, from all of them, counts as this many of its own drafts.
PRIOR_DRAFTS = 6.0
# What one request's earlier drafts weigh after each new one.
KEPT_OF_REQUEST = 0.9
# What all requests' earlier drafts weigh after each new one.
KEPT_OF_ALL = 0.98
# Steps for which an outlook, and a decision to draft, hold.
HOLDS_FOR = 4
# Steps at first in each of which the outlook is made anew.
LEARNS_FOR = 64
# Of steps without drafts every fourth is measured: a small model's are short beside that.
PLAIN_EVERY = 4


@dataclass(slots=True)
class Acceptance:
    """How often drafts were accepted, by position in the draft, the latest counting most."""

    kept: float
    tried: list[float] = field(default_factory=list)
    accepted: list[float] = field(default_factory=list)

    def add(self, num_drafts: int, num_accepted: int) -> None:
        """Positions after the first rejected one were not tried."""
        while len(self.tried) < num_drafts:
            self.tried.append(0.0)
            self.accepted.append(0.0)
        for position in range(min(num_drafts, num_accepted + 1)):
            self.tried[position] = self.tried[position] * self.kept + 1.0
            self.accepted[position] *= self.kept
            if position < num_accepted:
                self.accepted[position] += 1.0

    def rates(self, prior: list[float], weight: float) -> list[float]:
        """An estimate for each position of ``prior``, which counts as ``weight`` tries."""
        rates = []
        for position, expected in enumerate(prior):
            tried = accepted = 0.0
            if position < len(self.tried):
                tried, accepted = self.tried[position], self.accepted[position]
            rates.append((accepted + weight * expected) / (tried + weight))
        return rates

    def estimates(self, count: int, first_guess: float, weight: float) -> list[float]:
        """An estimate for each of ``count`` positions; the one before it is expected of each."""
        rates, expected = list[float](), first_guess
        for position in range(count):
            if position < len(self.tried):
                weighted = self.accepted[position] + weight * expected
                expected = weighted / (self.tried[position] + weight)
            rates.append(expected)
        return rates


@dataclass(slots=True)
class Outlook:
    """What all requests' decisions share, for some steps: it is too much to compute for each.

    Attributes:
        step: The step since which it holds.
        rows: Requests that draw in a step.
        prior: Acceptance that is expected of each position.
        plain: Seconds of a pass without drafts.
        seconds: Seconds of drafting 1, 2, ... tokens for each request and of the pass that checks
            them. Passes more than twice as large as any before are left out.
    """

    step: int
    rows: int
    prior: list[float]
    plain: float
    seconds: list[float]

    @classmethod
    def of(cls, step: int, rows: int, prior: list[float], times: DraftTimes, most: int) -> Outlook:
        """The outlook now, for depths up to ``most``."""
        deepest = min(most, max(1, 2 * times.largest_pass // rows - 1))
        seconds = [
            times.of_pass(rows * (1 + depth)) + times.of_drafting(depth)
            for depth in range(1, deepest + 1)
        ]
        return cls(step, rows, prior, times.of_pass(rows), seconds)

    def best(self, rates: list[float]) -> tuple[int, float]:
        """The best depth but 0, and how many times more tokens per second than without drafts."""
        best, best_speed, expected, reached = 1, 0.0, 1.0, 1.0
        for depth, (rate, seconds) in enumerate(zip(rates, self.seconds)):
            reached *= rate
            expected += reached
            speed = expected / seconds
            if speed > best_speed:
                best, best_speed = depth + 1, speed
        return best, best_speed * self.plain


class PassCost(NamedTuple):
    """What the drafts of a step cost, in seconds.

    Attributes:
        loss: More than they gained; below 0 they gained.
        reading: By which making drafts took longer than it mostly does.
        plain: What a step without drafts takes.
    """

    loss: float
    reading: float
    plain: float


@dataclass(slots=True)
class DraftRecord:
    """What is known of one request's drafts.

    Attributes:
        found_rate: How often drafts were made when some were asked for.
        got_drafts: Whether drafts were made when they were asked for last.
        asked_before: Whether drafts were asked for before, and so its prompt read for them.
        all_accepted: Whether all drafts of the latest step that verified some were accepted.
    """

    acceptance: Acceptance
    found_rate: float
    got_drafts: bool = True
    asked_before: bool = False
    all_accepted: bool = False


class DraftEstimator:
    """Learns from each step; decides nothing.

    Args:
        most: The greatest depth.
        reads_prompts: Whether a request's first drafts cost more, since its prompt is read for it.
        at_once: Whether all drafts are made in one go: more of them take no longer.

    Attributes:
        step: Steps so far.
        num_drawing: Requests that drew in the latest step in which any did.
        num_drafts: Drafts that the latest step verified.
    """

    def __init__(self, most: int, *, reads_prompts: bool, at_once: bool) -> None:
        self.times = DraftTimes(at_once=at_once)
        self.step, self.num_drawing, self.num_drafts = 0, 1, 0
        self._most, self._reads_prompts = most, reads_prompts
        self._records: dict[str, DraftRecord] = {}
        self._all = Acceptance(KEPT_OF_ALL)
        self._found_rate = 1.0
        self._outlook: Outlook | None = None
        # Whether a prompt was read for drafts in the latest step: it says nothing of later ones.
        self._reads_now = False

    @property
    def knows_acceptance(self) -> bool:
        """Whether any draft was verified."""
        return bool(self._all.tried)

    def record_of(self, request_id: str) -> DraftRecord:
        """Kept until the request is released."""
        record = self._records.get(request_id)
        if record is None:
            record = DraftRecord(Acceptance(KEPT_OF_REQUEST), self._found_rate)
            self._records[request_id] = record
        return record

    def best(self, record: DraftRecord) -> tuple[int, float]:
        """A request's best depth but 0, and its tokens a second as a multiple of none's."""
        outlook = self._look_out()
        return outlook.best(record.acceptance.rates(outlook.prior, PRIOR_DRAFTS))

    def best_possible(self) -> float:
        """The multiple of ``best`` if all drafts came true."""
        return self._look_out().best([1.0] * self._most)[1]

    def net_gain(self, record: DraftRecord, gain: float, depth: int) -> float:
        """What drafts gain, less what looking for some in vain costs; as a share of a step."""
        looking = self.times.of_drafting(depth) / self.times.of_pass(self.num_drawing)
        return record.found_rate * (gain - 1.0) - (1.0 - record.found_rate) * looking

    def seconds_of_trial(self, depth: int) -> float:
        """Seconds by which drafts of one request make a step longer."""
        return self.times.of_trying(self.num_drawing, depth)

    def observe(self, plan: StepPlan, result: StepResult, *, asked: bool) -> PassCost | None:
        """Take in a step; ``None`` if it drew nothing.

        Args:
            asked: Whether drafts were asked for.
        """
        for request_id in plan.released:
            self._records.pop(request_id, None)
        self.step += 1
        num_drafts = num_right = 0
        for request_id, num_accepted in result.num_accepted_drafts.items():
            count = len(plan.scheduled[request_id].draft_token_ids)
            num_drafts += count
            num_right += num_accepted
            self._all.add(count, num_accepted)
            if (record := self._records.get(request_id)) is not None:
                record.acceptance.add(count, num_accepted)
                record.all_accepted = num_accepted == count
        self.num_drafts = num_drafts
        if not result.token_ids:
            return None
        self.num_drawing = len(result.token_ids)
        return self._measure(plan, result, num_right, asked=asked)

    def _measure(
        self, plan: StepPlan, result: StepResult, num_right: int, *, asked: bool
    ) -> PassCost | None:
        """Note how long drafting took, and the pass if it did nothing but decode."""
        rows, times, num_drafts = self.num_drawing, self.times, self.num_drafts
        drafts = num_drafts or result.draft_token_ids or not times.largest_pass
        measures = bool(drafts) or self.step % PLAIN_EVERY == 0
        drafting = result.timings.get("draft", 0.0)
        if measures and plan.num_tokens == rows + num_drafts:
            times.add_pass(rows + num_drafts, result.duration - drafting, self.step)
        plain, loss, reading = times.of_pass(rows), 0.0, 0.0
        if asked and (deepest := self._count_made(plan, result)):
            if measures and not self._reads_now:
                times.add_drafting(deepest, drafting, self.step)
            times.drafted_at = self.step
            loss = times.charge(deepest, drafting)
            reading = drafting - loss if self._reads_now else 0.0
        if num_drafts:
            loss += times.of_pass(rows + num_drafts) - plain * (1 + num_right / rows)
        return PassCost(loss, reading, plain) if times.largest_pass else None

    def _count_made(self, plan: StepPlan, result: StepResult) -> int:
        """Note which requests got drafts, of those that were to. Returns the greatest depth."""
        deepest, self._reads_now = 0, False
        for request_id, share in plan.scheduled.items():
            if not share.max_new_drafts or request_id not in result.token_ids:
                continue
            deepest = max(deepest, share.max_new_drafts)
            made = request_id in result.draft_token_ids
            self._found_rate += (made - self._found_rate) * (1 - KEPT_OF_ALL)
            if (record := self._records.get(request_id)) is not None:
                self._reads_now = self._reads_now or not record.asked_before
                record.got_drafts, record.asked_before = made, True
                record.found_rate += (made - record.found_rate) * (1 - KEPT_OF_REQUEST)
        self._reads_now = self._reads_now and self._reads_prompts
        return deepest

    def _look_out(self) -> Outlook:
        """The outlook, as of the last few steps."""
        rows, outlook = self.num_drawing, self._outlook
        age = 1 if self.step < LEARNS_FOR else HOLDS_FOR
        if outlook is None or outlook.rows != rows or self.step - outlook.step >= age:
            prior = self._all.estimates(self._most, FIRST_GUESS, PRIOR_DRAFTS)
            outlook = Outlook.of(self.step, rows, prior, self.times, self._most)
            self._outlook = outlook
        return outlook
