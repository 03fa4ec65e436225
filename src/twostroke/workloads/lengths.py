"""Lengths of prompts and answers as chats have them: lognormal, with an end."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from random import Random
from statistics import NormalDist

# Deviations of a normal distribution up to its 95th percentile, and up to where lengths end.
P95, END = NormalDist().inv_cdf(0.95), NormalDist().inv_cdf(0.999)
# Most times the mean that the 95th percentile of a lognormal distribution can be.
MAX_TAIL = 3.8


@dataclass(frozen=True, slots=True)
class LognormalLength:
    """Long-tailed lengths from 1 to ``longest``, cut there; ``mean`` is that before the cut."""

    mean: float
    sigma: float
    longest: int
    mu: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "mu", math.log(self.mean) - self.sigma**2 / 2)

    @classmethod
    def with_mean_after_cut(cls, mean: float, sigma: float, longest: int) -> LognormalLength:
        """Lengths whose mean is ``mean`` with the cut; found by bisection."""
        low, high = mean, mean * 1000
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (
                (middle, high)
                if cls(middle, sigma, longest).mean_after_cut() < mean
                else (low, middle)
            )
        return cls(low, sigma, longest)

    @classmethod
    def with_p95(cls, mean: float, p95: float) -> LognormalLength:
        """Lengths of this mean and 95th percentile, cut at the 99.9th.

        Args:
            p95: From the mean to ``MAX_TAIL`` times as much.
        """
        sigma = max(P95 - math.sqrt(P95**2 - 2 * math.log(p95 / mean)), 1e-6)
        longest = math.ceil(mean * math.exp(END * sigma - sigma**2 / 2))
        return cls.with_mean_after_cut(mean, sigma, longest)

    def mean_after_cut(self) -> float:
        """Mean of min(X, longest), X lognormal: what is below the cut, the cut for the rest."""
        normal, cut = NormalDist(), (math.log(self.longest) - self.mu) / self.sigma
        return self.mean * normal.cdf(cut - self.sigma) + self.longest * (1 - normal.cdf(cut))

    def draw(self, random: Random) -> int:
        length = round(random.lognormvariate(self.mu, self.sigma))
        return self.longest if length > self.longest else length or 1


# Means of ShareGPT: Kwon et al., PagedAttention, SOSP 2023 (arXiv:2309.06180), figure 11a. Spread
# and ends are ours.
SHAREGPT_INPUT = LognormalLength.with_mean_after_cut(161.31, 1.2, 1024)
SHAREGPT_OUTPUT = LognormalLength.with_mean_after_cut(337.99, 0.9, 1024)
