"""Judges pools of ``twostroke simulate``, and says where they pay.

    python -m benchmarks.simulator.disaggregated [--only judged|pays] [--sample N]

Writes docs/validation/disaggregated.md and its picture, from a record beside the other results.
Single-threaded, 8 minutes for what is judged and 5 for the rest; ``--only`` renews one part of
the record, ``--sample N`` takes each N-th row of both halves, which the page states. Where the
public measurements are absent it says so, and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from benchmarks.environment import ROOT
from benchmarks.simulator.data import DATA, present
from benchmarks.simulator.disaggregated.judge_pools import JudgedPools, judge_pools, results
from benchmarks.simulator.disaggregated.measured_pools import halves, num_rows, pool_rows
from benchmarks.simulator.disaggregated.where_it_pays import (
    DEVICES,
    MODEL,
    REQUESTS,
    TARGETS,
    payoffs,
    plot,
    table,
)
from benchmarks.simulator.environment import environment
from benchmarks.simulator.tables import figures_table

PAGE = ROOT / "docs" / "validation" / "disaggregated.md"
RECORD = ROOT / "benchmarks" / "results" / "disaggregated.json"
PAYS = """## Where it pays

The highest requests per second that are kept up with while nine of ten requests of {model}
meet {targets}, on {devices} simulated H100s ({requests} requests, or
as many more as that takes to see, as `twostroke simulate --find rate` has it): all replicas do
both (with 8,192 or 512 tokens a step, whichever is better), or prompts are computed apart (1:3 or
2:2, prefill:decode). In brackets: apart over together. Links are each device's, one way. All
prompts have one length, and nothing is cached.
"""
MEASURED = """# Validation of the simulator: prefill and decode apart

Written by `python -m benchmarks.simulator.disaggregated`; do not edit.
{environment}.

Each row is a real server on H100 with two pools, measured by others (AI Configurator's collection,
Apache-2.0; none of it is in this repository). Of {total} rows {kept} are distinct and say, or have
a source that says, how many replicas and clients there were: DeepSeek-R1 and V3 in fp8, replicas of
16 devices over two nodes (`benchmarks/simulator/disaggregated/measured_pools.py`). Each is run
again by `twostroke simulate --prefill ... --decode ...`.

Three numbers are fitted to every other configuration; the others are kept out:

| number | fitted |
|---|---|
| seconds by which a collective starts later between nodes | {network:.2g} |
| seconds from one replica to another, beside the bytes (`--transfer-latency`) | {latency:.2g} |
| probability that a draft is right (rows with drafts) | {acceptance:.2f} |

All else is what ships: kernels of H100, host times of other servers.
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("judged", "pays"))
    parser.add_argument("--sample", type=int, default=1, help="take each so many-th row")
    options = parser.parse_args()
    if options.sample < 1:
        parser.error("--sample must be 1 or more")
    if not present():
        print(f"skipped: no measurements at {DATA}", file=sys.stderr)
        return 0
    makers: dict[str, Callable[[], dict[str, Any]]] = {
        "pays": pays_part,
        "judged": partial(judged_part, options.sample),
    }
    for part, make in makers.items():
        if options.only in (None, part):
            made = make()
            RECORD.write_text(json.dumps({**_record(), part: made}, indent=1) + "\n", "utf-8")
    record = _record()
    if {"judged", "pays"} <= set(record):
        text = "\n".join([*record["judged"]["lines"], *record["pays"]["lines"], ""])
        PAGE.write_text(text, encoding="utf-8")
    return 0


def _record() -> dict[str, Any]:
    record: dict[str, Any] = json.loads(RECORD.read_text("utf-8")) if RECORD.is_file() else {}
    return record


def judged_part(step: int) -> dict[str, Any]:
    """Measured servers: what was fitted, figures, and lines of the page.

    Args:
        step: Each so many-th row counts.
    """
    fitted, judged = judge_pools(step)
    found = list(results(judged))
    introduction = MEASURED.format(
        environment=environment(), total=num_rows(), kept=len(pool_rows()), **asdict(fitted)
    )
    figures = [
        {"what": each.name, "rows": len(each.pairs), "median": each.value, "target": each.target}
        for each in found
        if each.pairs
    ]
    lines = [introduction, *_sampled(step), *figures_table(found), "", *each_row(judged)]
    return {
        "environment": environment(),
        "sample": step,
        "fitted": asdict(fitted),
        "results": figures,
        "lines": lines,
    }


def _sampled(step: int) -> list[str]:
    """Lines on which of the rows count; none if all do."""
    if step == 1:
        return []
    taken, whole = ([len(rows) for rows in halves(each)] for each in (step, 1))
    return [
        f"Of both halves each {step}th row in an order drawn at random counts (`--sample {step}`):"
        f" {taken[0]} of {whole[0]}\nare fitted to, {taken[1]} of {whole[1]} judged.\n"
    ]


def pays_part() -> dict[str, Any]:
    """Where it pays, with its picture."""
    found = payoffs()
    plot(found, PAGE.with_suffix(".png"))
    targets = " and ".join(f"{name.upper()} {limit:g} s" for name, limit in TARGETS.items())
    pays = PAYS.format(model=MODEL, devices=DEVICES, targets=targets, requests=REQUESTS)
    picture = ["", f"![Where it pays]({PAGE.stem}.png)"]
    return {
        "environment": environment(),
        "rates": [asdict(each) for each in found],
        "lines": [pays, *table(found), *picture],
    }


def each_row(judged: Sequence[JudgedPools]) -> list[str]:
    """The rows that were kept out, one by one; times in milliseconds, measured and simulated."""
    lines = [
        "Rows kept out, in milliseconds, measured and simulated:",
        "",
        "| stack | prompt, answer | clients | drafts | TTFT | | TPOT | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in judged:
        row, simulated = each.row, each.simulated
        cells = [row.backend, f"{row.input}, {row.output}", f"{row.concurrency}"]
        cells += ["yes" if row.drafts else "no"]
        cells += [f"{1e3 * seconds:.0f}" for seconds in (row.ttft, simulated.ttft)]
        cells += [f"{1e3 * seconds:.1f}" for seconds in (row.tpot, simulated.tpot)]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


if __name__ == "__main__":
    sys.exit(main())
