"""Rotary position embedding as ``config.json`` describes it.

Older files write ``rope_theta`` and ``rope_scaling``, those of transformers 5 ``rope_parameters``;
both are read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from twostroke.model_spec.config.families import Family
from twostroke.model_spec.config_fields import ConfigFields
from twostroke.model_spec.rope import RopeSpec

# Context in tokens of a model that states none.
DEFAULT_LENGTH = 4096
MAX_FACTORS = 4096  # that are read, more than any head has
# Kinds whose values are read. Files may state others; ``models.support`` refuses them.
SCALED = ("linear", "llama3", "yarn", "proportional", "longrope")


def read_layer_rope(
    fields: ConfigFields, family: Family, index: int, window: int | None
) -> RopeSpec | None:
    """The rotation of one layer; ``None``: it has none. Raises ModelLoadError."""
    if family.rotated == "none" or (family.rotated == "window" and window is None):
        return None
    if family.rotated == "stated" and not is_rotated(fields, index):
        return None
    if family.rotated == "typed" and fields.raw.get("position_embedding_type") != "rope":
        return None
    if window is None or family.local_theta == 0.0:
        return read_rope(fields, family)
    if "sliding_attention" in (fields.mapping("rope_parameters") or family.rotations):
        return read_rope(fields, family, "sliding_attention")
    theta = family.local_theta or fields.number("rope_theta", family.theta)
    return RopeSpec(theta=fields.number("rope_local_base_freq", theta))


def is_rotated(fields: ConfigFields, index: int) -> bool:
    """Whether a layer rotates, by the list that excludes some, or in turns (SmolLM3, Llama 4)."""
    rotated = fields.items("no_rope_layers")
    if index < len(rotated):
        return bool(rotated[index])
    return (index + 1) % fields.integer("no_rope_layer_interval", 4) != 0


def read_rope(fields: ConfigFields, family: Family, kind: str = "full_attention") -> RopeSpec:
    """The rotation that a file states for a kind of layers. Raises ModelLoadError."""
    max_length = fields.optional("max_position_embeddings") or DEFAULT_LENGTH
    scaling = _scaling(fields, kind)
    if not scaling.raw and family.rotations:
        scaling = ConfigFields(family.rotations[kind])
    theta = scaling.number("rope_theta", fields.number("rope_theta", family.theta))
    kind = str(scaling.raw.get("rope_type", scaling.raw.get("type")) or "default")
    if kind == "su" or (kind == "yarn" and "long_factor" in scaling.raw):
        kind = "longrope"  # by the names of Phi-3's first files
    if kind == "mrope":  # of text, all of whose axes are one position (arXiv:2409.12191)
        kind = "default"
    if kind not in SCALED:
        return RopeSpec(theta=theta, kind=kind)
    # Phi-3's files state it outside; that comes first in transformers, too.
    original = fields.optional("original_max_position_embeddings")
    original = original or scaling.integer("original_max_position_embeddings", max_length)
    attention_factor = scaling.optional_number("attention_factor")
    both = (scaling.optional_number("mscale"), scaling.optional_number("mscale_all_dim"))
    stretched = max_length / original
    unstated = {"yarn": stretched, "longrope": stretched, "proportional": 1.0}
    factor = scaling.number("factor", unstated.get(kind))
    if attention_factor is None and both[0] and both[1]:
        attention_factor = _magnitude(factor, both[0]) / _magnitude(factor, both[1])
    return RopeSpec(
        theta=theta,
        kind=kind,
        factor=factor,
        original_length=original,
        low_freq_factor=scaling.number("low_freq_factor", None if kind == "llama3" else 1.0),
        high_freq_factor=scaling.number("high_freq_factor", None if kind == "llama3" else 4.0),
        beta_fast=scaling.number("beta_fast", 32.0),
        beta_slow=scaling.number("beta_slow", 1.0),
        attention_factor=attention_factor,
        truncate=scaling.flag("truncate", True),
        proportion=_proportion(fields, scaling) if kind == "proportional" else 1.0,
        short_factors=_factors(scaling, "short_factor") if kind == "longrope" else (),
        long_factors=_factors(scaling, "long_factor") if kind == "longrope" else (),
    )


def _factors(scaling: ConfigFields, name: str) -> tuple[float, ...]:
    """One for each pair of elements; ``models.support`` checks how many there are."""
    stated = scaling.items(name)[:MAX_FACTORS]
    return tuple(ConfigFields({name: factor}).number(name) for factor in stated)


def read_score_factor(fields: ConfigFields) -> float:
    """What DeepSeek's models multiply scores with where yarn stretches (``mscale_all_dim``)."""
    scaling = _scaling(fields)
    kind, magnitude = scaling.raw.get("rope_type", scaling.raw.get("type")), 1.0
    all_dims = scaling.optional_number("mscale_all_dim")
    if kind not in (None, "default") and all_dims is not None:
        magnitude = _magnitude(scaling.number("factor"), all_dims)
    return magnitude * magnitude


def _magnitude(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def read_rotary_fraction(fields: ConfigFields, rope: RopeSpec | None, window: int | None) -> float:
    """Share of a head's elements that are rotated; the rest of them may turn by no angle."""
    if rope is not None and rope.kind == "proportional":
        return 1.0
    is_local = window is not None and "sliding_attention" in fields.mapping("rope_parameters")
    kind = "sliding_attention" if is_local else "full_attention"
    return _proportion(fields, _scaling(fields, kind))


def _proportion(fields: ConfigFields, scaling: ConfigFields) -> float:
    factor = fields.number("partial_rotary_factor", 1.0)
    return scaling.number("partial_rotary_factor", factor)


def _scaling(fields: ConfigFields, kind: str = "full_attention") -> ConfigFields:
    """The object with the rotation's values; of several, that of a kind of layers."""
    stated: Mapping[str, Any] = fields.mapping("rope_parameters") or fields.mapping("rope_scaling")
    own = stated.get(kind)
    return ConfigFields(own if isinstance(own, Mapping) else stated)
