"""The probe of the machine's speed: plausible figures, and as long as it was asked for."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor

from twostroke.runtime.speed_probe import SpeedProbe
from twostroke.startup import make_speed_probe


class Clock:
    """A millisecond passes with each piece of work, and none without."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.multiplied: list[int] = []  # the FLOPs of each product
        self.copied: list[int] = []  # the bytes that each copy reads
        monkeypatch.setattr("twostroke.runtime.speed_probe.time.perf_counter", lambda: self.now)
        monkeypatch.setattr(torch, "mm", self.multiply)
        monkeypatch.setattr(torch.Tensor, "copy_", lambda _, source: self.copy(source))

    def multiply(self, left: Tensor, right: Tensor, *, out: Tensor) -> None:
        assert out.shape == (left.shape[0], right.shape[1])
        self.now += 1e-3
        self.multiplied.append(2 * left.shape[0] * left.shape[1] * right.shape[1])

    def copy(self, source: Tensor) -> None:
        self.now += 1e-3
        self.copied.append(source.nbytes)


def test_a_probe_divides_the_work_by_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = make_speed_probe("cpu")
    clock = Clock(monkeypatch)
    flops, bandwidth = probe()
    (work,), (read,) = set(clock.multiplied), set(clock.copied)
    assert len(clock.multiplied) > 5 and len(clock.copied) > 3
    assert flops == pytest.approx(work / 1e-3)
    assert bandwidth == pytest.approx(2 * read / 1e-3)  # each byte is read and written
    assert probe.flops() == flops


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

    def multiply(*_: Tensor, **__: Tensor) -> None:
        products[0] += 1
        now[0] += 0.02 if products[0] == 2 else 0.001

    def perf_counter() -> float:
        now[0] += 1e-6
        return now[0]

    monkeypatch.setattr(torch, "mm", multiply)
    monkeypatch.setattr("twostroke.runtime.speed_probe.time.perf_counter", perf_counter)
    probe.keep_busy(0.05)
    assert products[0] >= 28 and 0.05 <= now[0] < 0.0511
