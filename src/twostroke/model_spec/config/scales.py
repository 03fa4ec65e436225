"""Factors by which some families multiply what others leave as it is."""

from __future__ import annotations

from twostroke.model_spec.config.families import Family
from twostroke.model_spec.config_fields import ConfigFields


def read_attention_scale(fields: ConfigFields, family: Family) -> float | None:
    """Of the scores; ``None`` is one over the root of a head's size."""
    if family.multipliers:
        return fields.number("attention_multiplier", 1.0)
    if family.scale is None:
        return None
    name, default = family.scale
    return float((fields.number(name, default) if name else default) ** -0.5)


def read_residual_scale(fields: ConfigFields, family: Family) -> float:
    """Of what a branch adds to the hidden state."""
    return fields.number("residual_multiplier", 1.0) if family.multipliers else 1.0


def read_embedding_scale(fields: ConfigFields, family: Family, hidden: int) -> float:
    if family.root_scaled:
        return float(hidden**0.5)
    return fields.number("embedding_multiplier", 1.0) if family.multipliers else 1.0


def read_logit_scale(fields: ConfigFields, family: Family) -> float:
    if family.multipliers:
        return 1.0 / fields.number("logits_scaling", 1.0)
    return fields.number("logit_scale", 0.0625) if family.parallel else 1.0
