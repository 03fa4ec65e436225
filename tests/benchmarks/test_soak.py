"""Protects: the soak's verdicts; under the mark `soak`, two minutes of a real server."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import soak
from benchmarks.environment import environment
from benchmarks.soak import Run, Sample, judge
from benchmarks.visitors import Tally

MIB = 2**20


def run(**changes: object) -> Run:
    """A hundred seconds without a fault; memory grows until the warm-up ends."""
    tally = Tally()
    tally.visits["ask"] = 10
    samples = [Sample(second, (100 + min(second, 30)) * MIB, 20) for second in range(100)]
    clean = Run(
        seconds=100.0,
        tally=tally,
        samples=samples,
        descriptors_before=15,
        descriptors_after=15,
        usage_after=0.0,
        requests_after=0.0,
        alive=True,
        log="",
    )
    return replace(clean, **changes)  # type: ignore[arg-type]


def missed(of: Run) -> list[str]:
    return [check.name for check in judge(of) if not check.held]


def test_a_clean_run_holds(tmp_path: Path) -> None:
    assert missed(run()) == []
    text = soak.table(run(), judge(run()))
    assert "| the server's process | alive | alive | held |" in text
    soak.write(run(), judge(run()), text, environment("soak", 0.0), tmp_path)
    record = json.loads((tmp_path / "soak.json").read_text())
    assert (record["tally"]["visits"], record["samples"][3]) == ({"ask": 10}, [3, 103 * MIB, 20])
    assert text in (tmp_path / "soak.md").read_text()


def test_what_is_wrong_is_seen() -> None:
    leaking = [Sample(second, (100 + second) * MIB, 20) for second in range(100)]
    assert missed(run(samples=leaking)) == ["resident memory, end against end of warm-up"]
    assert missed(run(descriptors_after=16)) == ["file descriptors left over"]
    assert missed(run(usage_after=0.1)) == ["KV blocks in use at the end"]
    assert missed(run(requests_after=1.0)) == ["requests in the engine at the end"]
    assert missed(run(alive=False)) == ["the server's process"]
    assert missed(run(tally=Tally())) == ["visits not answered as they should be"]
    failing = Tally(visits=run().tally.visits)
    failing.fail("ask", "HTTP 500")
    assert missed(run(tally=failing)) == ["visits not answered as they should be"]


@pytest.mark.soak
def test_two_minutes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = soak.main(minutes=2.0, concurrency=32, out=tmp_path)
    with capsys.disabled():
        print("\n" + (tmp_path / "soak.md").read_text())
    record = json.loads((tmp_path / "soak.json").read_text())
    assert code == 0, (record["tally"]["errors"], record["log"])
    assert record["tally"]["visits"].keys() == {
        *("ask", "ask_streaming", "abort", "vanish", "send_nonsense", "send_too_much")
    }
