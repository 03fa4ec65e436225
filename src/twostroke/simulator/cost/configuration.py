"""How a model runs: number formats, devices that share it, speculation."""

from __future__ import annotations

from dataclasses import dataclass

from twostroke.model_spec.spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """How a model is split; ``tensor``: devices that share every layer."""

    tensor: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Dtypes:
    """Formats of weights and KV cache; ``auto`` is what the checkpoint states, and bfloat16."""

    weights: str = "auto"
    kv_cache: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Draft tokens that every decoding request verifies.

    Attributes:
        tokens: Per request and step.
        draft: The model that drafts them, one by one; ``None``: n-grams, whose cost is taken as 0.
    """

    tokens: int
    draft: ModelSpec | None = None
