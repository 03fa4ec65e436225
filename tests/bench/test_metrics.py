"""Latencies, throughput and goodput against numbers worked out by hand."""

from __future__ import annotations

import pytest

from twostroke.bench.metrics import RequestRecord, summarize


def record(
    ttft: float, gaps: list[float], *, input_len: int = 10, output_len: int | None = None
) -> RequestRecord:
    length = len(gaps) + 1 if output_len is None else output_len
    return RequestRecord(
        input_len=input_len, output_len=length, ttft=ttft, itls=gaps, e2el=ttft + sum(gaps)
    )


def test_a_run_by_hand() -> None:
    records = [
        record(0.5, [0.1, 0.3]),  # tpot 0.2, e2el 0.9
        record(1.0, [0.2] * 4, input_len=30),  # tpot 0.2, e2el 1.8
        record(0.3, [], input_len=20),  # one token: no tpot
        RequestRecord(input_len=99, error="HTTP 500"),
    ]
    metrics = summarize(records, 4.0, {})
    assert (metrics.completed, metrics.failed) == (3, 1)
    assert (metrics.input_tokens, metrics.output_tokens) == (60, 9)
    assert metrics.request_throughput == 0.75
    assert metrics.output_throughput == 2.25
    assert metrics.total_token_throughput == 17.25
    assert metrics.goodput is None
    assert metrics.ttft.mean == pytest.approx(0.6)
    assert metrics.ttft.percentiles[50] == 0.5
    assert metrics.tpot.mean == pytest.approx(0.2)
    assert metrics.itl.mean == pytest.approx(1.2 / 6)
    assert metrics.e2el.percentiles[50] == pytest.approx(0.9)


def test_several_tokens_in_one_event_count_in_tpot_not_in_itl() -> None:
    merged = record(0.5, [0.4], output_len=5)
    assert merged.tpot == pytest.approx(0.1)
    assert summarize([merged], 1.0, {}).itl.mean == pytest.approx(0.4)


def test_goodput_needs_every_target() -> None:
    records = [record(0.1, [0.1]), record(0.3, [0.1]), record(0.1, [0.5]), RequestRecord(error="x")]
    assert summarize(records, 2.0, {"ttft": 0.2, "tpot": 0.2}).goodput == 0.5
    assert summarize(records, 2.0, {"ttft": 0.2}).goodput == 1.0
    assert summarize(records, 2.0, {"e2el": 0.4}).goodput == 1.0


def test_nothing_succeeded() -> None:
    metrics = summarize([RequestRecord(error="x")], 1.0, {"ttft": 1.0})
    assert (metrics.completed, metrics.goodput, metrics.ttft.mean, metrics.itl.percentiles[99]) == (
        0,
        0,
        0,
        0,
    )
