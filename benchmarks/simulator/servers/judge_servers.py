"""Judges ``twostroke simulate`` by measured servers, by stack and regime.

Each row's stack was fitted to the rows of all other models; the row had no part in anything that
estimates it but the kernels of its device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.simulator.data import every_nth
from benchmarks.simulator.efficiency_file import as_toml, stack_table
from benchmarks.simulator.kernels import Pair, Result
from benchmarks.simulator.servers.measured import (
    ServingRow,
    dense_rows,
    expert_rows,
    waiting,
)
from benchmarks.simulator.servers.prefill_starts import (
    LAYER,
    LAYER_EXPERTS,
    halves,
    with_starts,
)
from benchmarks.simulator.servers.simulated import Simulated, simulate_rows
from benchmarks.simulator.servers.stacks import (
    BACKENDS,
    Closed,
    Stack,
    fit_stacks,
    stacks_without,
)
from twostroke.simulator.cost.efficiencies import load_efficiencies
from twostroke.simulator.cost.hardware_sheet import load_hardware

SPLIT = "each model's rows kept out of the fit of its stack; through `simulate`"
EXPERTS_SPLIT = (
    "every second configuration of servers with experts; the first half decided `layer_experts`"
    " alone, but `SPREAD` was read off all; through `simulate`"
)


@dataclass(frozen=True, slots=True)
class Judged:
    """A measured server, what ``simulate`` says of it, and its regime.

    ``is_free``: its requests wait for nothing but prefill, by measurement and by simulation.
    """

    row: ServingRow
    simulated: Simulated
    is_free: bool

    @property
    def tpot(self) -> Pair:
        return Pair(self.row.tpot, self.simulated.tpot)

    @property
    def ttft(self) -> Pair:
        return Pair(self.row.ttft, self.simulated.ttft)


def fit_all() -> dict[str, Stack]:
    """Stacks fitted to all dense models, and to half of those with experts; they ship."""
    fitted, _ = halves(expert_rows())
    dense = with_starts(fit_stacks(_closed(), dense_rows()), dense_rows(), LAYER)
    return with_starts(dense, fitted, LAYER_EXPERTS)


def rows_to_judge(step: int) -> tuple[list[ServingRow], list[ServingRow]]:
    """Dense rows and those with experts that are kept out: each ``step``-th of every server."""

    def server(row: ServingRow) -> object:
        return row.backend, row.model, row.weights

    _, experts = halves(expert_rows())
    return every_nth(dense_rows(), step, server), every_nth(experts, step, server)


def judged_rows(of_all: Mapping[str, Stack], step: int = 1) -> list[Judged]:
    """Rows that fit onto their devices, and were kept out.

    Args:
        of_all: ``fit_all``, for models with experts.
        step: Each so many-th row of every server is judged; all are fitted to.
    """
    dense = dense_rows()
    without = {
        model: with_starts(stacks, [row for row in dense if row.model != model], LAYER)
        for model, stacks in stacks_without(_closed(), dense).items()
    }
    judged_dense, experts = rows_to_judge(step)
    stacks = {row: without[row.model][row.backend] for row in judged_dense}
    stacks |= {row: of_all[row.backend] for row in experts}
    rows = [*judged_dense, *experts]
    coefficients = {row: as_toml(stack_table(stacks[row].as_measured(row))) for row in rows}
    waits = dict(zip(expert_rows(), waiting(expert_rows()))) | dict(zip(dense, waiting(dense)))
    found = [
        (row, simulated, waits[row])
        for row, simulated in zip(rows, simulate_rows(rows, coefficients))
    ]
    return [
        Judged(row, simulated, not waits and not simulated.full)
        for row, simulated, waits in found
        if simulated is not None
    ]


def _closed() -> Closed:
    kernels = {name: load_efficiencies("h100-sxm", stack=name) for name in BACKENDS}
    return Closed(load_hardware("h100-sxm"), kernels)


def results(judged: Sequence[Judged]) -> Iterator[Result]:
    """Lines of the report: TPOT over all rows, TTFT apart below saturation and above."""
    for has_experts, split, tpot_target, ttft_target in (
        (False, SPLIT, 0.08, 0.15),
        (True, EXPERTS_SPLIT, 0.12, 0.25),
    ):
        kind = "experts" if has_experts else "dense"
        rows = [each for each in judged if each.row.has_experts is has_experts]
        free = [each for each in rows if each.is_free]
        full = [each for each in rows if not each.is_free]
        for chosen, regime, target in (
            (rows, "", tpot_target),
            (free, ", below saturation", None),
            (full, ", saturated rows", None),
        ):
            name = f"TPOT, {kind}{regime}"
            yield _result(name, split, chosen, lambda each: each.tpot, "mean", target)
        name = f"TTFT, {kind}"
        yield _result(
            f"{name}, below saturation", split, free, lambda each: each.ttft, "median", ttft_target
        )
        yield _result(f"{name}, saturated rows", split, full, lambda each: each.ttft, "median")


# Share of the other models' rows between an interval's ends. Chosen so that of a model's rows 8 of
# 10 lie within: TPOT of models differs by more than TTFT, whose tails every model has.
SHARES = {"decode": 0.85, "prefill": 0.75}


def interval(judged: Sequence[Judged], *, has_experts: bool = False) -> dict[str, float]:
    """Ends of measured over simulated TPOT and TTFT of servers that wait for prefill only.

    Each row's model is held out.
    """
    free = [each for each in judged if each.is_free and each.row.has_experts is has_experts]
    ends = {}
    for kind, share in SHARES.items():
        pairs = [each.tpot if kind == "decode" else each.ttft for each in free]
        ratios = sorted(pair.measured / pair.estimated for pair in pairs)
        outside = int(len(ratios) * (1 - share) / 2)
        # An interval holds its estimate, even where all other rows lie on one side of it.
        ends[f"{kind}_low"] = min(1.0, ratios[outside])
        ends[f"{kind}_high"] = max(1.0, ratios[len(ratios) - 1 - outside])
    return ends


def coverage(judged: Sequence[Judged], *, has_experts: bool = False) -> dict[str, float]:
    """Share of rows whose measured time lies within the interval of rows that are kept apart.

    Those of the other models; of servers with experts, which serve two models whose first tokens
    err in opposite directions, every other configuration of both.
    """
    free = [each for each in judged if each.is_free and each.row.has_experts is has_experts]
    fitted = set(halves([each.row for each in free])[0])
    inside: dict[str, list[bool]] = {"TPOT": [], "TTFT": []}

    def part(each: Judged) -> str:
        return f"{each.row in fitted}" if has_experts else each.row.model

    for name in sorted({part(each) for each in free}):
        rest = [each for each in free if part(each) != name]
        if not rest:
            continue
        ends = interval(rest, has_experts=has_experts)
        for each in free:
            if part(each) == name:
                inside["TPOT"].append(_is_within(each.tpot, ends, "decode"))
                inside["TTFT"].append(_is_within(each.ttft, ends, "prefill"))
    return {name: sum(values) / len(values) for name, values in inside.items() if values}


def _is_within(pair: Pair, ends: Mapping[str, float], kind: str) -> bool:
    ratio = pair.measured / pair.estimated
    return ends[f"{kind}_low"] <= ratio <= ends[f"{kind}_high"]


def _result(
    name: str,
    split: str,
    judged: Sequence[Judged],
    times: Callable[[Judged], Pair],
    statistic: str,
    target: float | None = None,
) -> Result:
    parts: dict[str, list[Pair]] = {}
    for each in judged:
        part = f"{each.row.backend} {each.row.model} {each.row.weights}"
        parts.setdefault(part, []).append(times(each))
    pairs = [times(each) for each in judged]
    return Result(name, split, pairs, statistic, target, sorted(parts.items()))
