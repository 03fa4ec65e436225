"""The process itself: how old it is."""

from __future__ import annotations

import time

import psutil


def age_of_process() -> float:
    """Seconds since this process began, interpreter start-up included."""
    began: float = psutil.Process().create_time()
    return time.time() - began
