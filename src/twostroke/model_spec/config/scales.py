"""Factors by which some families multiply what others leave as it is."""

from __future__ import annotations

from twostroke.core.errors import ModelLoadError
from twostroke.model_spec.config.families import Family
from twostroke.model_spec.config_fields import CHECK, ConfigFields, short
from twostroke.model_spec.factors import Multipliers


def read_attention_scale(fields: ConfigFields, family: Family, head_dim: int) -> float | None:
    """The factor of attention scores; ``None`` means ``head_dim ** -0.5``."""
    if family.multipliers:
        return fields.number("attention_multiplier", 1.0)
    if family.inner_multipliers:  # of keys, which comes to the same
        return float(head_dim**-0.5 * fields.number("key_multiplier", 1.0))
    if family.scale is None:
        return None
    name, default = family.scale
    return float((fields.number(name, default) if name else default) ** -0.5)


def read_residual_scale(fields: ConfigFields, family: Family) -> float:
    """The factor of what a branch adds to the hidden state."""
    return fields.number("residual_multiplier", 1.0) if family.multipliers else 1.0


def read_embedding_scale(fields: ConfigFields, family: Family, hidden: int) -> float:
    if family.root_scaled:
        return float(hidden**0.5)
    is_scaled = family.multipliers or family.inner_multipliers
    return fields.number("embedding_multiplier", 1.0) if is_scaled else 1.0


def read_logit_scale(fields: ConfigFields, family: Family) -> float:
    if family.multipliers:
        return 1.0 / fields.number("logits_scaling", 1.0)
    if family.inner_multipliers:
        return fields.number("lm_head_multiplier", 1.0)
    return fields.number("logit_scale", 0.0625) if family.parallel else 1.0


def read_multipliers(fields: ConfigFields, family: Family) -> Multipliers | None:
    """The factors inside a layer. Raises ModelLoadError."""
    if not family.inner_multipliers:
        return None
    gate, mlp_output = _numbers(fields, "mlp_multipliers", 2)
    return Multipliers(
        attention_input=fields.number("attention_in_multiplier", 1.0),
        attention_output=fields.number("attention_out_multiplier", 1.0),
        state_input=fields.number("ssm_in_multiplier", 1.0),
        state_parts=_numbers(fields, "ssm_multipliers", 5),
        state_output=fields.number("ssm_out_multiplier", 1.0),
        gate=gate,
        mlp_output=mlp_output,
    )


def _numbers(fields: ConfigFields, name: str, count: int) -> tuple[float, ...]:
    stated = fields.items(name) or [1.0] * count
    is_number = [isinstance(value, int | float) and not isinstance(value, bool) for value in stated]
    if len(stated) != count or not all(is_number):
        raise ModelLoadError(
            f"config.json: {name} must be {count} numbers, got {short(stated)}", hint=CHECK
        )
    return tuple(float(value) for value in stated)
