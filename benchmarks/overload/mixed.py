"""Long prompts among chats: a tuned token budget beside fixed ones.

    python -m benchmarks.overload.mixed --model 10m              # simulated
    python -m benchmarks.overload.mixed --model 10m --live       # a real server, twice a mix

The tuned budget has a TPOT target. Of the fixed ones the best is that with the lowest mean TTFT of
long prompts among those whose P99 of ITL is within the target; if none is, the one with the lowest
P99 of ITL. The tuned one is as good if it keeps the target, and no fixed one that keeps it has a
lower TTFT.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cyclopts

from benchmarks.environment import OtherPrograms, environment, environment_text, write_record
from benchmarks.make_checkpoint import SIZES
from benchmarks.make_checkpoint import main as make_checkpoint
from benchmarks.overload.mixes import LONG_PROMPT, MIXES, Mix, write_mix
from benchmarks.overload.simulated import RESULTS, model_folder
from benchmarks.server import running_server
from twostroke.core.config import SchedulerOptions
from twostroke.observability.latency import LatencyDistribution
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.simulator.scenario import Scenario
from twostroke.simulator.simulate import simulate
from twostroke.simulator.workloads.options import SimulatedWorkloadOptions

FIXED = (256, 512, 1024, 2048)
TUNED = "tuned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One mix under one budget; seconds."""

    mix: str
    budget: str
    itl_p99: float
    ttft_chats: float
    ttft_long: float
    failed: int = 0


def main(
    *,
    model: str = "10m",
    tpot_target: float = 0.05,
    seconds: float = 120.0,
    live: bool = False,
    gpu: str = "cpu",
    seed: int = 0,
    out: Path = RESULTS,
) -> int:
    """Run three mixes under each budget, print the table, and record it.

    Args:
        model: An embedded model, or 10m or 350m for a random checkpoint of that size.
        tpot_target: Of the tuned budget, in seconds.
        seconds: For how long requests arrive.
        live: Against a real server rather than the simulator.
        gpu: Simulated hardware.
        seed: Of the arrivals.
        out: Folder for the record.

    Returns:
        0 if the tuned budget is as good as the best fixed one on each mix, within 2 %.
    """
    others = OtherPrograms()
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="twostroke-mixed-") as name:
        folder = Path(name)
        served = model
        if live and model in SIZES:
            served = str(folder / model)
            make_checkpoint(model, served)
        for mix in MIXES:
            trace = folder / "mix.csv"
            write_mix(mix, seconds, trace, seed)
            for budget in (*map(str, FIXED), TUNED):
                config = _config(budget, tpot_target)
                if live:
                    outcomes.append(_live(mix, budget, config, served, trace, folder))
                else:
                    outcomes.append(_simulated(mix, budget, config, model, gpu, trace, folder))
                print(outcomes[-1], file=sys.stderr, flush=True)
    kind = "live" if live else "simulated"
    flag = " --live" if live else ""
    command = (
        f"python -m benchmarks.overload.mixed --model {model} --seconds {seconds:g}"
        f" --tpot-target {tpot_target:g}{flag}"
    )
    record = {
        "model": model,
        "kind": kind,
        "tpot_target": tpot_target,
        "seconds": seconds,
        "mixes": [asdict(mix) for mix in MIXES],
        "outcomes": [asdict(outcome) for outcome in outcomes],
        "environment": environment(command, others.share()),
    }
    text, worse = _text(record, outcomes, tpot_target)
    print(text)
    write_record(out / f"mixed_{kind}_{model}", f"Long prompts among chats, {kind}", text, record)
    return 1 if worse else 0


def _config(budget: str, tpot_target: float) -> SchedulerOptions:
    if budget == TUNED:
        return SchedulerOptions(max_num_batched_tokens=max(FIXED), tpot_target=tpot_target)
    return SchedulerOptions(max_num_batched_tokens=int(budget))


