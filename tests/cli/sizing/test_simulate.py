"""Protects: ``twostroke simulate`` writes reports to stdout, mistakes as a line and a hint."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from twostroke.cli.main import run
from twostroke.observability.fleet_file import read_fleet_file
from twostroke.observability.recorder import read_jsonl
from twostroke.simulator.fleet.fleet import Fleet
from twostroke.simulator.fleet.result import FleetResult

FEW = ["--num-requests", "20", "--rate", "10"]


def runs_of_page(path: Path) -> list[dict[str, Any]]:
    """The runs that a page of ``--output-html`` holds."""
    data = re.search('type="application/json"[^>]*>(.*?)</script>', path.read_text())
    assert data is not None
    runs: list[dict[str, Any]] = json.loads(data[1])["runs"]
    return runs


def test_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {name: tmp_path / f"out.{name}" for name in ("json", "html", "csv")}
    flags = [text for name, path in files.items() for text in (f"--output-{name}", str(path))]
    flags += ["--metrics", str(tmp_path / "metrics"), "--slo", "ttft=0.5,tpot=0.05"]
    assert run(["simulate", "llama-3.1-8b", "--gpu", "h100", *FEW, *flags]) == 0
    captured = capsys.readouterr()
    for words in (
        "Completed requests",
        "goodput",
        "TTFT",
        "TPOT",
        "ITL",
        "MFU",
        "Cost per million tokens",
    ):
        assert words in captured.out
    assert captured.err == ""
    (report,) = json.loads(files["json"].read_text())["runs"]
    assert (report["completed"], report["setting"]["tp"], report["hardware"]["name"]) == (
        20,
        1,
        "h100-sxm",
    )
    assert runs_of_page(files["html"]) == [report]
    assert len(files["csv"].read_text().splitlines()) == 21
    assert "vllm:time_to_first_token_seconds_count" in (tmp_path / "metrics").read_text()


@pytest.mark.parametrize(
    "flags",
    [
        ["--speculative-tokens", "4"],
        ["--speculation", "suffix"],
        ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}'],
        ["--speculation", "draft", "--speculative-model", "llama-3.2-1b"],
        ["--speculative-model", "llama-3.2-1b", "--speculative-tokens", "4"],
        ["--speculation", "early-exit"],
        ["--speculation", "medusa"],
        ["--speculation", "mtp"],
    ],
)
def test_speculation_as_in_serve(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    """Where memory decides and drafts come true, requests are sooner done, whichever method."""
    seconds = []
    for more in ([], flags):
        capsys.readouterr()
        path = tmp_path / "out.json"
        few = ["--num-requests", "4", "--rate", "1", "--acceptance", "0.9"]
        assert run(["simulate", "llama-3.1-8b", *few, *more, "--output-json", str(path)]) == 0
        (report,) = json.loads(path.read_text())["runs"]
        assert report["completed"] == 4
        seconds.append(report["mean_tpot_ms"])
        assert ("tokens_per_pass" in report) == bool(more)
        assert ("Tokens a pass" in capsys.readouterr().out) == bool(more)
    assert seconds[1] < 0.8 * seconds[0]
    drafted = report["accepted_drafts"] + report["rejected_drafts"]
    assert report["draft_acceptance"] == report["accepted_drafts"] / drafted > 0.4
    assert report["tokens_per_pass"] > 1.5


def test_equal_runs_write_equal_metrics(tmp_path: Path) -> None:
    """Again, and step by step: they hold no time of day, and sums do not depend on grouping."""
    texts = []
    flags = [*FEW, "--target", "ttft=0.01", "--target", "kv=p50:0.01", "--target", "queue=p50:1"]
    for number, more in enumerate(([], [], ["--no-jump"])):
        path = tmp_path / str(number)
        assert run(["simulate", *flags, "--metrics", str(path), *more]) == 0
        texts.append(path.read_text())
    assert texts[0] == texts[1] == texts[2] and "vllm:iteration_tokens_total_sum" in texts[0]


@pytest.mark.parametrize("more", [[], ["--no-jump"]])
def test_targets_on_virtual_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    """They count what the report's own table of requests says."""
    table, metrics = tmp_path / "requests.csv", tmp_path / "metrics"
    command = ["simulate", "llama-3.1-8b", "--gpu", "h100", *FEW, *more]
    assert run([*command, "--output-csv", str(table)]) == 0
    with table.open() as file:
        requests = list(csv.DictReader(file))
    limits = {
        name: sorted(round(float(request[name]), 6) for request in requests)[12]
        for name in ("ttft", "tpot")
    }
    targets = [text for name in limits for text in ("--target", f"{name}=p50:{limits[name]:f}")]
    assert run([*command, *targets, "--target", "queue=1", "--metrics", str(metrics)]) == 0
    assert "last 5 minutes" in capsys.readouterr().out
    for name, limit in limits.items():
        misses = sum(float(request[name]) > limit for request in requests)
        pattern = rf'twostroke:target_misses_total{{.*target="{name}_p50"}} {misses}\.0'
        assert 0 < misses < 20 and re.search(pattern, metrics.read_text())


