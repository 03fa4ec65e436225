"""How a model runs: number formats, devices that share it, what drafts."""

from __future__ import annotations

from dataclasses import dataclass

from twostroke.model_spec.spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """How a model is split: ``tensor`` devices share every layer.

    Attributes:
        experts_apart: They deal out whole experts, instead of a part of each.
    """

    tensor: int = 1
    experts_apart: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Dtypes:
    """Formats of weights and KV cache; ``auto`` is what the checkpoint states, and bfloat16."""

    weights: str = "auto"
    kv_cache: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """What makes drafts, one by one. Without a model, quoting costs nothing.

    Attributes:
        model: A smaller model.
        share: Or this share of the target's own layers.
    """

    model: ModelSpec | None = None
    share: float = 0.0