def _simulated(
    mix: Mix,
    budget: str,
    config: SchedulerOptions,
    model: str,
    gpu: str,
    trace: Path,
    folder: Path,
) -> Outcome:
    run = simulate(
        Scenario(
            deployment=DeploymentOptions(model=model_folder(model, folder), gpu=gpu),
            workload=SimulatedWorkloadOptions(workload="trace", trace_path=trace),
            scheduler=config,
        )
    )
    requests = run.result.requests
    return Outcome(
        mix=mix.name,
        budget=budget,
        itl_p99=run.summary.latencies["itl"].percentiles[99],
        ttft_chats=_mean([r.ttft for r in requests if r.prompt_tokens < LONG_PROMPT]),
        ttft_long=_mean([r.ttft for r in requests if r.prompt_tokens == LONG_PROMPT]),
        failed=run.summary.refused,
    )


def _live(
    mix: Mix, budget: str, config: SchedulerOptions, served: str, trace: Path, folder: Path
) -> Outcome:
    flags = ["--max-num-batched-tokens", str(config.max_num_batched_tokens)]
    if config.tpot_target is not None:
        flags += ["--tpot-target", f"{config.tpot_target}s"]
    path = folder / "run.json"
    with running_server(served, folder / "server.log", *flags) as server:
        command = [sys.executable, "-m", "twostroke", "bench", "serve", "--base-url", server.url]
        command += ["--dataset-name", "trace", "--trace-path", str(trace), "--ignore-eos"]
        command += ["--num-warmups", "3", "--output-json", str(path)]
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
    run: Mapping[str, Any] = json.loads(path.read_text())
    rows = [row for row in zip(run["input_lens"], run["ttfts"], run["errors"]) if row[2] is None]
    return Outcome(
        mix=mix.name,
        budget=budget,
        itl_p99=run["p99_itl_ms"] / 1000,
        ttft_chats=_mean([ttft for length, ttft, _ in rows if length < LONG_PROMPT]),
        ttft_long=_mean([ttft for length, ttft, _ in rows if length >= LONG_PROMPT]),
        failed=run["failed"],
    )


def _mean(values: list[float]) -> float:
    return LatencyDistribution.of(values).mean


def _text(record: Mapping[str, Any], outcomes: list[Outcome], target: float) -> tuple[str, int]:
    """The table, and on how many mixes a fixed budget is better."""
    lines = [
        f"Model {record['model']}, {record['kind']}; arrivals for {record['seconds']:g} s; TPOT"
        f" target {1000 * target:g} ms. Milliseconds:",
        "",
        "| mix | budget | ITL P99 | TTFT of chats, mean | TTFT of 8,000 tokens, mean | |",
        "|---" * 6 + "|",
    ]
    worse = 0
    for mix in MIXES:
        rows = [outcome for outcome in outcomes if outcome.mix == mix.name]
        fixed = [row for row in rows if row.budget != TUNED]
        within = [row for row in fixed if row.itl_p99 <= target]
        if within:
            best = min(within, key=lambda row: row.ttft_long)
        else:
            best = min(fixed, key=lambda row: row.itl_p99)
        tuned = next(row for row in rows if row.budget == TUNED)
        keeps = tuned.itl_p99 <= 1.02 * target
        as_good = keeps and (not within or tuned.ttft_long <= 1.02 * best.ttft_long)
        worse += not as_good
        for row in rows:
            mark = "best fixed" if row is best else ""
            if row is tuned:
                mark = "as good or better" if as_good else "**worse**"
            lines.append(
                f"| {mix.name} | {row.budget} | {1000 * row.itl_p99:.1f} |"
                f" {1000 * row.ttft_chats:.0f} | {1000 * row.ttft_long:.0f} | {mark} |"
            )
    return "\n".join([*lines, "", environment_text(record["environment"])]), worse


if __name__ == "__main__":
    cyclopts.run(main)
