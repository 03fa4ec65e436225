"""Plans for this machine, starts what the plan prints, and drives it: predicted against measured.

    python -m benchmarks.planner.this_machine pilot 350m=FOLDER [--rounds 1]

For each model: ``twostroke calibrate`` measures short steps, ``twostroke plan`` answers from them,
the command that it prints is run as it is, and ``twostroke bench serve`` sends the traffic that was
planned for. Some minutes for each. Writes benchmarks/results/planner_this_machine.md.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from benchmarks.environment import (
    ROOT,
    OtherPrograms,
    environment,
    environment_text,
    write_record,
)
from benchmarks.server import running_server
from twostroke.observability.latency import percentile, time_per_output_token

RECORD = ROOT / "benchmarks" / "results" / "planner_this_machine"
COMMAND = "python -m benchmarks.planner.this_machine"
# As in the planner's simulations: requests that fill the engine, and those while it drains.
RAMP, DRAIN = 0.25, 0.1
SEED = 7
FIGURES = ("ttft_p50", "ttft_p95", "tpot_p50", "tpot_p95", "e2e_p95", "output_throughput")


@dataclass(frozen=True, slots=True)
class PlannedTraffic:
    """What is planned for, and sent.

    Attributes:
        users: Requests under way at all times; else ``rate`` come in a second.
        requests: How many are sent.
        ttft: Target in seconds of the 95th percentile; ``tpot`` likewise.
    """

    name: str
    input: int
    output: int
    ttft: float
    tpot: float
    requests: int
    users: int | None = None
    rate: float | None = None

    def plan_flags(self) -> list[str]:
        """Flags of ``twostroke plan``; all lengths are equal."""
        volume = ["--rate", f"{self.rate}"] if self.users is None else ["--users", f"{self.users}"]
        lengths = ["--input", f"{self.input}", "--input-p95", f"{self.input}"]
        lengths += ["--output", f"{self.output}", "--output-p95", f"{self.output}"]
        return [*volume, *lengths, "--ttft", f"p95={self.ttft}", "--tpot", f"p95={self.tpot}"]

    def bench_flags(self) -> list[str]:
        """Flags of ``twostroke bench serve``."""
        flags = ["--num-prompts", f"{self.requests}", "--random-input-len", f"{self.input}"]
        flags += ["--random-output-len", f"{self.output}", "--ignore-eos", "--seed", f"{SEED}"]
        if self.users is not None:
            return [*flags, "--max-concurrency", f"{self.users}"]
        return [*flags, "--request-rate", f"{self.rate}"]


# Targets that a machine keeps which others load as well: what is compared is not the choice.
TRAFFICS: dict[str, tuple[PlannedTraffic, ...]] = {
    "pilot": (
        PlannedTraffic("8 users", 200, 100, ttft=8.0, tpot=0.4, requests=160, users=8),
        PlannedTraffic("1 request/s", 200, 100, ttft=4.0, tpot=0.3, requests=80, rate=1.0),
    ),
    "350m": (
        PlannedTraffic("4 users", 100, 20, ttft=40.0, tpot=3.0, requests=24, users=4),
        PlannedTraffic("0.1 requests/s", 100, 20, ttft=30.0, tpot=2.0, requests=16, rate=0.1),
    ),
}


class Sent(NamedTuple):
    """One request as its client saw it; times in seconds, ``start`` since the run's."""

    start: float
    ttft: float
    e2el: float
    output_len: int
    error: str | None


@dataclass(frozen=True, slots=True)
class PlanRun:
    """One plan and what came of it.

    Attributes:
        plan: The best, as ``--json`` has it.
        command: What the plan said to start.
        measured: Figures of the steady part, by the plan's names.
        failed: Requests without an answer.
    """

    model: str
    traffic: PlannedTraffic
    plan: Mapping[str, Any]
    command: str
    measured: Mapping[str, float]
    failed: int
    others_share: float | None


