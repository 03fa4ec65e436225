"""Protects: whether guesses pay is told by steps of as many requests, else by the others' times."""

from __future__ import annotations

import msgspec
import pytest

from tests.inspector.why.test_bound import Costs, decode, drafting
from twostroke.inspector.why.drafts import drafts_pay
from twostroke.observability.frames.columns import encode_steps


def test_guesses_are_compared_with_steps_of_as_many_requests() -> None:
    steps = [drafting(0, 0.010, 0, 0), drafting(1, 0.012, 2, 2), drafting(2, 0.012, 2, 0)]
    pay = drafts_pay(encode_steps(steps))
    assert pay is not None
    assert pay.with_drafts == pytest.approx(0.024 / 4)
    assert pay.without == pytest.approx(0.010)
    assert (pay.steps, pay.measured, pay.fitted, pay.accepted) == (2, 1.0, 0.0, 0.5)


def test_without_such_steps_the_cost_model_says_how_much_shorter_they_were() -> None:
    pay = drafts_pay(encode_steps([drafting(0, 0.012, 2, 1)]), Costs())
    assert pay is not None
    assert pay.measured == 0.0
    assert pay.without == pytest.approx(0.012)  # memory binds: drafts cost no time here
    assert drafts_pay(encode_steps([drafting(0, 0.012, 2, 1)])) is None
    assert drafts_pay(encode_steps([decode(0, 1)]), Costs()) is None


def test_making_the_guesses_is_no_time_of_a_step_without_them() -> None:
    step = msgspec.structs.replace(
        drafting(0, 0.012, 2, 1), timings={"forward": 0.005, "draft": 0.006}
    )
    pay = drafts_pay(encode_steps([step]), Costs())
    assert pay is not None
    assert pay.with_drafts == pytest.approx(0.012 / 2)
    assert pay.without == pytest.approx(0.006)


def test_a_line_through_the_times_of_steps_stands_before_the_cost_model() -> None:
    """Verifying five guesses costs here what the cost model says is free."""
    numbers = [drafts for drafts in (2, 5, 8) for _ in range(3)]
    steps = [drafting(step, 0.005 + 0.001 * n, n, 1) for step, n in enumerate(numbers)]
    pay = drafts_pay(encode_steps(steps), Costs())
    assert pay is not None
    assert (pay.steps, pay.measured, pay.fitted) == (9, 0.0, 1.0)
    assert pay.without == pytest.approx(0.005)
    assert pay.with_drafts == pytest.approx(0.010 / 2)


@pytest.mark.parametrize("drafts", [(2, 2, 2), (2, 3, 4), (2, 5)])
def test_few_numbers_of_tokens_near_each_other_make_no_line(drafts: tuple[int, ...]) -> None:
    numbers = [each for each in drafts for _ in range(3)]
    steps = [drafting(step, 0.005 + 0.001 * n, n, 1) for step, n in enumerate(numbers)]
    assert drafts_pay(encode_steps(steps)) is None


@pytest.mark.parametrize(
    ("times", "without"),
    [((0.0102, 0.0099, 0.0096), 0.0099), ((0.003, 0.012, 0.021), 0.016 / 9)],
    ids=["shorter with tokens", "less than nothing without any"],
)
def test_a_line_has_no_negative_times(times: tuple[float, ...], without: float) -> None:
    numbers = {2: times[0], 5: times[1], 8: times[2]}
    taken = [(drafts, seconds) for drafts, seconds in numbers.items() for _ in range(3)]
    pay = drafts_pay(encode_steps([drafting(n, s, d, 1) for n, (d, s) in enumerate(taken)]))
    assert pay is not None
    assert pay.without == pytest.approx(without)
