"""Lengths that are drawn have the mean, the end and the tail that were asked for."""

from __future__ import annotations

from random import Random
from statistics import fmean

import pytest

from twostroke.workloads.lengths import SHAREGPT_INPUT, SHAREGPT_OUTPUT, LognormalLength


def test_sharegpt_like_lengths_have_the_published_means() -> None:
    """Figure 11a of the PagedAttention paper (arXiv:2309.06180).

    161.31 tokens in and 337.99 out.
    """
    random = Random(0)
    for length, mean in ((SHAREGPT_INPUT, 161.31), (SHAREGPT_OUTPUT, 337.99)):
        drawn = sorted(length.draw(random) for _ in range(40_000))
        assert fmean(drawn) == pytest.approx(mean, rel=0.02)
        assert drawn[0] >= 1 and drawn[-1] == length.longest == 1024
        assert drawn[20_000] < 0.8 * mean  # half of them are much shorter: the tail is long


@pytest.mark.parametrize(("mean", "p95"), [(1500, 3000), (300, 300), (200, 700)])
def test_lengths_have_their_mean_and_their_tail(mean: int, p95: int) -> None:
    lengths, random = LognormalLength.with_p95(mean, p95), Random(1)
    drawn = sorted(lengths.draw(random) for _ in range(20_000))
    assert sum(drawn) / len(drawn) == pytest.approx(mean, rel=0.03)
    assert drawn[19_000] == pytest.approx(p95, rel=0.06)
