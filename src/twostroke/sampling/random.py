"""Counter-based random numbers: a uniform is a function of (seed, position) and of nothing else.

There is no state to save, to share or to advance, so a draw does not depend on the other requests
of the batch, on preemption, or on the step in which it happens. Needs numpy only.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_MASK = 2**64 - 1
# 2**64 divided by the golden ratio, made odd: the increment of SplitMix64 (Steele, Lea and Flood
# 2014).
_GAMMA = 0x9E3779B97F4A7C15
_MULTIPLIER_1 = 0xBF58476D1CE4E5B9
_MULTIPLIER_2 = 0x94D049BB133111EB


def uniforms(
    seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """One uniform number for each pair of seed and position.

    The state of SplitMix64 is a counter, so its output number ``position`` needs no loop. The seed
    is mixed first: otherwise seeds one increment apart would give the same stream, shifted by one
    position.

    Args:
        seeds: uint64 [rows].
        positions: int64 [rows].

    Returns:
        float64 [rows] in [0, 1): multiples of 2**-53.
    """
    counters = positions.astype(np.uint64) + np.uint64(1)
    bits = _mix(_mix(seeds + np.uint64(_GAMMA)) + counters * np.uint64(_GAMMA))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def derive_seed(seed: int, index: int) -> int:
    """The seed of sample ``index`` of a request with ``seed``, in [0, 2**64).

    Sample 0 keeps the request's own.

    So the answer to ``n=1`` is also the first answer to ``n=4``. Negative seeds count modulo 2**64.
    """
    if index == 0:
        return seed & _MASK
    # SplitMix64 again, from a state of its own; a bijection, so no two samples of a request share a
    # seed.
    start = _mix(np.array([seed & _MASK], dtype=np.uint64) ^ np.uint64(_MULTIPLIER_2))
    return int(_mix(start + np.array([index], dtype=np.uint64) * np.uint64(_GAMMA))[0])


def _mix(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The output function of SplitMix64, a bijection on uint64.

    It is Stafford's variant 13 of MurmurHash3's finalizer.
    """
    words = (words ^ (words >> np.uint64(30))) * np.uint64(_MULTIPLIER_1)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(_MULTIPLIER_2)
    return words ^ (words >> np.uint64(31))
