"""How a model runs: number formats, devices that share it, speculation."""

from __future__ import annotations

from dataclasses import dataclass

from twostroke.model_spec.model_sheet import ModelSheet


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """``tensor``: how many devices share every layer."""

    tensor: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Dtypes:
    """Formats of weights and KV cache; ``auto`` is what the checkpoint states, and bfloat16."""

    weights: str = "auto"
    kv_cache: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Every decoding request computes ``tokens`` drafted tokens beside its own; ``draft`` makes
    them one by one.

    Without a draft model (n-gram) drafting costs nothing here.
    """

    tokens: int
    draft: ModelSheet | None = None
