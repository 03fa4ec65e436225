"""The field's claims (``twostroke lab``), all of them, as a page with plots.

Live parts run on the claims' model, and those that memory decides also on one that no cache holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.claims.workbench import Workbench, memory_bound_model
from benchmarks.environment import environment_text, wrapped, write_record
from twostroke.lab.claim import Fact, FieldClaim, Observed
from twostroke.lab.experiment import Experiment, experiment_fields, run_experiment
from twostroke.lab.live import LiveBench
from twostroke.lab.registry import CLAIMS
from twostroke.lab.reports.plot import plot_svg
from twostroke.planner.reports.plots import standalone
from twostroke.startup import load_engine

NAME, TITLE = "field", "What is said of serving, tried"
# Claims on bytes that are read, and not long: a small model's weights stay in a processor's cache.
MEMORY_BOUND = ("decode-ceiling", "busy-and-slow")
# Share of the CPU time that other programs may have before live times mean little.
QUIET = 0.2
NOISY = (
    "Other programs had much of this machine meanwhile: of what was measured here, times say"
    " little."
)


@dataclass(frozen=True, slots=True)
class Tried:
    """A claim's experiment, and what a model that no cache holds did, where that was tried."""

    experiment: Experiment
    large: Observed | None = None
    large_name: str = ""


def try_claims(bench: Workbench, claims: Sequence[FieldClaim] = CLAIMS) -> list[Tried]:
    """Compute and observe each claim."""
    tried = []
    with ExitStack() as stack:
        large, name = "", ""
        if any(claim.name in MEMORY_BOUND for claim in claims):
            large, name = stack.enter_context(memory_bound_model(bench.checkpoint))
        for claim in claims:
            bench.say(f"the field's claims: {claim.name}")
            experiment = run_experiment(claim, LiveBench(bench.model, load_engine))
            experiment = replace(experiment, model=bench.name)
            if claim.name in MEMORY_BOUND:
                observed = claim.observe(LiveBench(large, load_engine))
                tried.append(Tried(experiment, observed, name))
            else:
                tried.append(Tried(experiment))
    return tried


def write_page(tried: Sequence[Tried], where: dict[str, Any], folder: Path) -> None:
    """``field.md`` to read, ``field.json`` with every figure, ``field/`` with the plots."""
    plots = folder / NAME
    plots.mkdir(parents=True, exist_ok=True)
    for each in tried:
        computed = each.experiment.computed
        path = plots / f"{each.experiment.claim.name}.svg"
        path.write_text(standalone(plot_svg(computed.plot)), encoding="utf-8")
    parts = [environment_text(where), _table(tried)]
    if (where["others_cpu_share"] or 0.0) > QUIET:
        parts.insert(1, f"{NOISY}\n")
    parts += [_section(each) for each in tried]
    record = {**where, "claims": [_fields(each) for each in tried]}
    write_record(folder / NAME, TITLE, "\n".join(parts), record)


def _fields(tried: Tried) -> dict[str, Any]:
    fields = experiment_fields(tried.experiment)
    if tried.large is not None:
        fields["live_large"] = {
            "model": tried.large_name,
            "facts": dict(tried.large.facts),
            "figures": dict(tried.large.figures),
        }
    return fields


def _table(tried: Sequence[Tried]) -> str:
    rows = ["| claim | verdict |", "|---|---|"]
    for each in tried:
        claim, verdict = each.experiment.claim, each.experiment.computed.verdict
        rows.append(f"| [{claim.name}](#{claim.name}) | {verdict.name} |")
    return "\n".join(rows) + "\n"


def _section(tried: Tried) -> str:
    claim, computed, observed = (
        tried.experiment.claim,
        tried.experiment.computed,
        tried.experiment.observed,
    )
    name, text = computed.verdict
    parts = [
        f"## {claim.name}",
        f"{claim.text} (Source: {claim.source}.)",
        f"**Verdict: {name}.** {text}",
        f"![plot]({NAME}/{claim.name}.svg)",
        f"Simulated: {computed.on}",
        _facts(computed.facts),
    ]
    if observed is not None:
        parts += [f"Measured with {tried.experiment.model}", _facts(observed.facts), observed.text]
    if tried.large is not None:
        parts += [f"Measured with {tried.large_name}", _facts(tried.large.facts)]
        parts.append(tried.large.text)
    return wrapped("\n\n".join(parts) + "\n")


def _facts(facts: Sequence[Fact]) -> str:
    return "\n".join(f"- {what}: {value}" for what, value in facts)
