"""The Chrome trace: valid by the format's rules, and it tells the story of the run."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import given

from tests.observability.runs import make_request, make_run, make_step
from tests.observability.test_events import step_events
from twostroke.core.errors import RequestFailedError
from twostroke.observability.chrome_trace import chrome_trace, write_chrome_trace
from twostroke.observability.events import StepEvent


def check(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """Assert what Perfetto needs; returns the records."""
    records: list[dict[str, Any]] = json.loads(json.dumps(trace, allow_nan=False))["traceEvents"]
    last = 0.0
    named = {(r["pid"], r["tid"]) for r in records if r["ph"] == "M"}
    for record in records:
        assert record["ph"] in {"M", "X", "i", "C"}
        assert isinstance(record["pid"], int)
        assert isinstance(record["tid"], int)
        assert isinstance(record["name"], str)
        assert isinstance(record["args"], dict)
        assert (record["pid"], record["tid"]) in named
        if record["ph"] == "M":
            continue
        assert record["ts"] >= last
        last = record["ts"]
        if record["ph"] == "X":
            assert record["dur"] >= 0
        if record["ph"] == "i":
            assert record["s"] == "t"
        if record["ph"] == "C":
            assert all(isinstance(v, (int, float)) for v in record["args"].values())
    return records


def track(records: list[dict[str, Any]], name: str) -> list[tuple[str, float, float]]:
    (place,) = [
        (r["pid"], r["tid"])
        for r in records
        if r["name"] == "thread_name" and r["args"]["name"] == name
    ]
    slices = [r for r in records if r["ph"] == "X" and (r["pid"], r["tid"]) == place]
    for before, after in pairwise(slices):
        assert before["ts"] + before["dur"] <= after["ts"] + 1e-6
    return [(r["name"], r["ts"], r["dur"]) for r in slices]


def test_the_run_as_tracks() -> None:
    records = check(chrome_trace(make_run()))
    # Time 0 is the arrival of `a`, 0.5 s before the first step.
    assert track(records, "a") == [
        ("queued", 0.0, 500000.0),
        ("prefill [0:4)", 500000.0, 100000.0),
        ("prefill [4:6)", 600000.0, 100000.0),
        ("decode", 700000.0, 100000.0),
        ("decode", 800000.0, 100000.0),
    ]
    assert track(records, "b") == [
        ("queued", 100000.0, 500000.0),
        ("prefill [0:2)", 600000.0, 100000.0),
        ("queued", 700000.0, 100000.0),
        ("prefill [0:3)", 800000.0, 100000.0),
        ("decode", 900000.0, 100000.0),
    ]
    assert [name for name, _, _ in track(records, "steps")] == [f"step {i}" for i in range(5)]


def test_instants_and_counters() -> None:
    records = check(chrome_trace(make_run()))
    assert [r["name"] for r in records if r["ph"] == "i"] == [
        "preempted",
        "finished: stop",
        "finished: length",
    ]
    assert {r["name"] for r in records if r["ph"] == "C"} == {
        "KV blocks",
        "requests",
        "tokens per step",
        "KV waste",
    }
    tokens = [r["args"] for r in records if r["name"] == "tokens per step"]
    assert tokens[0] == {"prefill": 4, "decode": 0}
    assert tokens[3] == {"prefill": 2, "decode": 2}


def test_step_arguments() -> None:
    records = check(chrome_trace(make_run()))
    args = [r["args"] for r in records if r["name"].startswith("step ")]
    assert args[0]["held_back"] == [
        {"request_id": "b", "reason": "token_budget", "by": None, "behind": 0}
    ]
    assert args[2]["preempted"] == [{"request_id": "b", "by": "a"}]
    assert "preempted" not in args[0]
    assert args[0]["seconds.forward"] == 0.05


def test_failed_step_shows_why() -> None:
    event = make_step(0, 0.0, [(make_request(), 0, 6, 0)], error=RequestFailedError("boom"))
    (step,) = [r for r in check(chrome_trace([event])) if r["name"] == "step 0"]
    assert step["args"]["error"] == "boom"


def test_written_file_is_json(tmp_path: Path) -> None:
    write_chrome_trace(make_run(), tmp_path / "trace.json")
    check(json.loads((tmp_path / "trace.json").read_text()))
    assert check(chrome_trace([]))


@given(event=step_events)
def test_any_event_gives_a_valid_trace(event: StepEvent) -> None:
    check(chrome_trace([event]))
