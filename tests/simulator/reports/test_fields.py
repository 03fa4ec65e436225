"""JSON and CSV: the same bytes each time, and read back with checks."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.simulator.scenarios import runs, scenario
from twostroke.core.errors import ConfigError
from twostroke.core.step import Reason
from twostroke.simulator.reports.earlier import read_report
from twostroke.simulator.reports.fields import WAITS, report_json, requests_csv, run_fields
from twostroke.simulator.simulate import simulate
from twostroke.simulator.sweep import sweep


def test_every_reason_has_words() -> None:
    assert set(WAITS) == {"step", *(reason.value for reason in Reason)}


def test_the_same_seed_gives_the_same_bytes() -> None:
    def report(jump: bool) -> tuple[str, str]:
        done = [
            simulate(varied, jump=jump, interval=True)
            for varied in sweep(scenario(), ("rate=5,50",))
        ]
        fields = [run_fields(run) for run in done]
        return report_json(fields), requests_csv(done)

    assert report(True) == report(True) == report(False)


def test_files_hold_what_happened(tmp_path: Path) -> None:
    done = runs("rate=5,50")
    path = tmp_path / "earlier.json"
    path.write_text(report_json([run_fields(run) for run in done]))
    again = read_report(path)
    assert [run["label"] for run in again] == ["earlier: rate=5", "earlier: rate=50"]
    assert again[0]["completed"] == 30
    assert len(again[0]["timeline"]["time"]) == 300
    assert json.loads(path.read_text())["runs"][1]["setting"]["rate"] == 50
    rows = list(csv.DictReader(io.StringIO(requests_csv(done))))
    assert len(rows) == 60
    good = sum(int(row["good"]) for row in rows if row["run"] == "rate=5")
    assert done[0].summary.goodput == pytest.approx(good / done[0].summary.duration)


@pytest.mark.parametrize(
    "change",
    [
        {"median_ttft_ms": "x"},
        {"mfu": None},
        {"setting": {}},
        {"hardware": {"name": "h100"}},
        {"timeline": {}},
        {
            "timeline": {
                "time": [1.0],
                "running": [],
                "waiting": [],
                "kv": [],
                "tokens_per_second": [],
            }
        },
        {"interval": {"low": {}}},
        {"interval": {"low": {}, "high": {}}},
        {"waiting_for": {"godot": 1.0}},
        {"by_tenant": {"0": {}}},
        {"label": 5},
    ],
    ids=str,
)
def test_a_report_that_could_not_be_shown_is_refused(
    change: dict[str, Any], tmp_path: Path
) -> None:
    """Before the simulation that it is to stand beside, and in one line."""
    path = tmp_path / "earlier.json"
    path.write_text(report_json([{**run_fields(simulate(scenario(num_requests=2))), **change}]))
    with pytest.raises(ConfigError, match="no report"):
        read_report(path)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b"[" * 100_000, b'{"runs": [5]}'])
def test_what_is_no_report_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "no.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="no report"):
        read_report(path)


def test_an_empty_run_is_reported_too() -> None:
    """Ctrl-C before anything has ended, or nothing that fits."""
    run = simulate(scenario(workload="random", input_len=200_000, rate=None))
    assert (run.summary.completed, run.summary.refused) == (0, 30)
    assert report_json([run_fields(run)])
