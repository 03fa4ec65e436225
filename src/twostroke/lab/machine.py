"""What this machine's memory and arithmetic reach, by numpy: limits for live runs."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import numpy as np

# Larger than any cache, and matrices large enough that arithmetic decides.
READ_BYTES, MATRIX = 2**28, 768
ROUNDS = 5


def read_bandwidth() -> float:
    """Bytes per second that all cores together read from memory: the best of some rounds."""
    values = np.ones(READ_BYTES // 8, dtype=np.uint64)
    parts = np.array_split(values, os.cpu_count() or 1)
    best = float("inf")
    with ThreadPoolExecutor(max_workers=len(parts)) as threads:
        for _ in range(ROUNDS):
            began = time.perf_counter()
            list(threads.map(np.max, parts))
            best = min(best, time.perf_counter() - began)
    return READ_BYTES / best


def product_seconds(*, zeros: bool) -> float:
    """Median seconds of a product of two square float32 matrices.

    Args:
        zeros: Whether two of four elements in a row of one matrix are 0: the form that a GPU's
            sparse rate needs.
    """
    rng = np.random.default_rng(0)
    left = rng.standard_normal((MATRIX, MATRIX), dtype=np.float32)
    right = rng.standard_normal((MATRIX, MATRIX), dtype=np.float32)
    if zeros:
        left.reshape(MATRIX, -1, 4)[:, :, 2:] = 0.0
    seconds = []
    for _ in range(4 * ROUNDS):
        began = time.perf_counter()
        left @ right
        seconds.append(time.perf_counter() - began)
    return median(seconds)


def product_flops() -> float:
    """FLOP/s of such a product, without zeros."""
    return float(2 * MATRIX**3 / product_seconds(zeros=False))
