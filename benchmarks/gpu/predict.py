"""What the simulator's cost model expects of an H200, written down before it is measured.

    python -m benchmarks.gpu.predict           # writes results/prediction-h200.json once
    python -m benchmarks.gpu.predict --check   # whether the file is as it was sealed

The seal is a digest of the rows with the date and the commit that made them: rows that are changed
later do not fit it. ``benchmarks.gpu.page`` shows what was measured since beside them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

from benchmarks.gpu.environment import environment
from twostroke.model_spec.public_models import find_model
from twostroke.simulator.cost.configuration import Dtypes
from twostroke.simulator.cost.shown_costs import ShownCosts, shown_costs
from twostroke.timing.step_shape import StepShape

FILE = Path(__file__).parent / "results" / "prediction-h200.json"
PROMPT, OUTPUT = 256, 48  # as ``benchmarks.gpu.speed`` runs them
BATCHES, LENGTHS = (1, 8, 64, 256), (512, 2048, 8192, 32768)
# Rows of the first were measured before they were predicted.
MODELS = {
    "8B bf16": ("llama-3.1-8b", "bf16"),
    "8B fp8": ("llama-3.1-8b", "fp8"),
    "30B-A3B bf16": ("qwen3-30b-a3b", "bf16"),
    "30B-A3B int8": ("qwen3-30b-a3b", "int8"),
    "Qwen3-Next 80B-A3B fp8": ("qwen3-next-80b-a3b", "fp8"),
}


def step_ms(costs: ShownCosts, shape: StepShape) -> dict[str, float]:
    model = costs._estimates
    assert model is not None, "the sheet of an H200 is there"
    made = model.step(shape)
    return {"ms": 1e3 * made.seconds, "low_ms": 1e3 * made.low, "high_ms": 1e3 * made.high}


def rows_of(name: str, model: str, weights: str) -> list[dict[str, Any]]:
    costs, rows = shown_costs(find_model(model), Dtypes(weights=weights), "h200"), []
    for batch in BATCHES:
        shape = StepShape(batch, batch * (PROMPT + OUTPUT // 2), (), batch)
        rows.append({"model": name, "step": f"decode {batch}", **step_ms(costs, shape)})
    for length in LENGTHS:
        shape = StepShape(0, 0, ((length, 0),), 1)
        rows.append({"model": name, "step": f"prefill {length}", **step_ms(costs, shape)})
    return rows


def seal_of(record: dict[str, Any]) -> str:
    sealed = {key: record[key] for key in ("date", "commit", "rows")}
    return hashlib.sha256(json.dumps(sealed, sort_keys=True).encode()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    if args.check:
        record = json.loads(FILE.read_text())
        if record["seal"] != seal_of(record):
            raise SystemExit("the prediction was changed after it was sealed")
        print("the prediction is as it was sealed on", record["date"][:10])
        return
    if FILE.exists():
        raise SystemExit(f"{FILE.name} is sealed; a new prediction needs a new name")
    rows = [row for name, model in MODELS.items() for row in rows_of(name, *model)]
    where = environment("cpu")
    record = {"hardware": "h200", "date": where["date"], "commit": where["commit"], "rows": rows}
    FILE.write_text(json.dumps({**record, "seal": seal_of(record)}, indent=1) + "\n")
    print(f"written: {FILE.name}, {len(rows)} rows, seal {seal_of(record)[:16]}")


if __name__ == "__main__":
    main()
