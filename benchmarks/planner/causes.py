"""Why a choice is not right: which server was mistaken, in what, and by how much."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from benchmarks.planner.measured_choices import EDGE, Choice, Prediction, real_cost
from benchmarks.simulator.servers.measured import FRONT_END, ServingRow

CauseName = Literal["edge", "client", "TTFT", "TPOT", "cost"]
TEXTS: dict[CauseName, str] = {
    "edge": f"a measured latency within {EDGE:.0%} of the target decides",
    "client": "TTFT of a server whose client or front end is full",
    "TTFT": "TTFT that the cost model is far from",
    "TPOT": "TPOT that the cost model is far from",
    "cost": "both keep the target; throughput puts the dearer first",
}


@dataclass(frozen=True, slots=True)
class MissCause:
    """The server whose prediction made a choice wrong.

    Attributes:
        predicted: Over measured, of what was mistaken.
    """

    name: CauseName
    row: ServingRow
    predicted: float


def find_cause(choice: Choice, predictions: Mapping[ServingRow, Prediction]) -> MissCause:
    """Why a choice is not right.

    A target that is missed was thought to be kept by the chosen server. Otherwise the best one was
    thought to miss it, or to cost more.
    """
    question, chosen = choice.question, choice.chosen
    missed = chosen is not None and not choice.kept
    row = chosen if missed and chosen is not None else choice.best
    prediction = predictions[row]
    if not missed and chosen is not None and question.keeps(prediction.tpot, prediction.ttft):
        expected = [each.ranks / predictions[each].rate for each in (chosen, row)]
        real = [real_cost(each) for each in (chosen, row)]
        return MissCause("cost", row, (expected[1] / expected[0]) / (real[1] / real[0]))
    # What is mistaken most: measured over its limit where missed, else predicted.
    values = [(row.tpot, prediction.tpot, question.tpot, False)]
    if question.ttft is not None:
        values.append((row.ttft, prediction.ttft, question.ttft, True))
    measured, predicted, limit, is_first = max(
        values, key=lambda each: (each[0] if missed else each[1]) / each[2]
    )
    name: CauseName = "TTFT" if is_first else "TPOT"
    if abs(measured / limit - 1) <= EDGE:
        name = "edge"
    elif is_first and row.output_rate > FRONT_END:
        name = "client"
    return MissCause(name, row, predicted / measured)
