"""Judges ``twostroke simulate`` by measured servers; writes docs/validation/servers.md.

    python -m benchmarks.simulator.servers [--fit] [--sample N]

Single-threaded, a quarter of an hour of one core, half of it for rows that are judged: ``--sample
N`` judges each N-th of every server, which the page states. ``--fit`` also writes the coefficients
of serving stacks and the intervals that ship. Skips, and says so, where the public measurements are
absent.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.environment import ROOT
from benchmarks.simulator.data import DATA, present
from benchmarks.simulator.efficiency_file import read, stack_table, write
from benchmarks.simulator.environment import environment
from benchmarks.simulator.fit import NVLINK, PUBLIC, SERVES, unseen_interval, write_default
from benchmarks.simulator.kernels import Result
from benchmarks.simulator.servers.judge_servers import (
    Judged,
    coverage,
    fit_all,
    interval,
    judged_rows,
    results,
    rows_to_judge,
)
from benchmarks.simulator.servers.stacks import Stack
from benchmarks.simulator.tables import by_model, figures_table
from twostroke.simulator.cost.hardware_sheet import load_hardware

PAGE = ROOT / "docs" / "validation" / "servers.md"
RECORD = ROOT / "benchmarks" / "results" / "servers.json"
OF_SERVERS = "public measurements of servers on H100 that were kept out of their fit"
INTRODUCTION = """# Validation of the simulator: whole servers

Written by `python -m benchmarks.simulator.servers`; do not edit.
{environment}.
Kernels: [kernels.md](kernels.md).

Each row is a real server on H100, measured by others: AI Configurator's own runs, and InferenceX's
that it collects (Apache-2.0; none of it is in this repository). Each is run again by the command
`twostroke simulate`, with the arrivals, lengths and token budget that it was measured with
(`benchmarks/simulator/servers/measured.py` says what is known of them, and from where). An error is
`|estimated / measured - 1|` of a mean over a server's requests.

What a serving stack adds to the kernels (host times, two factors, what starts a layer of a prefill)
is fitted to the rows of all other models; SGLang serves one model only, so it gets what the other
two stacks have. Kernels are those of H100. Of servers with experts, every second configuration
decides what a layer with experts adds to that; the others are judged.

**Saturated** is a row whose requests wait for something other than prefill: in the simulation for
a place in the batch or blocks, or because more than 8,000 output tokens a second are due, where
front end and client limit; or its measured TTFT is more than 1.25 times the least of the rows that
differ in output length only.

Left out: 30 rows of MiniMax-M2.5, and nine of gpt-oss with 512 clients, whose servers ran fewer
requests at once than the rows say. Qwen3-235B's experts are dealt out over the devices, as its rows
say; four rows of two by two are simulated as tensor parallel. Two rows that count took less time
than memory and arithmetic at the full rates of the data sheet need, so prompts were cached
(Qwen3-32B in fp8 under vLLM on one and two devices). SGLang's and TensorRT-LLM's rows are of 2025;
vLLM's of Qwen3-32B did not schedule ahead, as what ships does.
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fit", action="store_true", help="write the shipped files anew as well")
    parser.add_argument("--sample", type=int, default=1, help="judge each so many-th row")
    options = parser.parse_args()
    if options.sample < 1:
        parser.error("--sample must be 1 or more")
    if not present():
        print(f"skipped: no measurements at {DATA}", file=sys.stderr)
        return 0
    stacks = fit_all()
    judged = judged_rows(stacks, options.sample)
    if options.fit:
        write_servers(stacks, interval(judged), interval(judged, has_experts=True))
    write_report(judged, options.sample)
    return 0


def write_report(judged: Sequence[Judged], step: int) -> None:
    """The page and the record of what was judged."""
    judgements = list(results(judged))
    covered = coverage(judged)
    of_experts = coverage(judged, has_experts=True)
    covered |= {f"{name} of models with experts": share for name, share in of_experts.items()}
    PAGE.write_text(page(judgements, covered, _sampled(step)), encoding="utf-8")
    made = record(judgements, covered, step)
    RECORD.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


def write_servers(
    stacks: Mapping[str, Stack], ends: Mapping[str, float], of_experts: Mapping[str, float]
) -> None:
    """Replace the coefficients of serving stacks, and intervals; kernels stay as they are."""
    for name, stack in stacks.items():
        source = f"fitted to public measurements of {name} on H100"
        write(f"stack-{name}", source, stack_table(stack))
    write_default(stack_table(stacks["vllm"]))
    write_intervals(ends, of_experts)


def write_intervals(ends: Mapping[str, float], of_experts: Mapping[str, float]) -> None:
    """Replace the intervals of devices that were measured, and of others."""
    for device in NVLINK:
        source = f"fitted to {PUBLIC} on {load_hardware(device).title}"
        there = read(device)
        of_servers = dict.fromkeys(("interval", "interval_experts"), OF_SERVERS)
        tables = {
            "interval": ends,
            "interval_experts": of_experts,
            "sources": {**there.get("sources", {}), **of_servers},
        }
        write(device, source, {**there, **tables}, SERVES[device])
    wide = {name: unseen_interval(each) for name, each in (("", ends), ("_experts", of_experts))}
    write_default({f"interval{name}": each for name, each in wide.items()})


def _sampled(step: int) -> str:
    """A paragraph on which of the rows were judged; empty if all were."""
    if step == 1:
        return ""
    judged, kept_out = ([len(rows) for rows in rows_to_judge(each)] for each in (step, 1))
    return (
        f"Of every server, each {step}th row in an order drawn at random is judged: {judged[0]} of"
        f" {kept_out[0]}\ndense ones, {judged[1]} of {kept_out[1]} with experts that were kept out"
        f" (`--sample {step}`). All were fitted to.\n"
    )


def page(judgements: Sequence[Result], covered: Mapping[str, float], sample: str) -> str:
    """The report as Markdown; ``sample`` says which of the rows were judged."""
    shares = "\n".join(f"- {name}: {share:.0%}" for name, share in covered.items())
    interval_of = (
        "## The interval\n\nIt should hold 8 of 10. Taken from the other models' rows below"
        f" saturation, it holds of a model's\nrows:\n\n{shares}\n\nHow many of the other models'"
        " rows it takes (85 % for TPOT, 75 % for TTFT) was chosen on these rows.\nOf models with"
        " experts: from every other configuration of both models.\n"
    )
    return "\n".join(
        [
            INTRODUCTION.format(environment=environment()),
            *([sample] if sample else []),
            *figures_table(judgements),
            "",
            interval_of,
            *by_model(judgements),
        ]
    )


def record(judgements: Sequence[Result], covered: Mapping[str, float], step: int) -> dict[str, Any]:
    """The report as plain values."""
    lines = [
        {
            "what": each.name,
            "kept out": each.split,
            "rows": len(each.pairs),
            each.statistic: each.value,
            "target": each.target,
        }
        for each in judgements
    ]
    about = {"environment": environment(), "sample": step}
    return {**about, "results": lines, "coverage": dict(covered)}


if __name__ == "__main__":
    sys.exit(main())
