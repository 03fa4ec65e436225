"""Asks the planner what measured servers have answered; writes benchmarks/results/planner.md.

    python -m benchmarks.planner

Ten minutes of one core. Skips, and says so, where the public measurements are absent.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.environment import ROOT, environment, environment_text, write_record
from benchmarks.planner.measured_choices import (
    TOLERANCE,
    Choice,
    Prediction,
    choose,
    predict,
    questions,
)
from benchmarks.simulator.data import DATA, present
from benchmarks.simulator.efficiency_file import as_toml, stack_table
from benchmarks.simulator.servers.judge_servers import fit_all
from benchmarks.simulator.servers.measured import ServingRow, dense_rows, expert_rows
from benchmarks.simulator.servers.stacks import BACKENDS, Closed, stacks_without
from twostroke.core.errors import InsufficientMemoryError
from twostroke.simulator.cost.efficiencies import load_efficiencies
from twostroke.simulator.cost.hardware_sheet import load_hardware

RECORD = ROOT / "benchmarks" / "results" / "planner"
COMMAND = "python -m benchmarks.planner"
TARGET = 0.95
SHOWN_MISSES = 25
# Longer answers take most of the time, and are few rows.
LONGEST_ANSWER = 1024
Predictions = Mapping[ServingRow, Prediction]


def main() -> None:
    """Predict every row by coefficients that have not seen its model, then ask and judge."""
    if not present():
        sys.exit(f"skipped: no measurements at {DATA}")
    rows = [
        row
        for row in (*dense_rows(), *expert_rows())
        if not row.is_burst and row.output <= LONGEST_ANSWER
    ]
    formulas, simulated = predict_all(rows)
    rows = [row for row in rows if row in formulas]
    asked, edges = list(questions(rows)), list(questions(rows, on_the_edge=True))
    alone = [each for each in asked if each.ttft is None]
    judged = {
        "simulations": [choose(each, simulated) for each in asked],
        "simulations, TPOT alone": [choose(each, simulated) for each in alone],
        "formulas": [choose(each, formulas) for each in asked],
        "simulations, targets at measured values": [choose(e, simulated) for e in edges],
        "formulas, targets at measured values": [choose(e, formulas) for e in edges],
    }
    where = environment(COMMAND, None)
    text = report(rows, simulated, judged) + environment_text(where)
    record = {
        "environment": where,
        "kinds": {name: Counter(map(kind, choices)) for name, choices in judged.items()},
        "misses": as_fields([each for each in judged["simulations"] if not each.is_right]),
    }
    write_record(RECORD, "The planner's choices on measured servers", text, record)
    print(text)


def predict_all(
    rows: Sequence[ServingRow],
) -> tuple[dict[ServingRow, Prediction], dict[ServingRow, Prediction]]:
    """Formulas and simulations of the rows whose model fits, by coefficients fitted without it."""
    kernels = {name: load_efficiencies("h100-sxm", stack=name) for name in BACKENDS}
    closed = Closed(load_hardware("h100-sxm"), kernels)
    without, of_all = stacks_without(closed, dense_rows()), fit_all()
    formulas, simulated = {}, {}
    with TemporaryDirectory(prefix="twostroke-") as folder:
        paths: dict[tuple[str, str], Path] = {}
        for number, row in enumerate(rows):
            key = row.backend, row.model
            if key not in paths:
                stacks = of_all if row.has_experts else without[row.model]
                paths[key] = Path(folder) / f"{len(paths)}.toml"
                paths[key].write_text(as_toml(stack_table(stacks[row.backend])), "utf-8")
            try:
                formulas[row], simulated[row] = predict(row, paths[key])
            except InsufficientMemoryError:
                continue
            if number % 50 == 0:
                print(f"{number} of {len(rows)} servers", file=sys.stderr)
    return formulas, simulated


def report(
    rows: Sequence[ServingRow], predictions: Predictions, judged: Mapping[str, Sequence[Choice]]
) -> str:
    """The page: shares by where the target is judged, by model, and the misses."""
    lines = [
        f"{len(rows)} measured servers on H100: none of the bursts of SGLang, since a plan is for",
        f"traffic that stays, and none with answers of more than {LONGEST_ANSWER:,} tokens.",
        f"{len(judged['simulations']):,} questions. Right: the real cost is at most"
        f" {TOLERANCE:.0%} above the best",
        f"measured one, and the real latency as little above the target. Wanted: {TARGET:.0%}.",
        "",
        "| chosen by | right | too dear | target missed | nothing chosen |",
        "|---|---|---|---|---|",
    ]
    for name, choices in judged.items():
        counts = Counter(kind(choice) for choice in choices)
        shares = [f"{counts[each] / len(choices):.1%}" for each in KINDS]
        lines.append(f"| {name} | {' | '.join(shares)} |")
    middle = judged["simulations"]
    lines += ["", "By simulations, by stack and model:", ""]
    lines += ["| servers | questions | right | too dear | target missed | nothing | TPOT | rate |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    of_servers: dict[str, list[ServingRow]] = defaultdict(list)
    for row in rows:
        of_servers[servers(row)].append(row)
    groups: dict[str, list[Choice]] = defaultdict(list)
    for choice in middle:
        groups[servers(choice.best)].append(choice)
    for name, group in groups.items():
        counts = Counter(kind(choice) for choice in group)
        cells = " | ".join(f"{counts[each]}" for each in KINDS)
        pairs = [(row, predictions[row]) for row in of_servers[name]]
        tpot = median(each.tpot / row.tpot for row, each in pairs)
        rate = median(each.rate * row.seconds / row.concurrency for row, each in pairs)
        lines.append(f"| {name} | {len(group)} | {cells} | {tpot:.2f} | {rate:.2f} |")
    lines += ["", "TPOT and rate: medians of predicted over measured."]
    overshoots = [choice.overshoot for choice in middle if kind(choice) == "target missed"]
    excesses = [choice.excess for choice in middle if kind(choice) == "too dear"]
    devices = fmean(c.chosen is not None and c.chosen.ranks == c.best.ranks for c in middle)
    lines += [
        f"The number of devices is the best one's in {devices:.1%}. A target that is missed is"
        f" missed by {median(overshoots):.0%}",
        f"in the median, and what is too dear by {median(excesses):.0%}: the next server that was"
        " measured has half or",
        "twice the requests at once. TTFT is what is missed most: measured servers that are full",
        "have one that the cost model [is far from](../../docs/validation/servers.md).",
    ]
    wrong = sorted((c for c in middle if not c.is_right), key=lambda c: -min(c.excess, 1e9))
    lines += ["", f"The {min(SHOWN_MISSES, len(wrong))} dearest of {len(wrong)} misses:", ""]
    lines += [f"- {described(choice)}" for choice in wrong[:SHOWN_MISSES]]
    return "\n".join(lines) + "\n\n"


def servers(row: ServingRow) -> str:
    """Stack, model and format."""
    return f"{row.backend} {row.model} {row.weights}"


KINDS = ("right", "too dear", "target missed", "nothing chosen")


def kind(choice: Choice) -> str:
    """Which of ``KINDS`` a choice is."""
    if choice.is_right:
        return "right"
    if choice.chosen is None:
        return "nothing chosen"
    return "too dear" if choice.kept else "target missed"


def described(choice: Choice) -> str:
    """What was asked, chosen and best."""
    best = f"best {choice.best.ranks} x H100 for {choice.best.concurrency} at once"
    if choice.chosen is None:
        return f"{choice.question.name}\n  nothing chosen; {best}"
    chosen = choice.chosen
    really = f"really {1e3 * chosen.tpot:.1f} ms, TTFT {1e3 * chosen.ttft:.0f} ms"
    return (
        f"{choice.question.name}\n  chosen {chosen.ranks} x H100 for {chosen.concurrency}"
        f" ({really}),\n  {best}: {choice.excess:+.0%}"
    )


def as_fields(choices: Sequence[Choice]) -> list[dict[str, Any]]:
    """Choices as plain values."""
    return [
        {
            "question": choice.question.name,
            "chosen": None
            if choice.chosen is None
            else [choice.chosen.ranks, choice.chosen.concurrency],
            "best": [choice.best.ranks, choice.best.concurrency],
            "excess": None if choice.chosen is None else round(choice.excess, 4),
            "kind": kind(choice),
        }
        for choice in choices
    ]


if __name__ == "__main__":
    main()
