"""Asks the planner what measured servers have answered; writes benchmarks/results/planner.md.

    python -m benchmarks.planner [--keep FILE]

Ten minutes of one core; with a file that has the predictions of a former run, a minute. Skips,
and says so, where the public measurements are absent.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from benchmarks.environment import ROOT, environment, environment_text, write_record
from benchmarks.planner.measured_choices import Question, choose, questions
from benchmarks.planner.page import as_fields, kind, report
from benchmarks.planner.predictions import (
    FORMULAS,
    MEASURED_WAY,
    PESSIMISTIC,
    SIMULATIONS,
    predict_all,
)
from benchmarks.simulator.data import DATA, present
from benchmarks.simulator.servers.measured import dense_rows, expert_rows

RECORD = ROOT / "benchmarks" / "results" / "planner"
COMMAND = "python -m benchmarks.planner"
# Longer answers take most of the time, and are few rows.
LONGEST_ANSWER = 1024


def main() -> None:
    """Predict every row by coefficients that have not seen its model, then ask and judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="a file for the predictions of this commit")
    kept = parser.parse_args().keep
    if not present():
        sys.exit(f"skipped: no measurements at {DATA}")
    rows = [
        row
        for row in (*dense_rows(), *expert_rows())
        if not row.is_burst and row.output <= LONGEST_ANSWER
    ]
    predictions = predict_all(rows, kept)
    rows = [row for row in rows if row in predictions[FORMULAS]]
    asked, edges = list(questions(rows)), list(questions(rows, on_the_edge=True))
    alone = [each for each in asked if each.ttft is None]
    sets = {
        "": asked,
        ", distinct questions": list(distinct_questions(asked)),
        ", clear questions": [each for each in asked if each.is_clear],
        ", TPOT alone": alone,
        ", TPOT alone, clear": [each for each in alone if each.is_clear],
        ", targets as measured": edges,
    }
    judged = {
        way: [choose(each, predictions[way]) for each in asked]
        for way in (SIMULATIONS, FORMULAS, PESSIMISTIC)
    }
    simulated = predictions[MEASURED_WAY]
    for name, questions_ in sets.items():
        judged[f"{MEASURED_WAY}{name}"] = [choose(each, simulated) for each in questions_]
    where = environment(COMMAND, None)
    text = report(rows, simulated, judged) + environment_text(where)
    record = {
        "environment": where,
        "kinds": {name: Counter(map(kind, choices)) for name, choices in judged.items()},
        "misses": as_fields([each for each in judged[MEASURED_WAY] if not each.is_right]),
    }
    write_record(RECORD, "The planner's choices on measured servers", text, record)
    print(text)


def distinct_questions(asked: Iterable[Question]) -> Iterable[Question]:
    """The first question of each set of servers that keep the target."""
    return {each.meeting: each for each in reversed(list(asked))}.values()


if __name__ == "__main__":
    main()
