"""Fits by least absolute deviations: what they find, what they leave alone, same each time."""

from __future__ import annotations

from math import log, nan

import pytest

from twostroke.timing.least_deviations import least_deviations

SPACE = {"rate": (1.0, 1e-3, 1e3), "start": (1.0, 1e-6, 1e3), "unseen": (2.0, 1e-3, 1e3)}
SIZES = [1.0, 2.0, 5.0, 10.0, 30.0, 100.0, 300.0]


def errors_against(measured: list[float], values: dict[str, float]) -> list[float]:
    """Of a time that is a start and a size over a rate; ``unseen`` has no part in it."""
    return [
        log((values["start"] + size / values["rate"]) / seconds)
        for size, seconds in zip(SIZES, measured)
    ]


def fit(measured: list[float], starts: int = 2) -> dict[str, float]:
    return least_deviations(
        lambda values: errors_against(measured, values),
        [1 / len(SIZES)] * len(SIZES),
        SPACE,
        pull=1e-4,
        starts=starts,
    ).values


def test_finds_the_values_that_made_the_measurements() -> None:
    fitted = fit([0.05 + size / 40 for size in SIZES])
    assert fitted["start"] == pytest.approx(0.05, rel=0.05) and fitted["rate"] == pytest.approx(
        40, rel=0.05
    )


def test_one_wild_measurement_moves_nothing() -> None:
    """What least squares would not withstand."""
    measured = [0.05 + size / 40 for size in SIZES]
    measured[3] *= 20
    fitted = fit(measured)
    assert fitted["start"] == pytest.approx(0.05, rel=0.1) and fitted["rate"] == pytest.approx(
        40, rel=0.1
    )


def test_what_no_measurement_depends_on_stays_where_it_was() -> None:
    assert fit([0.05 + size / 40 for size in SIZES])["unseen"] == pytest.approx(2.0, rel=1e-3)


def test_values_stay_within_their_bounds() -> None:
    fitted = fit([1e-5 * size for size in SIZES])  # a rate of 100,000
    assert fitted["rate"] == pytest.approx(1e3) and fitted["start"] >= 1e-6


def test_the_same_again_is_the_same() -> None:
    measured = [0.05 + size / 40 for size in SIZES]
    assert fit(measured, starts=4) == fit(measured, starts=4)


def test_a_value_at_its_bound_does_not_hold_up_the_others() -> None:
    """``start`` would fall below its bound for ever; the rate is found all the same."""
    space = {**SPACE, "start": (0.5, 0.5, 1e3)}
    measured = [size / 40 for size in SIZES]
    minimum = least_deviations(
        lambda values: errors_against(measured, values), [1.0] * 7, space, pull=1e-4, starts=1
    )
    best = min(
        sum(map(abs, errors_against(measured, {"start": 0.5, "rate": rate / 10})))
        for rate in range(10, 10_000, 7)
    )
    assert minimum.values["start"] == pytest.approx(0.5) and minimum.loss < best + 0.02


def test_a_start_without_a_loss_is_none() -> None:
    """What is not finite is never taken for a minimum."""

    def errors(values: dict[str, float]) -> list[float]:
        return [nan if values["x"] > 3 else log(values["x"] / 2)]

    minimum = least_deviations(errors, [1.0], {"x": (9.0, 0.1, 10.0)}, pull=1e-4, starts=8)
    assert minimum.values["x"] == pytest.approx(2.0, rel=1e-3)


def test_a_valley_beside_is_found_by_another_start() -> None:
    """Only a descent from elsewhere finds it."""

    def errors(values: dict[str, float]) -> list[float]:
        place = log(values["x"])
        return [min(abs(place) + 0.5, 3 * abs(place - 2.0))]

    def loss(starts: int) -> float:
        return least_deviations(
            errors, [1.0], {"x": (1.0, 1e-2, 1e2)}, pull=1e-3, starts=starts
        ).loss

    assert loss(1) == pytest.approx(0.5, abs=0.01)
    assert loss(16) < 0.1
