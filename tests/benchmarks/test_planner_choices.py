"""Protects: a choice of the planner's is judged by what was measured, and a miss has its cause."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.planner.causes import find_cause
from benchmarks.planner.measured_choices import Prediction, Question, choose, questions
from benchmarks.planner.this_machine import Sent, figures, wrapped
from benchmarks.simulator.servers.measured import ServingRow


def server(concurrency: int, tpot: float, ttft: float = 0.1, output: int = 101) -> ServingRow:
    return ServingRow(
        backend="vllm",
        model="qwen3-32b",
        weights="bf16",
        ranks=1,
        input=1000,
        output=output,
        concurrency=concurrency,
        ttft=ttft,
        tpot=tpot,
    )


# Twice the requests take half as long again.
FEW, SOME, MANY = server(8, 0.010), server(16, 0.015), server(32, 0.022)


def predictions(**factors: float) -> dict[ServingRow, Prediction]:
    """As measured, but for the factors of TPOT."""
    result = {}
    for name, row in {"few": FEW, "some": SOME, "many": MANY}.items():
        tpot = row.tpot * factors.get(name, 1.0)
        seconds = row.ttft + tpot * (row.output - 1)
        result[row] = Prediction(row.ttft, tpot, row.concurrency / seconds)
    return result


def test_the_right_server_is_the_cheapest_that_keeps_the_target() -> None:
    choice = choose(Question((FEW, SOME, MANY), 0.018, None), predictions())
    assert choice.chosen is choice.best is SOME
    assert choice.is_right and choice.kept and choice.costs_little


@pytest.mark.parametrize(
    ("target", "factors", "cause", "row"),
    [
        (0.018, {"many": 0.7}, "TPOT", MANY),  # chosen, and misses by a fifth
        (0.0205, {"many": 0.9}, "edge", MANY),  # within a tenth of the target
        (0.018, {"some": 1.4}, "TPOT", SOME),  # too dear: the best seems to miss
        (0.016, {"some": 1.1}, "edge", SOME),
    ],
)
def test_misses_have_the_server_that_was_mistaken(
    target: float, factors: dict[str, float], cause: str, row: ServingRow
) -> None:
    question = Question((FEW, SOME, MANY), target, None)
    predicted = predictions(**factors)
    choice = choose(question, predicted)
    found = find_cause(choice, predicted)
    assert not choice.is_right
    assert (found.name, found.row) == (cause, row)
    assert found.predicted == pytest.approx(next(iter(factors.values())))


def test_first_tokens_of_a_full_client_are_told_apart() -> None:
    full = server(2000, 0.010, ttft=1.0)  # 100,000 output tokens a second
    slow = server(8, 0.010, ttft=1.0)
    for row, name in ((full, "client"), (slow, "TTFT")):
        predicted = predictions() | {row: Prediction(0.2, row.tpot, 1e5)}
        choice = choose(Question((FEW, SOME, row), 0.02, 0.5), predicted)
        assert choice.chosen is row and find_cause(choice, predicted).name == name


def test_throughput_may_put_the_dearer_first() -> None:
    predicted = predictions() | {FEW: Prediction(0.1, 0.010, 1000.0)}
    choice = choose(Question((FEW, SOME, MANY), 0.03, None), predicted)
    assert choice.chosen is FEW and find_cause(choice, predicted).name == "cost"


def test_clear_questions_have_no_server_near_the_target() -> None:
    rows = (FEW, SOME, MANY, server(64, 0.035))
    assert Question(rows, 0.018, None).is_clear and not Question(rows, 0.016, None).is_clear
    assert not Question(rows, 0.018, 0.105).is_clear
    asked = list(questions(rows))
    assert asked and all(0 < len(each.meeting) < len(rows) for each in asked)


def test_figures_are_of_the_steady_part() -> None:
    def sent(start: float, **changes: Any) -> Sent:
        usual: dict[str, Any] = {"ttft": 0.1, "e2el": 1.1, "output_len": 11, "error": None}
        return Sent(start, **(usual | changes))

    records = [sent(number / 2, ttft=9.0 if number < 10 else 0.1) for number in range(40)]
    result = figures(records, closed=False)
    assert result["ttft_p95"] == pytest.approx(0.1) and result["tpot_p50"] == pytest.approx(0.1)
    assert result["output_throughput"] == pytest.approx(22)
    assert len(figures(records, closed=True)) == len(result)


def test_long_commands_go_over_lines() -> None:
    lines = wrapped("twostroke serve model " + " ".join(f"--flag-{n} {n}" for n in range(20)))
    assert len(lines) > 1 and all(len(line) <= 100 for line in lines)
    assert all(line.endswith("\\") for line in lines[:-1]) and not lines[-1].endswith("\\")
