"""What the simulator expects where ``prefill_apart`` measures: gaps of answers beside long prompts.

    python -m benchmarks.failover.predicted_gaps MODEL

Calibrates an engine with one core, as each of the two workers has one; takes how many answers and
prompts there were, and when these came, from the record of ``prefill_apart``. Writes
benchmarks/results/predicted_gaps.json and .md.
"""

from __future__ import annotations

import csv
import json
import os
import shlex
import subprocess
import sys
import tempfile
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any

import cyclopts

from benchmarks.environment import OtherPrograms, environment, environment_text, write_record
from benchmarks.failover.prefill_apart import ANSWER_TOKENS, LEAD_SECONDS, RESULTS
from twostroke.simulator.deployment.fleet_options import FleetOptions
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.simulator.scenario import Scenario
from twostroke.simulator.simulate import simulate
from twostroke.simulator.workloads.options import SimulatedWorkloadOptions

POOL = "gpu=cpu,replicas=1"
# By the name that the record has for each way.
FLEETS = {
    "workers, both": FleetOptions(),
    "workers, prefill and decode": FleetOptions(prefill=POOL, decode=POOL, transfer_bandwidth=1.0),
}
PROMPT, CHAT_PROMPT, PROMPT_OUTPUT = 7900, 16, 8


def main(model: str, *, chats: int = 4, rounds: int = 1, out: Path = RESULTS) -> None:
    """Calibrate, simulate and record.

    Args:
        model: The folder that was measured.
        chats: Streams that read answers, as there.
        rounds: Of the calibration.
        out: Folder of both records.
    """
    others = OtherPrograms()
    measured = json.loads((out / "prefill_apart.json").read_text("utf-8"))["ways"]
    rows: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="twostroke-gaps-") as name:
        coefficients, trace = Path(name, "cpu.toml"), Path(name, "trace.csv")
        words = ["calibrate", model, "--rounds", f"{rounds}", "--output", str(coefficients)]
        subprocess.run(
            [sys.executable, "-m", "twostroke", *words],
            check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for way, fleet in FLEETS.items():
            write_trace(trace, measured[way], chats)
            rows[way] = predict(model, coefficients, trace, fleet)
    lines = [
        "| two engines | worst gap, ms | predicted | TTFT of long, s | predicted |",
        "|---|--:|--:|--:|--:|",
    ]
    for way, row in rows.items():
        seen = measured[way]
        lines.append(
            f"| {way} | {1e3 * seen['worst']:.0f} | {1e3 * row['worst']:.0f} |"
            f" {median(seen['ttft']):.2f} | {row['ttft']:.2f} |"
        )
    print("\n".join(lines))
    command = shlex.join(["python", "-m", "benchmarks.failover.predicted_gaps", *sys.argv[1:]])
    where = environment(command, others.share())
    text = environment_text(where) + "\nMeasured: [prefill_apart.md](prefill_apart.md).\n\n"
    record: dict[str, Any] = {"environment": where, "predicted": rows}
    title = "Answers while long prompts arrive: predicted"
    write_record(out / "predicted_gaps", title, text + "\n".join(lines) + "\n", record)


def write_trace(path: Path, seen: dict[str, Any], chats: int) -> None:
    """Prompts when they came, each once the one before had its second token; answers all along."""
    lasts = [sum(times) for times in zip(seen["ttft"], seen["second_token"], strict=True)]
    lasts = lasts[: seen["prompts"]]
    begins = list(accumulate(lasts, initial=LEAD_SECONDS))
    answer = ANSWER_TOKENS * seen["gaps"][len(seen["gaps"]) // 2]
    arrivals = [(begin, PROMPT, PROMPT_OUTPUT) for begin in begins[:-1]]
    arrivals += [
        (turn * answer + chat * answer / chats, CHAT_PROMPT, ANSWER_TOKENS)
        for turn in range(int(begins[-1] / answer) + 1)
        for chat in range(chats)
    ]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["arrived_at", "num_prefill_tokens", "num_decode_tokens"])
        writer.writerows(sorted(arrivals))


def predict(model: str, coefficients: Path, trace: Path, fleet: FleetOptions) -> dict[str, float]:
    """Seconds: the longest gap of an answer, and the median first token of the long prompts."""
    run = simulate(
        Scenario(
            deployment=DeploymentOptions(
                model=model,
                gpu="cpu",
                efficiencies=str(coefficients),
                replicas=1 if fleet.prefill else 2,
                router="least-loaded",
                max_model_len=PROMPT + 160,
            ),
            workload=SimulatedWorkloadOptions(workload="trace", trace_path=trace),
            fleet=fleet,
        ),
        jump=False,
    )
    columns = run.columns
    gaps = [*columns.duration[columns.gaps > 0], *columns.other_gaps]
    long = [each.ttft for each in run.result.requests if each.prompt_tokens == PROMPT]
    return {"worst": float(max(gaps)), "ttft": median(long)}


if __name__ == "__main__":
    cyclopts.run(main)
