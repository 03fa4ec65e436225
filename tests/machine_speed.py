"""How much slower this machine is than the one on which bounds in seconds were set.

A bound of 50 ms says something of the code on a machine of known speed only. On a slower one, or
while a hypervisor gives its time to others, the same code takes longer; tests then multiply their
bound by ``slowness``, which is 1 on that machine and on any faster one.
"""

from __future__ import annotations

import json
import time
from statistics import median

# A list of small objects to JSON and back, as servers do all day: seconds of processor time on the
# machine of the bounds (2 cores of an AMD EPYC with AVX-512, Python 3.11).
_VALUE = [{"type": "text", "text": f"part {i}", "number": i} for i in range(2000)]
_KNOWN_SECONDS = 0.0025
_REPEATS = 7


def slowness() -> float:
    """Times that machine's time that Python takes here and now, at least 1."""
    return max(1.0, median(_seconds() for _ in range(_REPEATS)) / _KNOWN_SECONDS)


def _seconds() -> float:
    began = time.thread_time()
    assert json.loads(json.dumps(_VALUE)) == _VALUE
    return time.thread_time() - began
