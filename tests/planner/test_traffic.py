"""Protects: traffic has the lengths and the volume that were asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from twostroke.core.errors import ConfigError
from twostroke.planner.options import SearchOptions, TrafficOptions
from twostroke.planner.traffic import read_traffic


def test_lengths_have_the_mean_and_the_tail() -> None:
    options = TrafficOptions(rate=3, input=1500, input_p95=4000, output=300, output_p95=300)
    lengths = read_traffic(options).lengths
    assert lengths.prompt == pytest.approx(1500, rel=0.03)
    assert lengths.prompt_at(95) == pytest.approx(4000, rel=0.05)
    assert lengths.outputs[0] == lengths.outputs[-1] == 300
    assert lengths.context == pytest.approx(lengths.prompt + 150, rel=0.01)


def test_what_is_guessed_is_said_and_fits_the_model() -> None:
    wide, narrow = (read_traffic(TrafficOptions(rate=3), longest) for longest in (131072, 4096))
    assert "--input-p95 2048" in wide.notes[0] and "--output-p95 512" in wide.notes[0]
    assert narrow.lengths.longest <= 4096 < wide.lengths.longest
    told = TrafficOptions(rate=3, input_p95=2000, output_p95=400)
    assert read_traffic(told).notes == ()


def test_lengths_are_those_of_a_public_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TWOSTROKE_TRACES", raising=False)
    traffic = read_traffic(TrafficOptions(users=10, lengths="azure-code"))
    # Patel et al.: long prompts, answers of 28 tokens on average.
    assert traffic.lengths.output == pytest.approx(28, rel=0.1) and traffic.users == 10
    assert traffic.lengths.prompt > 50 * traffic.lengths.output
    assert any("azure-code" in note for note in traffic.notes)


def test_a_shared_prefix_is_part_of_the_prompt() -> None:
    lengths = read_traffic(TrafficOptions(rate=3, input=1500, prefix=1000)).lengths
    assert lengths.prompt == pytest.approx(1500, rel=0.03)
    assert lengths.fresh == pytest.approx(500, rel=0.05) and lengths.cached == 1000
    assert lengths.prompts[0] > 1000


def test_growth_and_peak_multiply() -> None:
    by_rate = read_traffic(TrafficOptions(rate=3, peak=2, growth=0.5))
    by_users = read_traffic(TrafficOptions(users=10, peak=2, growth=0.5))
    assert by_rate.rate == 9 and by_users.users == 30
    assert "--peak 2" in by_rate.notes[-1]


def test_a_trace_brings_its_own_rate(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    rows = [f"{0.5 * number},{100 + number},{20 + number % 5}" for number in range(101)]
    path.write_text("\n".join(["arrived_at,num_prefill_tokens,num_decode_tokens", *rows]))
    traffic = read_traffic(TrafficOptions(trace_path=path))
    assert traffic.rate == pytest.approx(2.0) and traffic.lengths.prompt == 150
    assert read_traffic(TrafficOptions(trace_path=path, rate=7)).rate == 7
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n3,100,20\n3,200,20\n")
    burst = read_traffic(TrafficOptions(trace_path=path))
    assert burst.rate == 1 and burst.notes[-1].startswith("guessed: --rate 1")
    assert len(read_traffic(TrafficOptions(trace_path=path, rate=7)).notes) == 1


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "no traffic"),
        ({"rate": 1.0, "users": 1}, "both"),
        ({"rate": 0.0}, "--rate"),
        ({"users": 0}, "--users"),
        ({"rate": 1.0, "think_time": 3.0}, "--think-time"),
        ({"rate": 1.0, "prefix": 2000}, "--prefix"),
        ({"trace_path": Path("x"), "input": 5}, "those of --trace-path"),
        ({"rate": 1.0, "lengths": "azure-conv", "output": 5}, "those of --lengths"),
        ({"trace_path": Path("x"), "lengths": "azure-conv"}, "both"),
        ({"rate": float("nan")}, "--rate"),
    ],
)
def test_impossible_traffic_is_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        TrafficOptions(**values)
    assert error.value.hint


def test_a_tail_that_no_lengths_have_is_refused() -> None:
    for tail in (100, 9000):
        with pytest.raises(ConfigError, match="--input-p95"):
            read_traffic(TrafficOptions(rate=1.0, input=1000, input_p95=tail))


@pytest.mark.parametrize("values", [{"tp": "2,x"}, {"tp": ""}, {"gpus": ","}, {"drafts": "0"}])
def test_lists_of_the_search_are_checked(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="--"):
        SearchOptions(**values)
