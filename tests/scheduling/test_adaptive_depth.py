"""Protects: the depth finds what pays, costs little where nothing does, and is tried again."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from tests.scheduling.harness import make_request
from twostroke.core.request import Request
from twostroke.core.step import ScheduledRequest, StepPlan, StepResult
from twostroke.scheduling.adaptive_depth import AdaptiveDepth
from twostroke.scheduling.parts import DraftDepth
from twostroke.scheduling.speculation import FixedDepth

MOST = 8


class Machine:
    """Decodes requests, with passes and drafts that take given times, and drafts that come true
    at given rates; counts tokens and seconds."""

    def __init__(
        self,
        depth: DraftDepth,
        rates: list[float],
        pass_time: Callable[[int], float],
        draft_time: float = 0.0,
        seed: int = 0,
        *,
        reading: float = 0.0,
        made: float = 1.0,
    ) -> None:
        """``reading`` is what a request's first drafts take besides; ``made``, how often there are
        drafts where some are asked for."""
        self.depth = depth
        self.rates = rates
        self.requests = [self._request(str(number)) for number in range(len(rates))]
        self.tokens, self.seconds, self.num_drafts = 0, 0.0, 0
        self._pass_time, self._draft_time = pass_time, draft_time
        self._drafts = [0] * len(rates)
        self._random = Random(seed)
        self._reading, self._made = reading, made
        self._read: set[int] = set()
        self.search_time, self.num_asked = 0.0, 0

    @staticmethod
    def _request(name: str) -> Request:
        return make_request(name, [1], 10_000)

    def drafting(self, depth: int) -> float:
        """Seconds of drafting so many tokens for each request."""
        return self._draft_time * depth

    def run(self, steps: int) -> float:
        """Tokens per second of these steps."""
        tokens, seconds = self.tokens, self.seconds
        for _ in range(steps):
            self._step()
        return (self.tokens - tokens) / (self.seconds - seconds)

    def _step(self) -> None:
        plan, result = StepPlan(0, 0.0), StepResult()
        chosen = [self.depth.choose(request) for request in self.requests]
        for number, request in enumerate(self.requests):
            drafts, name = self._drafts[number], request.request_id
            plan.add(
                ScheduledRequest(
                    name,
                    *(0, 1 + drafts, True),
                    draft_token_ids=[0] * drafts,
                    max_new_drafts=chosen[number],
                )
            )
            accepted = 0
            while accepted < drafts and self._random.random() < self.rates[number]:
                accepted += 1
            if drafts:
                result.num_accepted_drafts[name] = accepted
            result.token_ids[name] = [0] * (1 + accepted)
            self.tokens += 1 + accepted
            self.num_drafts += drafts
            if chosen[number] and self._random.random() < self._made:
                result.draft_token_ids[name] = [0] * chosen[number]
        asked = {number for number, count in enumerate(chosen) if count}
        self.num_asked += len(asked)
        drafting = self.drafting(max(chosen)) + (self.search_time if asked else 0.0)
        result.timings["draft"] = drafting + self._reading * len(asked - self._read)
        self._read |= asked
        result.duration = self._pass_time(plan.num_tokens) + result.timings["draft"]
        self.seconds += result.duration
        self.depth.observe(plan, result)
        made = result.draft_token_ids
        self._drafts = [
            count if request.request_id in made else 0
            for count, request in zip(chosen, self.requests)
        ]


def memory_bound(rows: int) -> float:
    return 1.0 + 0.02 * rows


def compute_bound(rows: int) -> float:
    return 0.1 + 0.9 * rows


def best_fixed(rates: list[float], pass_time: Callable[[int], float], draft_time: float) -> float:
    return max(
        Machine(FixedDepth(depth), rates, pass_time, draft_time).run(1000)
        for depth in range(MOST + 1)
    )


@pytest.mark.parametrize("draft_time", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("rate", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("num_requests", [1, 16])
def test_it_comes_near_the_best_fixed_depth(
    rate: float, draft_time: float, num_requests: int
) -> None:
    rates = [rate] * num_requests
    machine = Machine(AdaptiveDepth(MOST), rates, memory_bound, draft_time)
    least = 0.95 if num_requests == 1 else 0.9
    assert machine.run(3000) > least * best_fixed(rates, memory_bound, draft_time)


@pytest.mark.parametrize("num_requests", [1, 4, 16, 64])
@pytest.mark.parametrize("rate", [0.0, 0.05])
def test_what_cannot_be_guessed_costs_less_than_two_percent(rate: float, num_requests: int) -> None:
    """A draft costs as on pilot: a pass of three tokens takes half as long again as one of one."""
    rates = [rate] * num_requests
    for pass_time in (memory_bound, compute_bound, lambda rows: 0.7 + 0.3 * rows):
        machine = Machine(AdaptiveDepth(MOST), rates, pass_time, 0.2)
        machine.run(100)
        plain = Machine(FixedDepth(), rates, pass_time).run(3000)
        assert machine.run(3000) > 0.98 * plain


@pytest.mark.parametrize("reading", [0.0, 5.0])
@pytest.mark.parametrize("num_requests", [1, 16])
def test_short_answers_that_cannot_be_guessed_cost_less_than_two_percent(
    num_requests: int, reading: float
) -> None:
    """Each new request may be tried, and its prompt read for it by the draft model, but not all."""
    depth = AdaptiveDepth(MOST, reads_prompts=reading > 0)
    plain = Machine(FixedDepth(), [0.0] * num_requests, memory_bound).run(100)
    tokens = seconds = 0.0
    for turn in range(60):
        machine = Machine(depth, [0.0] * num_requests, memory_bound, 0.2, reading=reading)
        machine.run(60)
        names = [request.request_id for request in machine.requests]
        depth.observe(StepPlan(0, 0.0, released=names), StepResult())
        if turn >= 5:
            tokens, seconds = tokens + machine.tokens, seconds + machine.seconds
    assert tokens / seconds > 0.98 * plain


def test_a_draft_that_came_true_is_followed_at_once() -> None:
    """A copy may be short: one step with a draft, one that verifies it, then the next draft."""
    machine = Machine(AdaptiveDepth(MOST), [1.0], memory_bound, 0.05)
    machine.run(8)
    assert machine.num_drafts >= 8


def test_reading_a_prompt_says_nothing_of_later_drafts() -> None:
    """A fresh engine's first request that a draft model guesses right, behind a long prompt."""
    machine = Machine(
        AdaptiveDepth(MOST, reads_prompts=True), [0.9], memory_bound, 0.05, reading=6.0
    )
    plain = Machine(FixedDepth(), [0.9], memory_bound).run(100)
    machine.run(20)
    assert machine.run(60) > 2 * plain


