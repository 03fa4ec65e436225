"""The probe of the machine's speed: plausible figures, and as long as it was asked for."""

from __future__ import annotations

import time

import pytest

from twostroke.runtime.speed_probe import SpeedProbe
from twostroke.startup import make_speed_probe


def test_a_probe_finds_rates_that_a_machine_can_have() -> None:
    flops, bandwidth = make_speed_probe("cpu")()
    assert 1e8 < flops < 1e16  # an emulated core, and more than any device has
    assert 1e7 < bandwidth < 1e14


def test_a_look_at_the_speed_is_short_whatever_the_processor_can_multiply() -> None:
    """Emulated bfloat16 made it take twenty seconds with AVX2."""
    probe = SpeedProbe()
    began = time.perf_counter()
    probe()
    assert time.perf_counter() - began < 5


def test_keeping_busy_takes_as_long_as_asked() -> None:
    probe = SpeedProbe()
    began = time.perf_counter()
    probe.keep_busy(0.05)
    assert 0.05 <= time.perf_counter() - began < 5
    probe.keep_busy(0.0)


def test_one_product_that_was_stopped_lets_no_core_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of a pause is filled with products as long as they usually fit into it."""
    probe = SpeedProbe()
    now, products = [0.0], [0]

    def multiply() -> None:
        products[0] += 1
        now[0] += 0.02 if products[0] == 2 else 0.001

    def perf_counter() -> float:
        now[0] += 1e-6
        return now[0]

    monkeypatch.setattr(probe, "_multiply_small", multiply)
    monkeypatch.setattr("twostroke.runtime.speed_probe.time.perf_counter", perf_counter)
    probe.keep_busy(0.05)
    assert products[0] >= 28 and 0.05 <= now[0] < 0.0511
