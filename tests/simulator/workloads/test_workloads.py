"""Workloads: rates, shapes, lengths, traces and what they share."""

from __future__ import annotations

import json
import math
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.simulator.fleets import make_fleet, specs
from twostroke.core.errors import ConfigError
from twostroke.observability.recorder import Recorder
from twostroke.simulator.fleet.requests import block_keys
from twostroke.simulator.workloads.arrivals import ClosedLoop, burst_times, gamma_times, stretch
from twostroke.simulator.workloads.base import RequestSpec
from twostroke.simulator.workloads.make import make_workload
from twostroke.simulator.workloads.options import SimulatedWorkloadOptions
from twostroke.simulator.workloads.traces import read_specs


def made(**options: Any) -> list[RequestSpec]:
    return list(make_workload(SimulatedWorkloadOptions(**options)).workload.arrivals())


@pytest.mark.parametrize(
    "options", [{}, {"arrivals": "poisson"}, {"arrivals": "gamma", "burstiness": 0.3}]
)
def test_rates_are_kept(options: dict[str, Any]) -> None:
    times = [spec.arrival for spec in made(num_requests=4000, rate=5.0, **options)]
    gaps = [after - before for before, after in pairwise(times)]
    assert times[0] == 0.0
    assert statistics.fmean(gaps) == pytest.approx(0.2, rel=0.1)
    # The gamma distribution's squared coefficient of variation is one over its shape.
    variation = (statistics.pstdev(gaps) / statistics.fmean(gaps)) ** 2
    assert variation == pytest.approx(1 / options.get("burstiness", 1.0), rel=0.25)


def test_bursts_come_at_once() -> None:
    assert burst_times(5, 4.0, 2) == [0.0, 0.0, 0.5, 0.5, 1.0]


def test_stretching_keeps_the_pattern() -> None:
    times = stretch([10.0, 11.0, 15.0], 4.0)
    assert times == [0.0, 0.1, 0.5]
    assert stretch([3.0, 3.0], 4.0) == [0.0, 0.0]


def test_another_rate_leaves_the_lengths_and_the_seed_decides() -> None:
    def lengths(**options: Any) -> list[tuple[int, int]]:
        return [
            (spec.prompt_tokens, spec.output_tokens) for spec in made(num_requests=50, **options)
        ]

    assert lengths(rate=1.0) == lengths(rate=9.0) == lengths()
    assert lengths(seed=1) != lengths()
    assert made(num_requests=50, rate=2.0, seed=4) == made(num_requests=50, rate=2.0, seed=4)


def test_random_lengths_and_a_common_prefix() -> None:
    specs = made(
        workload="random",
        num_requests=200,
        input_len=100,
        output_len=20,
        range_ratio=0.5,
        prefix_len=32,
    )
    assert {spec.segments for spec in specs} == {((-1, 32),)}
    assert all(82 <= spec.prompt_tokens <= 182 and 10 <= spec.output_tokens <= 30 for spec in specs)


def test_block_keys_tell_shared_from_own() -> None:
    one = block_keys(RequestSpec(0, 0.0, 20, 12, ((5, 8), (6, 8))), 4, 0)
    two = block_keys(RequestSpec(1, 0.0, 20, 12, ((5, 8), (7, 8))), 4, 8)
    assert len(one) == len(two) == 8
    assert one[:2] == two[:2]
    assert not set(one[2:]) & set(two[2:])
    # A block counts to the segment in which it ends: the third holds tokens of both.
    assert (
        block_keys(RequestSpec(2, 0.0, 20, 0, ((5, 10), (6, 10))), 4, 16)[2:]
        == block_keys(RequestSpec(3, 0.0, 20, 0, ((6, 20),)), 4, 21)[2:]
    )


def test_block_keys_of_long_requests_go_on_as_they_began() -> None:
    """Keys of later blocks are computed, and no two of them may be equal."""
    keys = block_keys(RequestSpec(7, 0.0, 16 * 3000, 0, ((5, 16 * 2500),)), 16, 0)
    assert len(set(keys)) == len(keys) == 3000
    assert keys[:2040] == block_keys(RequestSpec(8, 0.0, 16 * 2040, 0, ((5, 16 * 2040),)), 16, 3000)


