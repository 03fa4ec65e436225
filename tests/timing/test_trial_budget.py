"""Protects: drafts lose a small share of the time at most, and gains may be spent again."""

from __future__ import annotations

from random import Random

from twostroke.timing.trial_budget import MOST_OWED, SHARE, TrialBudget


def test_trials_that_lose_take_their_share_of_the_time() -> None:
    random, budget, lost = Random(0), TrialBudget(), 0.0
    for _ in range(20_000):
        loss = 0.0
        while budget.reserve(0.4) and random.random() < 0.9:
            loss += random.choice([0.2, 0.4, 0.6])
        budget.add_step(loss, 0.0, 1.0)
        lost += loss
    assert 0.5 * SHARE < lost / 20_000 < 1.1 * SHARE


def test_one_trial_is_covered_from_the_start_and_one_at_a_time() -> None:
    budget = TrialBudget()
    assert budget.reserve(1.0)
    assert not budget.reserve(1.0)
    budget.add_step(0.0, 0.0, 1.0)
    assert not budget.reserve(1.0), "its drafts are verified in the next step"
    budget.add_step(0.0, 0.0, 1.0)
    assert budget.reserve(1.0)


def test_drafting_ends_where_it_loses_and_begins_again() -> None:
    budget, steps = TrialBudget(), 0
    while not budget.is_spent:
        budget.add_step(0.1, 0.0, 1.0)
        steps += 1
    assert 15 < steps < 30
    for _ in range(round(1.9 / SHARE)):
        budget.add_step(0.0, 0.0, 1.0)
    assert budget.is_spent
    for _ in range(round(0.2 / SHARE)):
        budget.add_step(0.0, 0.0, 1.0)
    assert not budget.is_spent


def test_gains_pay_for_reading_the_prompts_of_new_requests() -> None:
    """One after the other: each reads a prompt for three steps, then gains half a step each."""
    budget = TrialBudget()
    for number in range(20):
        assert budget.reserve(0.1), f"request {number}"
        budget.add_step(0.0, 3.0, 1.0)
        assert not budget.is_spent
        for _ in range(20):
            budget.add_step(-0.5, 0.0, 1.0)


def test_debts_for_reading_end_within_reach() -> None:
    budget = TrialBudget()
    budget.add_step(0.0, 1000.0, 1.0)
    steps = 0
    while not budget.reserve(0.1):
        budget.add_step(0.0, 0.0, 1.0)
        steps += 1
    assert steps <= MOST_OWED / SHARE + 1