def test_a_sweep_beside_an_earlier_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "before.json"
    assert run(["simulate", *FEW, "--output-json", str(path)]) == 0
    capsys.readouterr()
    assert run(["simulate", *FEW, "--sweep", "tp=1,2", "--compare", str(path)]) == 0
    out = capsys.readouterr().out
    assert all(label in out for label in ("before", "tp=1", "tp=2", "TTFT p99"))


def test_earlier_reports_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / "one.json", tmp_path / "two.json"]
    for path, tp in zip(paths, "12"):
        assert run(["simulate", *FEW, "--tp", tp, "--output-json", str(path)]) == 0
    capsys.readouterr()
    page = tmp_path / "page.html"
    reports = [text for path in paths for text in ("--compare", str(path))]
    assert run(["simulate", "--compare-only", *reports, "--output-html", str(page)]) == 0
    out = capsys.readouterr().out
    assert (
        "one" in out and "two" in out and "this run" not in out and "Completed requests" not in out
    )
    assert [run["label"] for run in runs_of_page(page)] == ["one", "two"]


def test_two_invocations_write_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        jump = "--jump" if name == "a" else "--no-jump"
        files = ["--output-json", f"{tmp_path}/{name}", "--output-html", f"{tmp_path}/{name}.html"]
        assert run(["simulate", *FEW, "--interval", jump, *files]) == 0
    for ending in ("", ".html"):
        assert (tmp_path / f"a{ending}").read_bytes() == (tmp_path / f"b{ending}").read_bytes()


def test_notes_of_a_sweep_name_their_runs(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--sweep", "gpu=h100,l4,h200", "--sweep", "rate=5,9", "--input-len", "99"]
    assert run(["simulate", "llama-3.1-8b", "--num-requests", "9", *flags]) == 0
    full, idle = sorted(capsys.readouterr().err.splitlines())
    assert full.startswith("note: gpu=l4, rate=5 and 1 more: the KV cache holds")
    assert (
        idle == "note: nothing depends on --input-len with --workload sharegpt-like --arrivals auto"
    )


def test_no_request_waits(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "--num-requests", "2", "--rate", "0.01"]) == 0
    assert "none waits" in capsys.readouterr().out


def test_step_events_are_recorded_and_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "steps.jsonl"
    assert run(["simulate", *FEW, "--record", str(path)]) == 0
    events = list(read_jsonl(path))
    assert sum(len(event.finished) for event in events) == 20
    first = capsys.readouterr().out
    assert run(["simulate", "--workload", "trace", "--trace-path", str(path)]) == 0
    assert capsys.readouterr().out == first


def test_a_recording_does_not_take_the_place_of_what_is_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "steps.jsonl"
    assert run(["simulate", *FEW, "--record", str(path)]) == 0
    before = path.read_bytes()
    assert (
        run(["simulate", "--workload", "trace", "--trace-path", str(path), "--record", str(path)])
        == 1
    )
    assert "--record would overwrite --trace-path" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_every_replica_is_recorded_in_a_file_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their steps have the same numbers; a second simulation takes the place of the first."""
    paths = [tmp_path / f"steps.{number}.jsonl" for number in range(3)]
    for _ in range(2):
        assert (
            run(["simulate", *FEW, "--replicas", "3", "--record", str(tmp_path / "steps.jsonl")])
            == 0
        )
    events = [list(read_jsonl(path)) for path in paths]
    finished = [{done.request_id for event in of for done in event.finished} for of in events]
    assert all(finished) and len(set().union(*finished)) == sum(map(len, finished)) == 20
    assert [event.step for event in events[2]] == sorted({event.step for event in events[2]})
    names = [path.name for path in paths]
    assert sorted(path.name for path in tmp_path.iterdir()) == [*names, "steps.fleet.jsonl"]
    head, routes = read_fleet_file(tmp_path / "steps.fleet.jsonl")
    assert (head.router, head.recordings) == ("round-robin", names)
    for number, requests in enumerate(finished):
        assert {route.request_id for route in routes if route.replica == number} == requests
    assert "note" not in capsys.readouterr().err


def test_times_of_another_processor_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On stderr, not in the report, which is the same wherever it is made."""
    file = tmp_path / "own.toml"
    file.write_text('[measured]\nmachine = "an abacus"\ndevice = "cpu"\n')
    flags = ["simulate", "pilot", "--gpu", "cpu", *FEW, "--efficiencies", str(file)]
    assert run([*flags, "--output-json", str(tmp_path / "out.json")]) == 0
    assert (
        "note: these times are of another machine, an abacus; this one is"
        in capsys.readouterr().err
    )
    (report,) = json.loads((tmp_path / "out.json").read_text())["runs"]
    assert any("measured on an abacus" in note for note in report["notes"])
    assert not any("this one is" in note for note in report["notes"])


