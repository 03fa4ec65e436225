"""What is read from the two clients' reports, and how they are compared; the clients themselves run by hand."""

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
THEIRS: dict[str, Any] = {
    "request_count": {"avg": 10.0},
    "input_sequence_length": {"avg": 100.4},
    "output_sequence_length": {"avg": 20.0},
    "time_to_first_token": {"avg": 10.0, "p50": 10.0},
    "inter_token_latency": {"avg": 2.5, "p50": 2.0},
    "output_token_throughput": {"avg": 400.0},
    "request_throughput": {"avg": 20.0},
}


def test_medians_are_compared() -> None:
    ours = [agreement.of_ours({**OURS, "mean_ttft_ms": value}, WORKLOAD) for value in (9.0, 11.0, 50.0)]
    rows = agreement.compare(ours, [agreement.of_aiperf(THEIRS, WORKLOAD)])
    assert [round(row.difference, 3) for row in rows] == [0.1, -0.1, -0.2, 0, 0, 0]
    assert "| TTFT, mean | 11.00 ms | 10.00 ms | +10.0% |" in agreement.table(rows, WORKLOAD, 3)


def test_another_workload_is_no_agreement() -> None:
    with pytest.raises(ClientFailedError, match="bench serve"):
        agreement.of_ours({**OURS, "completed": 9}, WORKLOAD)
    for name in ("request_count", "input_sequence_length", "output_sequence_length"):
        with pytest.raises(ClientFailedError, match="AIPerf"):
            agreement.of_aiperf({**THEIRS, name: {"avg": 50.0}}, WORKLOAD)


def test_a_client_that_fails_shows_its_log(tmp_path: Path) -> None:
    with pytest.raises(ClientFailedError, match="out of luck"):
        agreement._run([sys.executable, "-c", "print('out of luck'); exit(3)"], tmp_path / "log")
    with pytest.raises(ClientFailedError, match="there is no /nowhere/aiperf"):
        agreement._run(["/nowhere/aiperf"], tmp_path / "log")


def test_the_tokenizer_lies_where_the_hubs_cache_would_have_it(tmp_path: Path) -> None:
    agreement.cache_tokenizer("pilot", tmp_path / "hub")
    (path,) = (tmp_path / "hub").rglob("tokenizer.json")
    place = tmp_path / "hub" / "models--local--served"
    assert path.parent == place / "snapshots" / (place / "refs" / "main").read_text()
    assert json.loads(path.read_text())["model"]
