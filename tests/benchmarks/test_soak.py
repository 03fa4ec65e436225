"""Protects: the soak's verdicts; under the mark `soak`, two minutes of a real server."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import soak
from benchmarks.environment import environment
from benchmarks.neighbour import ENOUGH_VISITS, Phase, judge_phases, to_repeat
from benchmarks.soak import Run, Sample, judge
from benchmarks.visitors import Tally

MIB = 2**20
ALONE = Phase(ttfts=[0.01] * 300, seconds=9)


def run(**changes: object) -> Run:
    """A hundred seconds without a fault; memory grows until the warm-up ends."""
    tally = Tally()
    tally.visits["ask"] = 10
    samples = [Sample(second, (100 + min(second, 30)) * MIB, 20) for second in range(100)]
    clean = Run(
        seconds=100.0,
        warm_up=40.0,
        calm_end=92.0,
        tally=tally,
        phases=[ALONE, Phase("fill_the_queue", [0.015] * 300, seconds=9)],
        samples=samples,
        at_rest=(130 * MIB, 132 * MIB),
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
    leaking = 130 * MIB, 133 * MIB
    assert missed(run(at_rest=leaking)) == ["resident memory, end against end of warm-up"]
    assert missed(run(descriptors_after=16)) == ["file descriptors left over"]
    assert missed(run(usage_after=0.1)) == ["KV blocks in use at the end"]
    assert missed(run(requests_after=1.0)) == ["requests in the engine at the end"]
    assert missed(run(alive=False)) == ["the server's process"]
    assert missed(run(tally=Tally())) == ["visits not answered as they should be"]
    failing = Tally(visits=run().tally.visits)
    failing.fail("ask", "HTTP 500")
    assert missed(run(tally=failing)) == ["visits not answered as they should be"]


def test_a_hostile_neighbour_that_costs_others_something_is_seen() -> None:
    row = "light key during fill_the_queue: TTFT, 429, failed"

    def during(**changes: object) -> list[str]:
        fields = {"ttfts": [0.015] * 300, "seconds": 9, **changes}
        phase = Phase("fill_the_queue", **fields)  # type: ignore[arg-type]
        return missed(run(phases=[ALONE, phase]))

    assert during() == []
    assert during(ttfts=[0.01] * 290 + [0.03] * 10) == [row], "the slowest hundredth counts"
    assert during(refused=1) == [row]
    assert during(failed=["HTTP 500"]) == [row]
    assert during(attack_statuses={"400": 7, "503": 1}) == [row]
    assert during(ttfts=[]) == [row], "no answer at all"
    assert during(ttfts=[0.015] * 70) == [row], "the few that it could send were answered quickly"
    unserved = run(phases=[Phase(refused=2), Phase("fill_the_queue", [0.01] * 300)])
    assert missed(unserved)[0].startswith("light key without an attacker")


def test_an_attack_is_judged_by_the_times_beside_its_own() -> None:
    """All slices of a long run together; of a short one the best pair, by its median."""

    def slices(*ttfts: float, count: int) -> list[Phase]:
        names = ["", "fill_the_queue"] * (len(ttfts) // 2)
        return [Phase(name, [ttft] * count, seconds=9) for name, ttft in zip(names, ttfts)]

    assert judge_phases(slices(0.01, 0.015, 0.1, 0.15, count=300))[0].held
    assert not judge_phases(slices(0.01, 0.015, 0.01, 0.03, count=300))[0].held
    few = ENOUGH_VISITS // 2 - 1
    assert judge_phases(slices(0.01, 0.015, 0.01, 0.03, count=few))[0].held
    assert not judge_phases(slices(0.01, 0.025, 0.01, 0.03, count=few))[0].held
    starved = slices(0.01, 0.01, count=few)
    starved[1].ttfts = [0.01] * 20
    assert not judge_phases(starved)[0].held
    assert "P50" in soak.table(run(phases=starved), [])


def test_only_what_missed_in_few_requests_is_measured_again() -> None:
    def pair(ttft: float, count: int, **changes: object) -> list[Phase]:
        fields = {"ttfts": [ttft] * count, "seconds": 9, **changes}
        attacked = Phase("fill_the_queue", **fields)  # type: ignore[arg-type]
        return [Phase(ttfts=[0.01] * count, seconds=9), attacked]

    assert to_repeat(pair(0.03, 5)) == ["fill_the_queue"]
    assert to_repeat(pair(0.015, 5)) == []
    assert to_repeat(pair(0.03, ENOUGH_VISITS)) == []
    assert to_repeat(pair(0.03, 5, refused=1)) == []
    assert judge_phases(pair(0.03, 5) + pair(0.015, 5))[0].held
    assert not judge_phases(pair(0.03, 5, refused=1) + pair(0.015, 5))[0].held, "a 429 stays"


@pytest.mark.soak
@pytest.mark.timeout(900)  # on a busy machine the end of a visit is waited for
def test_two_minutes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = soak.main(minutes=2.0, concurrency=32, out=tmp_path)
    with capsys.disabled():
        print("\n" + (tmp_path / "soak.md").read_text())
    record = json.loads((tmp_path / "soak.json").read_text())
    assert code == 0, (record["tally"]["errors"], record["log"])
    assert record["tally"]["visits"].keys() == {
        *("ask", "ask_streaming", "fill_a_form", "call_a_tool"),
        *("abort", "vanish", "send_nonsense", "send_too_much"),
    }
