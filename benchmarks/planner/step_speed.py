"""How long a step takes the cost model, cold and again; writes benchmarks/results/step_speed.md.

    python -m benchmarks.planner.step_speed

Some seconds of one core, for every public model. Cold is a step whose number of tokens none before
had, as a planner asks for them; again is one whose context alone is another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

import cyclopts

from benchmarks.environment import (
    ROOT,
    OtherPrograms,
    environment,
    environment_text,
    write_record,
)
from twostroke.model_spec.public_models import find_model, public_names
from twostroke.simulator.cost.configuration import Dtypes, Parallel
from twostroke.simulator.cost.cost_model import RooflineCostModel
from twostroke.simulator.cost.efficiencies import load_efficiencies
from twostroke.simulator.cost.hardware_sheet import load_hardware
from twostroke.timing.step_shape import StepShape

RECORD = ROOT / "benchmarks" / "results" / "step_speed"
COMMAND = "python -m benchmarks.planner.step_speed"
TARGET = 100e-6
BATCHES = range(2, 200)


def main() -> None:
    """Measure every model; the slowest first."""
    others = OtherPrograms()
    rows = sorted((measure(name) for name in public_names()), key=lambda row: -row["cold_us"])
    where = environment(COMMAND, others.share())
    text = as_text(rows) + "\n" + environment_text(where)
    write_record(RECORD, "How long the cost model takes", text, {**where, "models": rows})


def measure(name: str) -> dict[str, Any]:
    """Microseconds: to make the cost model, and the median step."""
    sheet = load_hardware("h100")
    efficiencies, model = load_efficiencies(sheet.name, link=sheet.link_kind), find_model(name)
    began = time.perf_counter()
    cost = RooflineCostModel(sheet, model, Parallel(), Dtypes(), efficiencies)
    made = time.perf_counter() - began
    return {
        "model": name,
        "made_us": round(1e6 * made, 1),
        "cold_us": _median_us(cost, (StepShape(n, 1000 * n, (), n) for n in BATCHES)),
        "again_us": _median_us(cost, (StepShape(n, 1100 * n, (), n) for n in BATCHES)),
        "prompt_us": _median_us(
            cost, (StepShape(n, 1000 * n, ((500 + 3 * n, 0),), n) for n in BATCHES)
        ),
    }


def _median_us(cost: RooflineCostModel, shapes: Iterable[StepShape]) -> float:
    return round(1e6 * median(_seconds(cost.step, shape) for shape in shapes), 1)


def _seconds(step: Callable[[StepShape], object], shape: StepShape) -> float:
    began = time.perf_counter()
    step(shape)
    return time.perf_counter() - began


def as_text(rows: list[dict[str, Any]]) -> str:
    """The table, and how many are too slow."""
    slow = sum(max(row["cold_us"], row["prompt_us"]) > 1e6 * TARGET for row in rows)
    return "\n".join(
        (
            "Estimates of steps on an H100, on one core: medians in microseconds. Cold: no step",
            "before had as many tokens; with a prompt: cold, a chunk beside; again: the context",
            "alone is another.",
            "",
            f"{len(rows)} models, {slow} of them above {1e6 * TARGET:.0f} us.",
            "",
            "| model | cold | with a prompt | again | making the model |",
            "|---|--:|--:|--:|--:|",
            *(
                f"| {row['model']} | {row['cold_us']} | {row['prompt_us']} | {row['again_us']} |"
                f" {row['made_us']:.0f} |"
                for row in rows
            ),
            "",
        )
    )


if __name__ == "__main__":
    cyclopts.run(main)