@pytest.mark.parametrize("draft_time", [0.05, 0.3])
@pytest.mark.parametrize("num_easy", [1, 4, 8])
def test_some_that_copy_do_not_make_all_slower(num_easy: int, draft_time: float) -> None:
    """The time of drafting is all requests', whoever drafts: what it costs is charged to all."""
    rates = [0.9] * num_easy + [0.0] * (16 - num_easy)
    machine = Machine(AdaptiveDepth(MOST), rates, memory_bound, draft_time)
    machine.run(100)
    assert machine.run(3000) > 0.98 * Machine(FixedDepth(), rates, memory_bound).run(1000)


@pytest.mark.parametrize(("search_time", "looks"), [(0.002, True), (0.1, False)])
def test_looking_for_a_quote_goes_on_where_it_costs_little(search_time: float, looks: bool) -> None:
    """n-gram proposals come now and then: each may be the beginning of a copy."""
    machine = Machine(AdaptiveDepth(MOST), [0.9] * 4, memory_bound, made=0.0)
    machine.search_time = search_time
    machine.run(300)
    before = machine.num_asked
    speed = machine.run(1000)
    assert ((machine.num_asked - before) / 4000 > 0.9) == looks
    assert speed > 0.98 * Machine(FixedDepth(), [0.9] * 4, memory_bound).run(1000)


def test_where_drafts_cannot_pay_none_are_made() -> None:
    machine = Machine(AdaptiveDepth(MOST), [1.0] * 8, lambda rows: 10.0 * rows)
    machine.run(200)
    before = machine.num_drafts
    machine.run(1000)
    assert machine.num_drafts - before <= 2 * 8 * 1000 // 64 + 8


def test_it_starts_again_when_text_becomes_easy() -> None:
    machine = Machine(AdaptiveDepth(MOST), [0.0], memory_bound, 0.05)
    machine.run(500)
    machine.rates = [0.95]
    machine.run(500)
    assert machine.run(1000) > 0.9 * best_fixed([0.95], memory_bound, 0.05)
    machine.rates = [0.0]
    machine.run(500)
    assert machine.run(1000) > 0.97 / memory_bound(1)


def test_a_new_request_is_tried_soon_whatever_others_did() -> None:
    """Answers of a hundred tokens: some hundreds that nobody could guess, then easy ones."""
    depth = AdaptiveDepth(MOST)
    for _ in range(20):
        hard = Machine(depth, [0.0], lambda rows: 0.7 + 0.3 * rows, 0.1)
        hard.run(100)
        depth.observe(StepPlan(0, 0.0, released=["0"]), StepResult())
    easy = Machine(depth, [1.0], lambda rows: 0.7 + 0.3 * rows, 0.1)
    easy.run(60)
    assert easy.run(20) > 1.6


def test_each_request_has_its_own_depth() -> None:
    """One copies, one invents: the first alone drafts."""
    machine = Machine(AdaptiveDepth(MOST), [0.95, 0.0], lambda rows: 1.0 + 0.2 * rows)
    machine.run(1000)
    depths = [machine.depth.choose(request) for request in machine.requests]
    assert depths[0] > 0
    drafted = machine.num_drafts
    machine.rates = [0.0, 0.0]
    machine.run(300)
    machine.run(100)
    assert machine.num_drafts > drafted


def test_requests_leave_nothing_behind_and_may_ask_for_less() -> None:
    depth = AdaptiveDepth(MOST)
    machine = Machine(depth, [0.9] * 5, memory_bound)
    machine.run(50)
    names = [request.request_id for request in machine.requests]
    depth.observe(StepPlan(0, 0.0, released=names), StepResult())
    assert not depth._requests
    request = make_request("few", [1], 10)
    request.params = type(request.params)(speculation=1)
    assert all(depth.choose(request) <= 1 for _ in range(50))
    request.params = type(request.params)(speculation=0)
    assert all(depth.choose(request) == 0 for _ in range(50))


def test_it_is_pure() -> None:
    """The same steps give the same depths."""
    runs = [Machine(AdaptiveDepth(MOST), [0.7, 0.2], memory_bound, 0.1) for _ in range(2)]
    for machine in runs:
        machine.run(300)
    assert runs[0].num_drafts == runs[1].num_drafts > 0


def test_drafts_that_were_slow_once_are_measured_again() -> None:
    """The first ones set things up: a thousand steps without any were the price of that."""
    machine = Machine(AdaptiveDepth(MOST), [0.9], lambda rows: 1.0, 0.05, reading=30.0)
    machine.run(100)
    assert machine.run(300) > 3.0
