"""Rotary position embedding (Su et al. 2021), as a spec has it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary position embedding (Su et al. 2021), and its stretching beyond the trained length.

    Attributes:
        kind: ``default``; ``linear`` divides positions by ``factor``; ``llama3`` and ``yarn`` (Peng
            et al. 2023) stretch the low frequencies only; ``proportional`` turns the first
            ``proportion`` of the pairs, at the angles of the whole width; ``longrope`` (Ding et al.
            2024, arXiv:2402.13753) divides each pair's angles by a factor of its own; any other as
            the file names it.
        original_length: Context length before stretching (llama3, yarn, longrope).
        attention_factor: Multiplies cosines and sines (yarn, longrope); ``None`` is the papers',
            ``0.1 ln(factor) + 1`` and ``sqrt(1 + ln(factor) / ln(original_length))``.
        short_factors, long_factors: A factor for each pair (longrope), of a model that runs with
            up to ``original_length`` tokens, and with more.
        truncate: Whether yarn rounds the bounds of its ramp to whole dimensions.
    """

    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    original_length: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True
    proportion: float = 1.0
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()

    def has_long_factors(self, max_length: int) -> bool:
        """Whether a model whose longest request has so many tokens turns by the long ones.

        All its requests do then, as in vLLM: keys in the cache cannot be turned again when one
        crosses the original length, as transformers does.
        """
        return self.kind == "longrope" and max_length > self.original_length
