"""The live validation plays the requests that the simulator runs: lengths, sharing, order."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from benchmarks.simulator import live, live_report
from benchmarks.simulator.live_player import LivePlayer
from benchmarks.simulator.live_record import RESULTS, results_of
from benchmarks.simulator.live_runs import LiveRun, counted_runs, watched_run
from benchmarks.simulator.live_workloads import Pace, workloads
from tests.fakes import FakeExecutor
from twostroke.engine.llm_engine import LLMEngine
from twostroke.runtime.speed_probe import SpeedProbe
from twostroke.simulator.calibration.machine_speed import Speed
from twostroke.simulator.fleet.result import RequestResult
from twostroke.simulator.workloads.make import make_workload
from twostroke.simulator.workloads.options import SimulatedWorkloadOptions


def play(options: SimulatedWorkloadOptions) -> tuple[LLMEngine, list[RequestResult]]:
    engine = LLMEngine(FakeExecutor(num_blocks=600, block_size=16, max_model_len=4096))
    return engine, LivePlayer(engine, make_workload(options).workload, "test").run()


def test_sessions_find_what_their_turns_share() -> None:
    options = SimulatedWorkloadOptions(
        workload="sessions",
        num_requests=6,
        turns=3,
        input_len=20,
        output_len=15,
        prefix_len=64,
        rate=1000.0,
    )
    engine, results = play(options)
    engine.close()
    assert [result.number for result in results] == list(range(6))
    assert results[0].cached_tokens == 0
    # A later turn finds the system prompt and the turns before it, the last answer's last token
    # aside.
    for number in (1, 2, 4, 5):
        shared_tokens = results[number].prompt_tokens - 20
        assert (shared_tokens - 1) // 16 * 16 <= results[number].cached_tokens <= shared_tokens
        assert results[number].arrival >= results[number - 1].finish


def test_a_closed_loop_keeps_its_clients_busy() -> None:
    options = SimulatedWorkloadOptions(
        workload="random",
        num_requests=9,
        arrivals="closed",
        concurrency=3,
        input_len=10,
        output_len=4,
    )
    engine, results = play(options)
    steps = engine.recorder.events()
    engine.close()
    assert len(results) == 9 and all(
        result.arrival <= result.first_token <= result.finish for result in results
    )
    assert max(event.num_running for event in steps) <= 3


def test_looks_cost_no_request_anything() -> None:
    """Where there are pauses they fall into them; the clock stands still meanwhile in any case."""
    engine = LLMEngine(FakeExecutor(num_blocks=600, block_size=16, max_model_len=4096))
    now = [0.0]

    def clock() -> float:
        now[0] += 1e-4
        return now[0]

    def wait(seconds: float) -> None:
        now[0] += seconds

    def look() -> float:
        now[0] += 1.0
        return 1.0

    options = SimulatedWorkloadOptions(
        workload="random", num_requests=4, rate=4.0, input_len=10, output_len=4
    )
    workload = make_workload(options).workload
    player = LivePlayer(engine, workload, "test", look, wait, clock)
    results = player.run()
    engine.close()
    assert len(player.seen) >= 1
    assert max(result.finish for result in results) < now[0] - 1.0 * len(player.seen)
    assert all(result.ttft < 0.1 for result in results)


def test_which_runs_count_depends_on_the_machine_alone() -> None:
    """The first undisturbed run; if the machine never settles, all of them."""

    def made(slower: float, others_share: float = 0.0) -> LiveRun:
        return LiveRun([], (0, 1), others_share, slower, 1.0, [slower])

    runs = [made(1.5), made(0.95), made(1.0)]
    counted = counted_runs(lambda attempt: runs[attempt], held=True)
    assert [(run.slower, run.attempts) for run in counted] == [(0.95, 2)]
    counted = counted_runs(lambda attempt: runs[attempt], held=False)
    # Beside an average, all that are like it.
    assert [(run.slower, run.attempts) for run in counted] == [
        (0.95, 3),
        (1.0, 3),
    ]
    runs = [made(1.5), made(0.95), made(1.5), made(1.4), made(1.3), made(1.2)]
    counted = counted_runs(lambda attempt: runs[attempt], held=True, wanted=2)
    # Disturbed ones do not outvote it.
    assert [(run.slower, run.attempts) for run in counted] == [(0.95, 6)]
    runs = [made(1.5), made(1.2), made(1.0, others_share=0.5)]
    counted = counted_runs(lambda attempt: runs[attempt], held=True)
    assert [(run.slower, run.attempts) for run in counted] == [(1.5, 3), (1.2, 3), (1.0, 3)]


def test_the_machine_is_watched_while_a_workload_runs() -> None:
    engine = LLMEngine(FakeExecutor(num_blocks=600, block_size=16, max_model_len=4096))
    options = SimulatedWorkloadOptions(
        workload="random", num_requests=3, rate=2.0, input_len=10, output_len=4
    )
    probe = SpeedProbe()
    run = watched_run(engine, make_workload(options).workload, "test", probe, Speed(*probe()))
    engine.close()
    assert len(run.results) == 3 and run.steps == (0, len(engine.recorder.events()))
    assert len(run.looks) >= 3 and all(look > 0 for look in run.looks)  # before, within, after
    assert set(run.state()) == {"disturbed", "others", "slower", "memory", "attempts", "looks"}


def test_the_workloads_are_five_and_each_machine_gets_its_pace() -> None:
    """The same load for as long: on a faster one more requests, on a slow one the least number."""
    slow, fast = Pace.suited(0.3), Pace.suited(30.0)
    assert (slow, fast) == (Pace(0.1, 1), Pace(10.0, 43))
    few, many = workloads(slow), workloads(fast)
    assert len(few) == len(many) == 5
    assert all(many[name].num_requests == 43 * (few[name].num_requests or 0) for name in few)


def test_figures() -> None:
    rows = [[0, 0.0, 0.5, 1.5, 10, 11], [1, 1.0, 1.2, 2.0, 10, 9]]
    results = results_of(rows)
    assert live_report.throughput(results) == pytest.approx(10.0)
    assert live_report.ttfts(results) == pytest.approx([0.5, 0.2])
    assert live_report.tpots(results) == pytest.approx([0.1, 0.1])
    case = live_report.Case("m", "w", [results, results], results_of([[0, 0.0, 0.6, 1.6, 10, 11]]))
    assert case.pair(lambda run: run[0].ttft).error == pytest.approx(0.2)
    assert case.apart(live_report.throughput) == 0
    assert live_report.percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert live_report.percentile([float(value) for value in range(1, 21)], 0.95) == 19.0


def test_a_kept_calibration_can_be_fitted_again(tmp_path: Path) -> None:
    """Nothing is measured: kept steps, and what the cost model says of them today."""
    kept = json.loads(RESULTS.read_text(encoding="utf-8"))["models"]["pilot"]
    before = kept["steps"].splitlines()
    efficiencies = tomllib.loads(live.refit(kept, tmp_path, starts=1))
    assert efficiencies["source"] == tomllib.loads(kept["efficiencies"])["source"]
    after = kept["steps"].splitlines()
    assert [line.split(",")[:4] for line in after] == [line.split(",")[:4] for line in before]
    assert after != before  # five tries find something else than thousands did