def test_a_closed_loop_starts_anew_with_each_simulation() -> None:
    loop = ClosedLoop(
        specs((0.0, 8, 4), (0.0, 9, 4), (0.0, 10, 4)).specs, concurrency=2, think_time=1.0
    )
    for _ in range(2):
        first = list(loop.arrivals())
        assert [spec.number for spec in first] == [0, 1]
        following = loop.after(first[0], 5.0)
        assert [spec.number for spec in following] == [2]
        assert following[0].arrival > 5.0
        assert loop.after(first[1], 6.0) == ()


def test_mooncake_hashes_become_shared_blocks(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 2000, "input_length": 1030, "output_length": 5, "hash_ids": [1, 2, 3]},
        {"timestamp": 1000, "input_length": 600, "output_length": 7, "hash_ids": [1, 9]},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    first, second = read_specs(path)
    assert (first.arrival, first.prompt_tokens, first.segments) == (0.0, 600, ((0, 512), (3, 88)))
    assert (second.arrival, second.segments) == (1.0, ((0, 512), (1, 512), (2, 6)))
    shared = [a == b for a, b in zip(block_keys(first, 16, 0), block_keys(second, 16, 40))]
    assert shared == [True] * 32 + [False] * 5


def test_equal_hashes_after_different_beginnings_are_not_shared(tmp_path: Path) -> None:
    """A trace may hash each block alone; equal hashes after different prefixes are not shared."""
    path = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": t, "input_length": 1024, "output_length": 1, "hash_ids": [t % 2, 7]}
        for t in range(3)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    first, other, again = (block_keys(spec, 16, 100 * spec.number) for spec in read_specs(path))
    assert not set(first) & set(other)
    assert first[:64] == again[:64]


def test_azure_rows_and_rates(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "arrived_at,num_prefill_tokens,num_decode_tokens\n5.0,10,3\n5.5,20,4\n7.0,30,5\n"
    )
    specs = made(workload="trace", trace_path=path)
    assert [(s.arrival, s.prompt_tokens, s.output_tokens) for s in specs] == [
        (0.0, 10, 3),
        (0.5, 20, 4),
        (2.0, 30, 5),
    ]
    assert [spec.arrival for spec in made(workload="trace", trace_path=path, rate=2.0)] == [
        0.0,
        0.25,
        1.0,
    ]
    assert [
        spec.arrival for spec in made(workload="azure-conv", trace_path=path, num_requests=1)
    ] == [0.0]
    poisson = made(workload="trace", trace_path=path, arrivals="poisson", rate=2.0)
    assert [spec.prompt_tokens for spec in poisson] == [10, 20, 30]
    assert [spec.arrival for spec in poisson] == gamma_times_of(3, 2.0)


def gamma_times_of(count: int, rate: float) -> list[float]:
    from random import Random

    return gamma_times(count, rate, 1.0, Random("0 gaps"))


def test_named_traces_are_found_in_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "azure_splitwise_code.csv").write_text(
        "arrived_at,num_prefill_tokens,num_decode_tokens\n0,10,3\n"
    )
    monkeypatch.setenv("TWOSTROKE_TRACES", str(tmp_path))
    assert [spec.prompt_tokens for spec in made(workload="azure-code")] == [10]
    with pytest.raises(ConfigError, match="mooncake-conv"):
        made(workload="mooncake-conv")


def test_azure_without_its_file_is_drawn_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TWOSTROKE_TRACES", raising=False)
    azure = make_workload(SimulatedWorkloadOptions(workload="azure-conv", num_requests=3000))
    drawn = list(azure.workload.arrivals())
    assert azure.note is not None and "drawn" in azure.note
    assert statistics.fmean(spec.prompt_tokens for spec in drawn) == pytest.approx(1155, rel=0.1)
    assert statistics.fmean(spec.output_tokens for spec in drawn) == pytest.approx(211, rel=0.1)
    assert drawn[-1].arrival == pytest.approx(3000 / 5.53, rel=0.1)


