"""From which acceptance on speculation pays: the rule of thumb says 50 %."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from benchmarks.claims.report import Claim
from benchmarks.claims.workbench import Workbench, memory_bound_model
from benchmarks.speculation.break_even import SYNTHETIC, Curve, measure_curves, shown
from benchmarks.speculation.rounds import engines


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Two depths, and rates close enough to interpolate between."""

    depths: tuple[int, ...] = (1, 4)
    rates: tuple[float, ...] = (0.0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9)
    output_len: int = 48


def measure(bench: Workbench, load: Workload | None = None) -> Claim:
    """On the claims' model, whose weights a cache may hold."""
    return _claim(bench, bench.model, bench.name, load or Workload())


def measure_memory_bound(bench: Workbench, load: Workload | None = None) -> Claim:
    """On a model that no cache holds."""
    with memory_bound_model(bench.checkpoint) as (model, name):
        return _claim(bench, model, name, load or Workload())


def _claim(bench: Workbench, model: str, name: str, load: Workload) -> Claim:
    options = {"kv_cache_memory": 2**28, "max_model_len": 512}
    with engines(model, {"one": SYNTHETIC}, **options) as loaded:
        curves = measure_curves(
            loaded["one"], load.depths, load.rates, bench.rounds, load.output_len, bench.say
        )
    return Claim(
        name="break_even",
        claim=f"Acceptance from which drafts pay, {name}",
        measured="; ".join(map(_sentence, curves)),
        conditions=(
            f"one request, greedy, drafts that cost nothing to make and are right at a given rate"
            f" (synthetic), {load.output_len} tokens; the formula is 1 + a + ... + a^k ="
            f" t(1 + k) / t(1), with passes timed without drafts; rule of thumb: 50 %; medians of"
            f" {bench.rounds} rounds in turn"
        ),
        figures={"curves": [asdict(curve) for curve in curves]},
    )


def _sentence(curve: Curve) -> str:
    return (
        f"depth {curve.depth}: {shown(curve.measured)} measured, {shown(curve.formula)} by the"
        f" formula, t({1 + curve.depth}) / t(1) = {curve.cost:.2f}"
    )
