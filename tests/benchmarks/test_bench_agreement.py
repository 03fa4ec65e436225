"""Protects: what is read from two clients' reports, and how they are compared.

The clients themselves run by hand.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bench_agreement as agreement
from benchmarks.bench_agreement import ClientFailedError, Workload

WORKLOAD = Workload(requests=10, concurrency=2, input_len=100, output_len=20)
OURS: dict[str, Any] = {
    "completed": 10,
    "total_input_tokens": 1000,
    "total_output_tokens": 200,
    "mean_ttft_ms": 10.0,
    "median_ttft_ms": 9.0,
    "mean_tpot_ms": 2.0,
    "median_tpot_ms": 2.0,
    "output_throughput": 400.0,
    "request_throughput": 20.0,
}
SEEN = {agreement.SEEN + name: 5.0 for name in agreement.SERVER_VIEW}
THEIRS: dict[str, Any] = {
    "request_count": {"avg": 10.0},
    "input_sequence_length": {"avg": 100.4},
    "output_sequence_length": {"avg": 20.0},
    "time_to_first_token": {"avg": 10.0, "p50": 10.0},
    "inter_token_latency": {"avg": 2.5, "p50": 2.0},
    "output_token_throughput": {"avg": 400.0},
    "request_throughput": {"avg": 20.0},
}


def ours_with(**changes: float) -> dict[str, float]:
    return agreement.of_ours({**OURS, **changes}, WORKLOAD) | SEEN


def theirs() -> dict[str, float]:
    return agreement.of_aiperf(THEIRS, WORKLOAD) | SEEN


def test_medians_are_compared() -> None:
    runs = [ours_with(mean_ttft_ms=value) for value in (9.0, 11.0, 50.0)]
    rows = agreement.compare(runs, [theirs()] * 3)
    assert [round(row.difference, 3) for row in rows if row.judged] == [0.1, -0.1, -0.2, 0, 0, 0]
    # Of what the server saw: 11 and 10 ms are 2.2 and 2 times 5 ms.
    assert next((row.ours, row.theirs) for row in rows if not row.judged) == (2.2, 2.0)


def test_what_the_server_saw_of_one_client() -> None:
    before, after = {"TTFT, mean": (1000.0, 10.0)}, {"TTFT, mean": (1600.0, 30.0)}
    assert agreement.seen_by_server(before, after) == {agreement.SEEN + "TTFT, mean": 30.0}


def test_a_slow_round_is_slow_for_both() -> None:
    mine, other = ours_with(), theirs()
    slow = [{name: 3 * value for name, value in run.items()} for run in (mine, other)]
    rows = agreement.compare([mine, slow[0], slow[0]], [other, slow[1], other])
    assert [row.difference for row in rows][:2] == pytest.approx([0.0, -0.1])


def test_the_table() -> None:
    rows = agreement.compare([ours_with(mean_ttft_ms=11.0)], [theirs()])
    assert "| TTFT, mean | 11.00 ms | 10.00 ms | +10.0% |" in agreement.table(rows, WORKLOAD, 3)


def test_another_workload_is_no_agreement() -> None:
    with pytest.raises(ClientFailedError, match="bench serve"):
        agreement.of_ours({**OURS, "completed": 9}, WORKLOAD)
    for name in ("request_count", "input_sequence_length", "output_sequence_length"):
        with pytest.raises(ClientFailedError, match="AIPerf"):
            agreement.of_aiperf({**THEIRS, name: {"avg": 50.0}}, WORKLOAD)


def test_a_client_that_fails_shows_its_log(tmp_path: Path) -> None:
    with pytest.raises(ClientFailedError, match="out of luck"):
        agreement.run_client(
            [sys.executable, "-c", "print('out of luck'); exit(3)"], tmp_path / "log"
        )
    with pytest.raises(ClientFailedError, match="there is no /nowhere/aiperf"):
        agreement.run_client(["/nowhere/aiperf"], tmp_path / "log")


def test_the_tokenizer_lies_where_the_hubs_cache_would_have_it(tmp_path: Path) -> None:
    agreement.cache_tokenizer("pilot", tmp_path / "hub")
    (path,) = (tmp_path / "hub").rglob("tokenizer.json")
    place = tmp_path / "hub" / "models--local--served"
    assert path.parent == place / "snapshots" / (place / "refs" / "main").read_text()
    assert json.loads(path.read_text())["model"]