def test_a_recording_is_replayed(tmp_path: Path) -> None:
    """Arrivals, prompts and outputs of recorded step events come back; cached tokens are cached."""
    path = tmp_path / "steps.jsonl"
    recorder = Recorder(10, path)
    workload = specs((0.0, 30, 12), (0.05, 9, 1), (0.3, 50, 20))
    original = make_fleet(workload, num_blocks=12, block_size=8, observers=[recorder])[0].run()
    recorder.close()
    assert original.num_preemptions or any(
        request.scheduled > request.arrival for request in original.requests
    )
    replayed = read_specs(path)
    assert [(s.arrival, s.prompt_tokens, s.output_tokens) for s in replayed] == [
        (s.arrival, s.prompt_tokens, s.output_tokens) for s in workload.specs
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workload": "nope"}, "--workload"),
        ({"rate": 0.0}, "--rate"),
        ({"workload": "trace"}, "--trace-path"),
        ({"trace_path": Path("x")}, "--trace-path"),
        ({"arrivals": "poisson"}, "--rate"),
        ({"arrivals": "closed", "rate": 1.0}, "closed"),
        ({"arrivals": "recorded"}, "recorded"),
        ({"workload": "sessions", "arrivals": "closed"}, "sessions"),
        ({"range_ratio": 1.0}, "--range-ratio"),
        ({"range_ratio": math.nan}, "--range-ratio"),
        ({"rate": math.nan}, "--rate"),
        ({"rate": 1e-320}, "--rate"),  # the second request would never come
        ({"num_requests": 10**11}, "--num-requests"),
        ({"workload": "sessions", "turns": 10**12}, "--turns"),
        ({"input_len": 10**400}, "--input-len"),
        ({"burst_size": 10**400}, "--burst-size"),
        ({"burstiness": 1e308}, "--burstiness"),
        ({"think_time": math.inf}, "--think-time"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        SimulatedWorkloadOptions(**options)
    assert caught.value.hint


ROW = '{"timestamp": %s, "input_length": 5, "output_length": 5, "hash_ids": [%s]}\n'


def test_empty_lines_of_a_trace_say_nothing(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(ROW % (0, 7) + "\n" + ROW % (1000, 7) + "\n\n")
    assert [spec.arrival for spec in read_specs(path)] == [0.0, 1.0]


HEADER = "num_decode_tokens,arrived_at,other,num_prefill_tokens\n"


def test_lengths_and_times_of_a_csv_trace(tmp_path: Path) -> None:
    """Read by columns if plain, by rows if quoted; in order of time, as many as asked for."""
    path = tmp_path / "trace.csv"
    rows = ["3,9.5,x,12\n", "4,2.0,y,13\n", "5,9.5,z,14\n"]
    for quoted in (rows, [*rows[:2], '"5",9.5,"z, z",14\n']):
        path.write_text(HEADER + "".join(quoted))
        specs = [
            (spec.number, spec.arrival, spec.prompt_tokens, spec.output_tokens)
            for spec in read_specs(path)
        ]
        assert specs == [(0, 0.0, 13, 4), (1, 7.5, 12, 3), (2, 7.5, 14, 5)]
        assert read_specs(path, 2) == read_specs(path)[:2]


@pytest.mark.parametrize(
    "row", ["1e3,0,x,5", "1.0,0,x,5", "0,0,x,5", "3,inf,x,5", "3,0,x", "3,0,x,-1"]
)
def test_an_odd_row_of_a_csv_trace_is_named(row: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"{HEADER}3,1.0,x,4\n{row}\n")
    with pytest.raises(ConfigError, match="line 3"):
        read_specs(path)


@pytest.mark.parametrize(
    "text",
    [
        *("", '{"timestamp": "x"}\n', "a,b\n1,2\n", "\xff\xfe\n"),
        ROW % (0, 2**64 - 1),  # no 64-bit hash with a sign
        ROW % (-1e308, 1) + ROW % (1e308, 1),
        ROW % (0, 1) + '{"timestamp":',
        '{"a":' * 100_000,
    ],
    ids=lambda text: text[:40],
)
def test_a_broken_trace_is_one_clear_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match="trace"):
        read_specs(path)
    with pytest.raises(ConfigError, match="cannot read"):
        read_specs(tmp_path / "none")


def test_lengths_by_mean_and_tail() -> None:
    options = SimulatedWorkloadOptions(
        workload="random", num_requests=4000, input_len=500, input_p95=1500, output_len=10
    )
    lengths = sorted(spec.prompt_tokens for spec in make_workload(options).workload.arrivals())
    assert lengths[3800] == pytest.approx(1500, rel=0.1)
    assert sum(lengths) / 4000 == pytest.approx(500, rel=0.05)


@pytest.mark.parametrize(
    "changes", [{"input_p95": 100}, {"output_p95": 10_000}, {"input_p95": 2000, "range_ratio": 0.5}]
)
def test_tails_that_cannot_be_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="p95"):
        SimulatedWorkloadOptions(workload="random", **changes)
