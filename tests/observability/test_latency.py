"""Percentiles, TPOT and targets against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from twostroke.observability.latency import (
    LatencyDistribution,
    latency_fields,
    latency_rows,
    meets_targets,
    percentile,
    time_per_output_token,
)


def test_percentiles_are_interpolated() -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], 50) == 2.5
    assert percentile([1.0, 2.0, 3.0, 4.0], 90) == pytest.approx(3.7)
    assert percentile([5.0], 99) == 5.0
    assert percentile([], 50) == 0.0
    spread = LatencyDistribution.of([3.0, 1.0, 2.0])
    assert spread.mean == 2.0
    assert list(spread.percentiles) == [50, 90, 95, 99]
    assert list(spread.percentiles.values()) == pytest.approx([2.0, 2.8, 2.9, 2.98])


def test_time_per_output_token_leaves_out_the_first() -> None:
    assert time_per_output_token(1.0, 3.0, 5) == 0.5
    assert time_per_output_token(1.0, 1.0, 1) == 0.0


@dataclass
class Latencies:
    ttft: float = 0.4
    tpot: float = 0.1
    e2el: float = 1.4


def test_a_good_request_exceeds_no_target() -> None:
    assert meets_targets(Latencies(), {})
    assert meets_targets(Latencies(), {"ttft": 0.4, "tpot": 0.11, "e2el": 1.5})
    assert not meets_targets(Latencies(), {"ttft": 0.41, "tpot": 0.09})


def test_reports_are_in_milliseconds() -> None:
    distribution = LatencyDistribution.of([0.001, 0.003], (50, 99))
    fields = latency_fields("ttft", distribution)
    assert fields == pytest.approx({"mean_ttft_ms": 2, "median_ttft_ms": 2, "p99_ttft_ms": 2.98})
    assert latency_rows({"TTFT": distribution}) == (
        ("ms", "mean", "median", "p99"),
        [("TTFT", "2.00", "2.00", "2.98")],
    )
