"""Protects: what fails again and again gets nothing for a growing time, then one request."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twostroke.routing.circuit_breaker import BreakerRule, CircuitBreaker

RULE = BreakerRule(failures=3, window=120.0, pause=10.0, factor=2.0, longest=300.0)


def opened(now: float = 0.0) -> CircuitBreaker[str]:
    """A breaker whose replica ``a`` has just failed often enough."""
    breaker = CircuitBreaker[str](RULE)
    for _ in range(RULE.failures):
        assert breaker.admits("a", now, 5)
        breaker.note_failure("a", now)
    return breaker


def test_some_failures_open_the_circuit_of_that_replica_alone() -> None:
    breaker = opened()
    assert breaker.state("a", 0.0) == "open" and not breaker.admits("a", 9.9, 0)
    assert breaker.state("b", 0.0) == "closed" and breaker.admits("b", 0.0, 50)


def test_failures_that_lie_far_apart_open_nothing() -> None:
    breaker = CircuitBreaker[str](RULE)
    for number in range(50):
        breaker.note_failure("a", number * (RULE.window / 2 + 1))
        assert breaker.state("a", number * (RULE.window / 2 + 1)) == "closed"


def test_after_the_pause_there_is_one_request_at_a_time() -> None:
    breaker = opened()
    assert breaker.admits("a", 10.0, 0)
    assert not breaker.admits("a", 10.0, 1), "the trial runs"
    assert breaker.admits("a", 11.0, 0), "its client has left"


def test_an_answer_closes_the_circuit() -> None:
    breaker = opened()
    breaker.note_answer("a", 5.0)
    assert not breaker.admits("a", 5.0, 0), "of a request that it had before"
    breaker.note_answer("a", 10.0)
    assert breaker.admits("a", 10.0, 7)


def test_each_pause_after_another_is_longer_up_to_a_bound() -> None:
    breaker, now, pauses = opened(), 0.0, []
    for _ in range(8):
        start = now
        while not breaker.admits("a", now, 0):
            now += 1
        pauses.append(now - start)
        breaker.note_failure("a", now)  # its trial
    assert pauses == [10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0, 300.0]


@pytest.mark.parametrize(("well", "pause"), [(RULE.window, 20.0), (RULE.window + 1, 10.0)])
def test_one_that_was_well_for_a_while_is_trusted_again(well: float, pause: float) -> None:
    breaker = opened()
    breaker.note_answer("a", 10.0)
    for _ in range(RULE.failures):
        breaker.note_failure("a", 10.0 + well)
    assert not breaker.admits("a", 10.0 + well + pause - 0.1, 0)
    assert breaker.admits("a", 10.0 + well + pause, 0)


def test_failures_while_it_gets_nothing_lengthen_no_pause() -> None:
    breaker = opened()
    for _ in range(10):
        breaker.note_failure("a", 5.0)
    assert breaker.admits("a", 10.0, 0)


def test_one_that_is_gone_leaves_nothing_behind() -> None:
    breaker = opened()
    breaker.forget("a")
    assert breaker.admits("a", 0.0, 9) and not breaker._circuits


def waste(lives: Callable[[float], bool], rule: BreakerRule, hours: float) -> tuple[int, int]:
    """Requests that a replica lost, and how many it answered; one comes each second.

    Args:
        lives: Whether a request that comes then is answered.
    """
    breaker, lost, answered = CircuitBreaker[str](rule), 0, 0
    for second in range(round(3600 * hours)):
        if breaker.admits("a", second, 0):
            if lives(second):
                answered += 1
                breaker.note_answer("a", second)
            else:
                lost += 1
                breaker.note_failure("a", second)
    return lost, answered


def test_a_replica_that_always_fails_costs_some_requests_an_hour() -> None:
    lost, _ = waste(lambda second: False, RULE, 1.0)
    assert lost <= RULE.failures + 5 + 3600 / RULE.longest


def test_one_that_is_mended_is_found_within_the_longest_pause() -> None:
    _, answered = waste(lambda second: second >= 1800, RULE, 1.0)
    assert answered >= 1800 - RULE.longest


class NaiveBreaker:
    """The rule read aloud: all that has happened is kept, and gone through each time."""

    def __init__(self) -> None:
        self.happened: list[tuple[float, bool]] = []  # when, and whether it failed

    def state(self, now: float) -> str:
        state, until, closed, opened, failures = "closed", 0.0, 0.0, 0, list[float]()
        for time, failed in [*self.happened, (now, None)]:
            if state == "open" and time >= until:
                state = "trial"
            if failed is None or state == "open":
                continue
            if not failed:
                if state == "trial":
                    state, closed, failures = "closed", time, []
                continue
            failures = [each for each in failures if each >= time - RULE.window] + [time]
            if state == "closed" and len(failures) < RULE.failures:
                continue
            if state == "closed" and time - closed > RULE.window:
                opened = 0
            until = time + min(RULE.longest, RULE.pause * RULE.factor**opened)
            state, opened = "open", opened + 1
        return state


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 100), st.booleans()), max_size=60))
def test_it_does_what_the_rule_says(steps: list[tuple[float, bool]]) -> None:
    breaker, naive, now = CircuitBreaker[str](RULE), NaiveBreaker(), 0.0
    for pause, failed in steps:
        now += pause
        assert breaker.state("a", now) == naive.state(now)
        naive.happened.append((now, failed))
        (breaker.note_failure if failed else breaker.note_answer)("a", now)
    assert breaker.state("a", now) == naive.state(now)
