"""What the planner expects of measured servers, by coefficients that have not seen their model."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from benchmarks.planner.measured_choices import Prediction
from benchmarks.simulator.efficiency_file import as_toml, stack_table
from benchmarks.simulator.servers.judge_servers import fit_all
from benchmarks.simulator.servers.measured import ServingRow, dense_rows
from benchmarks.simulator.servers.stacks import BACKENDS, Closed, stacks_without
from twostroke.core.errors import InsufficientMemoryError
from twostroke.planner.engines import EngineBuilder, EngineChoice
from twostroke.planner.options import SearchOptions, TrafficOptions
from twostroke.planner.proof import DRAIN, run_replicas
from twostroke.planner.steady import closed_loop
from twostroke.planner.traffic import read_traffic
from twostroke.simulator.cost.efficiencies import load_efficiencies
from twostroke.simulator.cost.hardware_sheet import load_hardware
from twostroke.simulator.jumping.decode_curve import Bound

BLOCK = 16
# Requests of each client here, and where it was measured.
ROUNDS, MEASURED_ROUNDS = 4, 10
# Seconds from an answer to the next request: a server that is idle starts on the first of several,
# and the clients part.
PAUSE = 0.0005
FORMULAS, PESSIMISTIC = "formulas", "formulas, pessimistic end"
# Simulations of traffic that stays, and of the runs that were measured, their beginning included.
SIMULATIONS, MEASURED_WAY = "simulations", "as measured"
# Of each way to predict, by server.
Predictions = Mapping[str, Mapping[ServingRow, Prediction]]


def predict_all(rows: Sequence[ServingRow], kept: Path | None = None) -> Predictions:
    """By each way, the servers whose model fits.

    Args:
        kept: A file with predictions of this commit, a server in each line; what is missing is
            added.
    """
    known = _read(rows, kept)
    kernels = {name: load_efficiencies("h100-sxm", stack=name) for name in BACKENDS}
    closed = Closed(load_hardware("h100-sxm"), kernels)
    without, of_all = stacks_without(closed, dense_rows()), fit_all()
    with TemporaryDirectory(prefix="twostroke-") as folder:
        paths: dict[tuple[str, str], Path] = {}
        for number, row in enumerate(rows):
            if row in known:
                continue
            key = row.backend, row.model
            if key not in paths:
                stacks = of_all if row.has_experts else without[row.model]
                paths[key] = Path(folder) / f"{len(paths)}.toml"
                paths[key].write_text(as_toml(stack_table(stacks[row.backend])), "utf-8")
            try:
                known[row] = predict(row, paths[key])
            except InsufficientMemoryError:
                known[row] = {}
            if kept is not None:
                fields = {way: asdict(each) for way, each in known[row].items()}
                with kept.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([number, fields]) + "\n")
            if number % 50 == 0:
                print(f"{number} of {len(rows)} servers", file=sys.stderr)
    ways = (SIMULATIONS, MEASURED_WAY, FORMULAS, PESSIMISTIC)
    return {way: {row: known[row][way] for row in rows if known[row]} for way in ways}


def _read(rows: Sequence[ServingRow], kept: Path | None) -> dict[ServingRow, dict[str, Prediction]]:
    if kept is None or not kept.is_file():
        return {}
    lines = kept.read_text("utf-8").splitlines()
    return {
        rows[number]: {way: Prediction(**values) for way, values in fields.items()}
        for number, fields in map(json.loads, lines)
    }


def predict(row: ServingRow, coefficients: Path) -> dict[str, Prediction]:
    """What the formulas say at the middle and at the pessimistic end, and what simulations say.

    Raises InsufficientMemoryError if the model does not fit.
    """
    length = round(row.mean_share * row.input), round(row.mean_share * row.output)
    traffic = read_traffic(
        TrafficOptions(
            users=row.concurrency,
            think_time=PAUSE,
            input=length[0],
            input_p95=length[0],
            output=length[1],
            output_p95=length[1],
        )
    )
    search = SearchOptions(efficiencies=str(coefficients), serving_stack=row.backend)
    longest = -(-(row.input + row.output) // BLOCK) * BLOCK
    builder = EngineBuilder(row.model, search, traffic.lengths, longest)
    engine = EngineChoice(
        gpu="h100-sxm",
        tp=row.ranks,
        weights=row.weights,
        kv_cache="bf16" if row.kv_format == "auto" else row.kv_format,
        seqs=max(256, row.concurrency),
        budget=row.budget,
    )
    curve, deployment = builder.curve(engine), builder.deployment(engine)
    limit = builder.most_running(deployment)
    curve.reach(limit)
    most = min(limit, float(curve.most))
    bounds: dict[str, Bound] = {FORMULAS: "seconds", PESSIMISTIC: "high"}
    result = {}
    for way, bound in bounds.items():
        state = closed_loop(curve, most, row.concurrency, PAUSE, bound)
        result[way] = Prediction(state.ttft.at(None), state.tpot.at(None), state.rate)
    requests = ROUNDS * row.concurrency
    run = run_replicas(builder, deployment, engine, traffic, 1, requests, 0, "seconds")
    in_order = sorted(run.requests, key=lambda request: request.arrival)
    begin, rest = in_order[: row.concurrency], in_order[row.concurrency :]
    rest = rest[: len(rest) - int(DRAIN * len(in_order))]
    steady = {
        name: fmean(getattr(request, name) for request in rest) for name in ("ttft", "tpot", "e2el")
    }
    result[SIMULATIONS] = Prediction(
        steady["ttft"], steady["tpot"], row.concurrency / steady["e2el"]
    )
    # Who measured had all rounds in their means: the first, when all prompts come at once, too.
    share = 1 / MEASURED_ROUNDS
    first = {name: fmean(getattr(request, name) for request in begin) for name in steady}
    whole = {name: share * first[name] + (1 - share) * steady[name] for name in steady}
    result[MEASURED_WAY] = Prediction(whole["ttft"], whole["tpot"], row.concurrency / whole["e2el"])
    return result
