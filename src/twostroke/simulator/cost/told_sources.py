"""What the step times of a model were fitted to, part by part."""

from __future__ import annotations

from collections.abc import Iterator

from twostroke.simulator.cost.cost_model import RooflineCostModel


def sources(cost: RooflineCostModel) -> dict[str, list[str]]:
    """Sources, and the parts of the model's steps that were fitted to each, in their order."""
    fitted = cost.efficiencies.origins
    told: dict[str, list[str]] = {}
    for part, table in _parts(cost):
        if table in fitted:
            told.setdefault(fitted[table], []).append(part)
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
    if any(layer.latent for layer in attention) and e.latent_decode is not None:
        yield "attention", "latent_decode"
    elif attention:
        yield "attention", "decode"
    if cost.parallel.num_devices > 1:
        yield "collectives", "all_reduce"
    yield "host", "host"
    yield "whole steps", "step"
    yield "interval", _interval_table(cost, has_experts=bool(experts))


def _interval_table(cost: RooflineCostModel, *, has_experts: bool) -> str:
    e = cost.efficiencies
    if has_experts and e.interval_experts is not None:
        return "interval_experts"
    few = cost.weights.bits < 16 and e.interval_few_bits is not None
    return "interval_few_bits" if few else "interval"
