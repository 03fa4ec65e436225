"""Protects: step times fitted to recorded steps reproduce them, and resist a machine that stops."""

from __future__ import annotations

from random import Random

import pytest

from twostroke.core.errors import ConfigError
from twostroke.questions.replay import RecordedStep
from twostroke.simulator.replay.fitted_cost import fit_cost
from twostroke.timing.step_shape import StepShape

TRUTH = {"step": 2e-3, "weights": 9e-3, "token": 1.5e-4, "context": 2e-7, "pair": 6e-8}


def true_seconds(decodes: int, context: int, prefill: list[tuple[int, int]]) -> float:
    new = sum(chunk for chunk, _ in prefill)
    pairs = sum(chunk * before + chunk * (chunk + 1) / 2 for chunk, before in prefill)
    passing = max(TRUTH["weights"], TRUTH["token"] * (decodes + new))
    return TRUTH["step"] + passing + TRUTH["context"] * context + TRUTH["pair"] * pairs


def recorded(number: int, stops: float = 0.0) -> list[RecordedStep]:
    """Steps of a machine whose formula has an edge; a share of them takes ten times as long."""
    dice, steps, time = Random(4), [], 100.0
    for index in range(number):
        decodes = dice.randint(0, 24)
        prefill = [(dice.randint(16, 512), 0)] if index % 4 == 0 or not decodes else []
        context = decodes * dice.randint(50, 900)
        seconds = true_seconds(decodes, context, prefill) * dice.uniform(0.97, 1.03)
        seconds *= 10 if dice.random() < stops else 1
        steps.append(RecordedStep(decodes, context, prefill, decodes, seconds, time))
        time += seconds
    return steps


def test_unseen_shapes_are_estimated_within_a_tenth() -> None:
    cost, fit = fit_cost(recorded(400))
    assert fit.num_steps == 400
    assert fit.median_error < 0.06
    for shape in (
        StepShape(12, 6000, (), 12),
        StepShape(1, 100, (), 1),
        StepShape(8, 2000, ((300, 0),), 8),
        StepShape(0, 0, ((400, 0),), 1),
    ):
        truth = true_seconds(shape.decode_requests, shape.decode_context, list(shape.prefill))
        assert cost.step(shape).seconds == pytest.approx(truth, rel=0.12)


def test_a_machine_that_stops_now_and_then_does_not_change_the_fit() -> None:
    calm, _ = fit_cost(recorded(400))
    stopped, _ = fit_cost(recorded(400, stops=0.03))
    for shape in (StepShape(1, 100, (), 1), StepShape(4, 1000, ((480, 0),), 5)):
        assert stopped.step(shape).seconds == pytest.approx(calm.step(shape).seconds, rel=0.1)


def test_more_work_never_takes_less() -> None:
    cost, _ = fit_cost(recorded(100))
    seconds = [cost.step(StepShape(n, 200 * n, (), n)).seconds for n in range(1, 40)]
    assert seconds == sorted(seconds)
    chunks = [cost.step(StepShape(2, 50, ((n, 64),), 2)).seconds for n in range(2, 900, 40)]
    assert chunks == sorted(chunks)


def test_a_handful_of_steps_tells_nothing() -> None:
    with pytest.raises(ConfigError, match="only 3 steps"):
        fit_cost(recorded(3))