def test_ctrl_c_prints_what_there_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_fleet = Fleet.run
    runs: list[Fleet] = []

    def stopped(self: Fleet, progress: Callable[[int], None]) -> FleetResult:
        runs.append(self)
        ended = 0

        def count(number: int) -> None:
            nonlocal ended
            ended += number
            if ended >= 10:  # half of the requests, with the others under way
                raise KeyboardInterrupt
            progress(number)

        return run_fleet(self, count)

    monkeypatch.setattr(Fleet, "run", stopped)
    assert run(["simulate", *FEW, "--sweep", "rate=100,200"]) == 0
    captured = capsys.readouterr()
    assert len(runs) == 1 and "interrupted" in captured.err
    assert "Unfinished requests" in captured.out


def test_ctrl_c_between_two_runs_keeps_the_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_fleet = Fleet.run
    runs: list[Fleet] = []

    def once(self: Fleet, progress: Callable[[int], None]) -> FleetResult:
        runs.append(self)
        if len(runs) > 1:
            raise KeyboardInterrupt  # as if before the loop that expects it
        return run_fleet(self, progress)

    monkeypatch.setattr(Fleet, "run", once)
    assert run(["simulate", *FEW, "--sweep", "rate=1,2"]) == 0
    captured = capsys.readouterr()
    assert "interrupted" in captured.err and "Completed requests" in captured.out
    assert run(["simulate", *FEW]) == 130


def test_a_sweep_goes_on_without_what_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "llama-3.1-70b", *FEW, "--sweep", "tp=1,4"]) == 0
    captured = capsys.readouterr()
    assert "note: tp=1 is left out" in captured.err
    assert "4 x NVIDIA H100" in captured.out and "KV cache for" in captured.out


@pytest.mark.parametrize(
    ("flags", "message", "hint"),
    [
        (["--gpu", "h10"], "unknown device 'h10'", "did you mean h100"),
        (["--model", "llama-3.1-70b"], "GB too much", "--tp 4"),
        (["--model", "nope"], "unknown model 'nope'", "config.json"),
        (["--tp", "3"], "32 attention heads", "divisor"),
        (["--find", "rate"], "--find rate needs --slo", "ttft=0.5"),
        (["--slo", "ttft=x"], "--slo", "in seconds"),
        (["--sweep", "foo=1"], "no flag 'foo'", "sweep any flag"),
        (["--workload", "mooncake-conv"], "mooncake-conv", "--trace-path"),
        (["--weight-dtype", "int3"], "int3", "known"),
        (["--output-json", "/nowhere/x.json"], "/nowhere", "--output-json"),
        (["--sweep", "tp=1,2", "--metrics", "x"], "--metrics is of one run", "leave out"),
        (["--sweep", "tp=1,2", "--target", "ttft=1"], "--target is of one run", "leave out"),
        (["--replicas", "2", "--target", "ttft=1"], "--target watches one replica", "--slo"),
        (["--target", "ttft=soon"], "--target ttft=soon", "ttft=p95:0.3"),
        (["--sweep", "workload=random,mooncake-conv"], "mooncake-conv", "--trace-path"),
        (
            ["--compare-only", "--compare", "x", "y"],
            "simulates nothing, and so not y",
            "--compare before each",
        ),
        (
            ["--model", "/nowhere/config.json"],
            "no file or folder '/nowhere/config.json'",
            "checkpoint",
        ),
        (
            ["--model", "tests"],
            "cannot read tests/config.json: No such file or directory",
            "checkpoint",
        ),
        (["--speculative-model", "llama-3.2-1b"], "needs --speculative-tokens", "give both"),
        (["--speculation", "draft"], "no draft model is known", "--speculative-model"),
        (
            ["--speculation", "ngram", "--speculative-model", "llama-3.2-1b"],
            "means nothing with method ngram",
            "leave it out",
        ),
        (["--gpu", "zzz"], "unknown device 'zzz'", "rtx-pro-6000. A path"),
        (["--output-json", "tests"], "tests is a folder", "--output-json a file"),
        (["--record", "tests"], "tests is a folder", "--record a file"),
        (["--max-model-len", "99999999999"], "--max-model-len must be from 2", "16,777,216"),
        (
            ["--efficiencies", "no.toml"],
            "cannot read no.toml: No such file or directory",
            "calibrate",
        ),
        (
            ["--model", "granite-4.0-h-small", "--max-num-seqs", "256"],
            "the states of 256 requests",
            "--max-num-seqs",
        ),
        (["--model", "falcon-h1-7b", "--tp", "8"], "12 attention heads", "divisor"),
        (["--compare-only"], "--compare-only needs --compare", "a.json"),
        (
            ["--compare-only", "--compare", "x", "--record", "y"],
            "--record needs a simulation",
            "leave out",
        ),
    ],
)
def test_mistakes_are_one_line_and_a_hint(
    flags: list[str],
    message: str,
    hint: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TWOSTROKE_TRACES", raising=False)
    assert run(["simulate", *flags]) in (1, 2)
    captured = capsys.readouterr()
    assert captured.out == ""
    line, blank, hint_line = captured.err.splitlines()
    assert line.startswith("error: ") and message in line
    assert blank == ""
    assert hint_line.startswith("hint: ") and hint in hint_line
