"""The simulation is the engine: the same steps as the live loop, whether taken one by one or in
runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.simulator.fleets import make_executor, make_fleet, specs
from twostroke.core.config import EngineConfig, ObservabilityConfig, SchedulerConfig
from twostroke.core.sampling_params import SamplingParams
from twostroke.core.step import StepPlan, StepResult
from twostroke.engine.llm_engine import LLMEngine
from twostroke.observability.events import StepEvent
from twostroke.observability.recorder import Recorder, read_jsonl
from twostroke.simulator.fleet.executor import SimulatedExecutor
from twostroke.simulator.fleet.replica import Replica
from twostroke.simulator.fleet.requests import make_request
from twostroke.simulator.fleet.result import FleetResult
from twostroke.simulator.fleet.step_log import StepLog
from twostroke.simulator.results.columns import to_columns
from twostroke.simulator.workloads.arrivals import ClosedLoop
from twostroke.simulator.workloads.base import OpenLoop, RequestSpec, Workload
from twostroke.simulator.workloads.sessions import Sessions, SessionTurn

PARAMS = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True, detokenize=False)


def live_engine(workload: Workload, config: SchedulerConfig, num_blocks: int) -> LLMEngine:
    """The live loop on the same executor and clock, fed as a server would feed it."""
    executor = make_executor(num_blocks)
    clock = executor.clock
    config_ = EngineConfig(scheduler=config, observability=ObservabilityConfig(step_events=100_000))
    engine = LLMEngine(executor, None, config_, clock=clock)
    waiting, num_filled = list(workload.arrivals()), 0
    while waiting or engine.has_work():
        while waiting and (waiting[0].arrival <= clock() or not engine.has_work()):
            spec = waiting.pop(0)
            clock.advance_to(spec.arrival)
            request = make_request(spec, PARAMS, 4, num_filled)
            num_filled += len(request.block_hashes)  # events name blocks as the fleet does
            engine.loop.add([request])
        engine.step()
    return engine


def events_as_told(events: list[StepEvent]) -> list[dict[str, Any]]:
    """What events say, with prefixes numbered as they come: which are equal is what counts."""
    numbers: dict[int, int] = {}
    dicts = [each.to_dict() for each in events]
    for told in dicts:
        for started in told["started"]:
            keys = started["prefix_keys"]
            started["prefix_keys"] = [numbers.setdefault(key, len(numbers)) for key in keys]
    return dicts


def mixed_workload() -> OpenLoop:
    """Long and short, alone and crowded, with common beginnings."""
    random = Random(3)
    arrivals = sorted(random.uniform(0, 3) for _ in range(40))
    return OpenLoop(
        [
            RequestSpec(
                number,
                arrival,
                random.randrange(1, 60),
                random.randrange(1, 40),
                ((random.randrange(3), 12),),
            )
            for number, arrival in enumerate(arrivals)
        ]
    )


@pytest.mark.parametrize(
    "config",
    [
        SchedulerConfig(),
        SchedulerConfig(max_num_batched_tokens=24, max_num_seqs=4),
        SchedulerConfig(
            max_num_batched_tokens=40, max_prefill_chunk=7, batching="static", max_num_seqs=6
        ),
    ],
)
@pytest.mark.parametrize("num_blocks", [30, 400])
def test_step_events_are_those_of_the_live_engine(config: SchedulerConfig, num_blocks: int) -> None:
    """No copy, no branch: what `twostroke serve` would record is what the simulator records."""
    live = live_engine(mixed_workload(), config, num_blocks).recorder.events()
    recorder = Recorder(100_000)
    make_fleet(mixed_workload(), config, num_blocks=num_blocks, observers=[recorder])[0].run()
    simulated = recorder.events()
    assert events_as_told(simulated) == events_as_told(live)
    if num_blocks == 30:
        assert any(event.held_back for event in live)


def test_a_jumped_run_is_recorded_like_a_stepped_one(tmp_path: Path) -> None:
    """The same file, byte for byte, and it reads back as the same events."""
    files = [tmp_path / "stepped.jsonl", tmp_path / "jumped.jsonl"]
    for path, jump in zip(files, (False, True)):
        recorder = Recorder(10, path)
        make_fleet(mixed_workload(), num_blocks=40, jump=jump, observers=[recorder])[0].run()
        recorder.close()
    assert files[0].read_bytes() == files[1].read_bytes()
    assert len(list(read_jsonl(files[1]))) > 100


def test_the_log_says_what_the_events_say() -> None:
    """Columns that reports are made of agree with the events, jumped or not."""
    recorder = Recorder(100_000)
    _, (stepped,) = fleet_run(mixed_workload, num_blocks=40, observers=[recorder])
    _, (jumped,) = fleet_run(mixed_workload, num_blocks=40)
    events: list[StepEvent] = recorder.events()
    for log in (to_columns([stepped.log]), to_columns([jumped.log])):
        assert log.start.tolist() == [event.time for event in events]
        assert [end - start for start, end in zip(log.start, log.end)] == [
            event.duration for event in events
        ]
        assert log.running.tolist() == [event.num_running for event in events]
        assert log.waiting.tolist() == [event.num_waiting for event in events]
        assert log.free_blocks.tolist() == [event.free_blocks for event in events]
        assert log.prefill_tokens.tolist() == [
            sum(share.num_tokens for share in event.scheduled if share.num_tokens > 1)
            for event in events
        ]
        assert log.new_tokens.tolist() == [
            sum(share.num_new_tokens for share in event.scheduled) for event in events
        ]


def fleet_run(make: Callable[[], Workload], **options: Any) -> tuple[FleetResult, list[Replica]]:
    fleet, replicas = make_fleet(make(), **options)
    return fleet.run(), replicas


def steps_of(logs: Sequence[StepLog]) -> dict[str, Any]:
    """Every entry of every step, as plain values."""
    columns = to_columns(logs)
    found = {field.name: getattr(columns, field.name) for field in fields(columns)}
    return {name: list(value) for name, value in found.items()}


@st.composite
def cases(draw: st.DrawFn) -> tuple[Callable[[], Workload], SchedulerConfig, dict[str, Any]]:
    """Workloads of all kinds on fleets in which blocks are often scarce."""
    config = SchedulerConfig(
        max_num_batched_tokens=draw(st.sampled_from([5, 24, 64])),
        max_num_seqs=draw(st.integers(1, 8)),
        max_prefill_chunk=draw(st.none() | st.integers(2, 16)),
        policy=draw(st.sampled_from(["fcfs", "priority"])),
        batching=draw(st.sampled_from(["continuous", "continuous", "static"])),
    )
    random = draw(st.randoms(use_true_random=False))
    spread = draw(st.sampled_from([0.0, 0.3, 3.0]))
    rows = sorted(
        (random.uniform(0, spread), random.randrange(1, 50), random.randrange(1, 40))
        for _ in range(draw(st.integers(1, 12)))
    )
    requests = [
        RequestSpec(
            number, *row, segments=((random.randrange(2), 8),), priority=random.randrange(2)
        )
        for number, row in enumerate(rows)
    ]
    turns = [
        [SessionTurn(random.randrange(1, 12), random.randrange(1, 12)) for _ in range(3)]
        for _ in range(3)
    ]
    pause = random.choice([0.0, 0.1])
    kinds: dict[str, Callable[[], Workload]] = {
        "open": lambda: OpenLoop(requests),
        "closed": lambda: ClosedLoop(requests, 2, pause),
        "sessions": lambda: Sessions(turns, [0.0, 0.05, 0.4], 5, pause),
    }
    options = {
        "num_blocks": draw(st.sampled_from([24, 30, 200])),
        "caching": draw(st.booleans()),
        "replicas": draw(st.integers(1, 3)),
        "router": draw(st.sampled_from(["round-robin", "least-loaded", "prefix-affinity"])),
        "settling": draw(st.sampled_from([0, 3])),
        "waking": draw(st.booleans()),
    }
    return kinds[draw(st.sampled_from(sorted(kinds)))], config, options


@settings(max_examples=150, deadline=None)
@given(cases())
def test_jumping_changes_nothing(
    case: tuple[Callable[[], Workload], SchedulerConfig, dict[str, Any]],
) -> None:
    """Every time stamp to the last digit, every count of every step, every block."""
    make, config, options = case
    stepped, engines = fleet_run(make, config=config, jump=False, **options)
    jumped, others = fleet_run(make, config=config, jump=True, **options)
    assert steps_of(stepped.logs) == steps_of(jumped.logs)
    assert replace(stepped, logs=[]) == replace(jumped, logs=[])
    assert len(stepped.requests) + len(stepped.refused) == make().total
    for one, other in zip(engines, others):
        other.kv.check_integrity()
        assert one.kv.pool.free_in_order() == other.kv.pool.free_in_order()
        assert one.kv.pool.cached() == other.kv.pool.cached()
    event(f"steps {len(stepped.logs[0]) // 100}00")


def test_long_runs_are_jumped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast path is used at all: two requests decode alone for hundreds of steps."""
    executed: list[int] = []
    execute = SimulatedExecutor.execute

    def count(self: SimulatedExecutor, plan: StepPlan) -> StepResult:
        executed.append(plan.step)
        return execute(self, plan)

    monkeypatch.setattr(SimulatedExecutor, "execute", count)
    _, (replica,) = fleet_run(lambda: specs((0.0, 8, 300), (0.0, 8, 200)), num_blocks=400)
    assert len(replica.log) == 300
    assert executed == [0]


def test_an_interruption_in_the_middle_of_a_line_is_forgotten() -> None:
    """Ctrl-C comes between any two operations; columns of unequal length could not be reported."""
    _, (replica,) = fleet_run(lambda: specs((0.0, 8, 40), (0.0, 8, 30)), num_blocks=40)
    whole, log = steps_of([replica.log]), replica.log
    log.start.append(9.0)
    log.drop_unfinished()
    assert steps_of([log]) == whole
    log.start.append(9.0)
    log.end.append(9.1)
    log.drop_unfinished()
    assert steps_of([log]) == whole


def test_virtual_time_is_the_sum_of_durations_and_waits() -> None:
    result, (replica,) = fleet_run(lambda: specs((0.0, 8, 3), (100.0, 8, 2)), num_blocks=40)
    log = replica.log
    assert log.start[3] == 100.0
    assert math.isclose(
        result.requests[0].finish, sum(e - s for s, e in zip(log.start[:3], log.end[:3]))
    )
    assert result.requests[1].ttft < 0.02