def main() -> None:
    """Run all, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", help="pilot, or NAME=FOLDER of a checkpoint")
    parser.add_argument("--rounds", type=int, default=1, help="of the calibration")
    options = parser.parse_args()
    runs: list[PlanRun] = []
    others = OtherPrograms()
    with TemporaryDirectory(prefix="twostroke-") as folder:
        for text in options.models:
            name, _, path = text.partition("=")
            runs += run_model(name, path or name, options.rounds, Path(folder))
    where = environment(f"{COMMAND} {' '.join(sys.argv[1:])}", others.share())
    record = {"environment": where, "runs": [as_fields(run) for run in runs]}
    text = report(runs) + environment_text(where)
    write_record(RECORD, "Plans for this machine: predicted and measured", text, record)
    print(text)


def run_model(name: str, model: str, rounds: int, folder: Path) -> Iterator[PlanRun]:
    """Calibrate, then plan, start and drive for each traffic."""
    coefficients = folder / f"{name}.toml"
    words = ["calibrate", model, "--rounds", f"{rounds}", "--output", str(coefficients)]
    call(words)
    for traffic in TRAFFICS[name]:
        flags = ["--gpus", "cpu", "--at-hand", "cpu=1", "--efficiencies", str(coefficients)]
        flags += ["--kv-cache-dtype", "auto", *traffic.plan_flags(), "--json"]
        answer = json.loads(call(["plan", model, *flags]))
        (command,) = answer["commands"]
        _, _, served, *serve_flags = shlex.split(command)
        result = folder / "bench.json"
        others = OtherPrograms()
        with running_server(served, folder / "server.log", *serve_flags) as server:
            words = ["bench", "serve", "--base-url", server.url, *traffic.bench_flags()]
            call([*words, "--output-json", str(result)])
        run = json.loads(result.read_text("utf-8"))
        arrays = [run[name] for name in ("start_times", "ttfts", "e2els", "output_lens", "errors")]
        sent = [Sent(*values) for values in zip(*arrays, strict=True)]
        records = [each for each in sent if not each.error]
        yield PlanRun(
            name,
            traffic,
            answer["plans"][0],
            shlex.join(["twostroke", "serve", name, *serve_flags]),
            figures(records, closed=traffic.users is not None),
            len(sent) - len(records),
            others.share(),
        )


def call(words: Sequence[str]) -> str:
    """Run a command of twostroke; its stdout. Raises CalledProcessError."""
    done = subprocess.run(
        [sys.executable, "-m", "twostroke", *words], stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def figures(records: Sequence[Sent], *, closed: bool) -> dict[str, float]:
    """Of requests that came when the server was full, and before a closed loop drains.

    Throughput is that between the first and the last arrival of these.
    """
    in_order = sorted(records, key=lambda each: each.start)
    end = len(in_order) - int(DRAIN * len(in_order)) if closed else len(in_order)
    chosen = in_order[int(RAMP * len(in_order)) : end]
    values = {
        "ttft": sorted(each.ttft for each in chosen),
        "tpot": sorted(
            time_per_output_token(each.ttft, each.e2el, each.output_len) for each in chosen
        ),
        "e2e": sorted(each.e2el for each in chosen),
    }
    result = {
        f"{name}_p{percent}": percentile(times, percent)
        for name, times in values.items()
        for percent in (50, 95)
    }
    seconds = chosen[-1].start - chosen[0].start
    tokens = fmean(each.output_len for each in chosen)
    return result | {"output_throughput": (len(chosen) - 1) * tokens / seconds}


def as_fields(run: PlanRun) -> dict[str, Any]:
    """A run as plain values."""
    return {
        "model": run.model,
        "traffic": run.traffic.name,
        "command": run.command,
        "predicted": {name: run.plan[name] for name in FIGURES},
        "intervals": {name: run.plan.get(f"{name}_interval") for name in FIGURES},
        "measured": {name: run.measured[name] for name in FIGURES},
        "failed": run.failed,
        "others_cpu_share": run.others_share,
    }


def report(runs: Sequence[PlanRun]) -> str:
    """The page."""
    errors = sorted(
        abs(run.plan[name] / run.measured[name] - 1) for run in runs for name in FIGURES
    )
    lines = [
        "Each plan is of `twostroke plan MODEL --gpus cpu --at-hand cpu=1 --efficiencies FILE`,"
        " with the",
        "coefficients that `twostroke calibrate` measured just before. The server is the command"
        " that the",
        "plan prints, the traffic what was planned for, sent over HTTP by `twostroke bench serve`."
        " The",
        f"first {RAMP:.0%} of requests only fill the server; of a closed loop the last {DRAIN:.0%}"
        " drain it.",
        f"Error: predicted over measured, less 1; the median size is"
        f" {errors[len(errors) // 2]:.1%} of {len(errors)} figures.",
        "",
    ]
    for run in runs:
        traffic, shares = run.traffic, run.others_share
        beside = "an unknown part" if shares is None else f"{shares:.0%}"
        lines += [
            f"## {run.model}, {traffic.name}",
            "",
            f"Prompts of {traffic.input} tokens, answers of {traffic.output}; targets TTFT P95"
            f" {traffic.ttft:g} s, TPOT P95",
            f"{1e3 * traffic.tpot:g} ms. {traffic.requests} requests, {run.failed} failed. Others"
            f" took {beside} of the CPU time meanwhile.",
            "",
            "```sh",
            *wrapped(run.command),
            "```",
            "",
            "| figure | predicted | interval | measured | error |",
            "|---|---|---|---|---|",
            *(_row(run, name) for name in FIGURES),
            "",
        ]
    return "\n".join(lines)


def wrapped(command: str) -> list[str]:
    """A command over lines that fit a page."""
    lines: list[str] = []
    for word in shlex.split(command):
        if lines and len(lines[-1]) + len(word) < 90:
            lines[-1] += f" {word}"
        else:
            lines.append(f"  {word}" if lines else word)
    return [line if line is lines[-1] else f"{line} \\" for line in lines]


def _row(run: PlanRun, name: str) -> str:
    predicted, measured = run.plan[name], run.measured[name]
    ends = run.plan.get(f"{name}_interval")
    is_rate = name == "output_throughput"
    title = "output tokens/s" if is_rate else f"{name.replace('_p', ' P').upper()}, ms"
    values = [predicted, *(ends or ()), measured]
    shown = [f"{each:,.1f}" if is_rate else f"{1e3 * each:,.1f}" for each in values]
    interval = f"{shown[1]} to {shown[2]}" if ends else ""
    return f"| {title} | {shown[0]} | {interval} | {shown[-1]} | {predicted / measured - 1:+.1%} |"


if __name__ == "__main__":
    main()
