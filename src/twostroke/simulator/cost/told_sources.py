"""What the step times of a model were fitted to, part by part."""

from __future__ import annotations

from collections.abc import Iterator

from twostroke.simulator.cost.cost_model import RooflineCostModel

# Of tables that no file has: the defaults in ``efficiencies``.
_DEFAULTS = {
    "all_to_all": "NCCL's in public kernel measurements of AI Configurator (Apache-2.0) on H100"
}


def sources(cost: RooflineCostModel) -> dict[str, list[str]]:
    """Sources, and the parts of the model's steps that were fitted to each, in their order."""
    fitted = {**_DEFAULTS, **cost.efficiencies.origins}
    told: dict[str, list[str]] = {}
    for part, table in _parts(cost):
        if table in fitted and part not in (of_source := told.setdefault(fitted[table], [])):
            of_source.append(part)
    if cost.tables is not None:
        told["corrected by --kernel-tables where it has them"] = cost.tables.parts
    return told


def describe_sources(cost: RooflineCostModel) -> str:
    """One sentence for each source."""
    told = [f"{', '.join(parts)}: {source}" for source, parts in sources(cost).items()]
    return "; ".join(told)


def _parts(cost: RooflineCostModel) -> Iterator[tuple[str, str]]:
    """(part of a step, table that it takes its coefficients from)."""
    e, model = cost.efficiencies, cost.model
    attention = [layer.attention for layer in model.layers if layer.attention]
    experts = [layer.experts for layer in model.layers if layer.experts]
    formats = (cost.weights.name, cost.compute_format, "bf16")
    yield "products", f"gemm.{next(name for name in formats if name in e.gemm)}"
    if experts and e.experts_for("bf16") is not None:
        yield "experts", f"experts.{next((n for n in formats if n in e.experts), 'bf16')}"
    for table in ("decode", "prefill") if attention else ():
        if any(layer.latent for layer in attention) and getattr(e, f"latent_{table}") is not None:
            table = f"latent_{table}"
        yield "attention", table
    yield "norms and copies", "elementwise"
    if cost.parallel.tensor > 1:
        yield "collectives", "all_reduce"
    if (cost.parallel.data > 1 and experts) or cost.parallel.pipeline > 1:
        yield "moves between groups", "all_to_all"
    yield "host", "host"
    yield "whole steps", "step"
    yield "interval", _interval_table(cost, has_experts=bool(experts))


def _interval_table(cost: RooflineCostModel, *, has_experts: bool) -> str:
    e = cost.efficiencies
    if has_experts and e.interval_experts is not None:
        return "interval_experts"
    few = cost.weights.bits < 16 and e.interval_few_bits is not None
    return "interval_few_bits" if few else "interval"
