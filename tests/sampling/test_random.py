from __future__ import annotations

import math

import numpy as np
import pytest

from twostroke.sampling.random import derive_seed, uniforms


def grid(num_seeds: int, num_positions: int, first_seed: int = 0) -> np.ndarray:
    """Uniforms of consecutive seeds and positions, [seeds, positions]."""
    seeds = np.arange(first_seed, first_seed + num_seeds, dtype=np.uint64)
    positions = np.arange(num_positions, dtype=np.int64)
    return uniforms(np.repeat(seeds, num_positions), np.tile(positions, num_seeds)).reshape(
        num_seeds, num_positions
    )


def test_a_uniform_depends_on_its_own_seed_and_position_only() -> None:
    together = uniforms(
        np.array([7, 2**64 - 1, 7], dtype=np.uint64), np.array([0, 2**40, 5], dtype=np.int64)
    )
    alone = [
        uniforms(np.array([s], dtype=np.uint64), np.array([p], dtype=np.int64))[0]
        for s, p in ((7, 0), (2**64 - 1, 2**40), (7, 5))
    ]
    assert together.tolist() == alone
    assert together.dtype == np.float64 and len(set(alone)) == 3


def test_values_are_pinned() -> None:
    """A change here changes every seeded answer: it needs a line in the release notes."""
    values = uniforms(
        np.array([0, 1, 2**63], dtype=np.uint64), np.array([0, 1, 1000], dtype=np.int64)
    )
    assert values.tolist() == [0.6524484863740322, 0.9435642308648544, 0.2820675446317753]
    assert derive_seed(0, 1) == 4723828388691666090


def splitmix64_first_output(state: int) -> int:
    """The published algorithm (Steele, Lea and Flood 2014) in Python integers."""
    mask = 2**64 - 1
    z = (state + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


@pytest.mark.parametrize(("seed", "position"), [(0, 0), (1, 2), (2**64 - 1, 2**62), (2**63, 7)])
def test_it_is_splitmix64_at_a_counter(seed: int, position: int) -> None:
    state = splitmix64_first_output(seed) + position * 0x9E3779B97F4A7C15
    expected = (splitmix64_first_output(state) >> 11) / 2**53
    assert (
        uniforms(np.array([seed], dtype=np.uint64), np.array([position], dtype=np.int64))[0]
        == expected
    )


def test_splitmix64_known_answer() -> None:
    """The first output for seed 0 of the reference implementation
    (prng.di.unimi.it/splitmix64.c).
    """
    assert splitmix64_first_output(0) == 0xE220A8397B1DCDAF


def test_uniformity_over_seeds_and_positions() -> None:
    values = grid(500, 400)
    assert values.min() >= 0 and values.max() < 1
    n = values.size
    assert abs(values.mean() - 0.5) < 4 * math.sqrt(1 / 12 / n)
    for part in (values.ravel(), values[0], values[:, 0], values[:, 399]):
        counts = np.histogram(part, bins=50, range=(0, 1))[0]
        expected = part.size / 50
        chi_square = float(((counts - expected) ** 2 / expected).sum())
        assert chi_square < 49 + 4 * math.sqrt(2 * 49)


def test_neighbours_are_uncorrelated() -> None:
    values = grid(500, 400) - 0.5
    for a, b in (
        (values[:-1], values[1:]),  # neighbouring seeds
        (values[:, :-1], values[:, 1:]),  # neighbouring positions
        (
            values[:-1, 1:],
            values[1:, :-1],
        ),  # one seed up, one position back: would show streams shifted by one
    ):
        correlation = float((a * b).mean() * 12)
        assert abs(correlation) < 4 / math.sqrt(a.size)


def test_pairs_of_neighbouring_positions_fill_the_square() -> None:
    values = grid(300, 400, first_seed=10**6)
    counts = np.histogram2d(
        values[:, ::2].ravel(), values[:, 1::2].ravel(), bins=10, range=[[0, 1], [0, 1]]
    )[0]
    expected = values.size / 2 / 100
    assert float(((counts - expected) ** 2 / expected).sum()) < 99 + 4 * math.sqrt(2 * 99)


def test_the_first_sample_keeps_the_seed_and_the_others_get_their_own() -> None:
    assert derive_seed(42, 0) == 42
    assert derive_seed(-1, 0) == 2**64 - 1
    seeds = [derive_seed(seed, index) for seed in range(100) for index in range(128)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert derive_seed(-5, 3) == derive_seed(2**64 - 5, 3)


def test_samples_of_one_request_are_uncorrelated() -> None:
    seeds = np.array([derive_seed(s, i) for s in range(200) for i in (1, 2)], dtype=np.uint64)
    values = np.stack([uniforms(seeds, np.full(400, p, dtype=np.int64)) for p in range(100)]) - 0.5
    first, second = values[:, ::2], values[:, 1::2]
    assert abs(float((first * second).mean() * 12)) < 4 / math.sqrt(first.size)
