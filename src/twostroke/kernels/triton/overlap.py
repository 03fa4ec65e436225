"""Kernels that start while the one before them still runs (programmatic dependent launch).

Between two kernels a GPU otherwise stands still for some microseconds: the last blocks of the first
end, and the second starts. Every kernel here calls ``wait_for_earlier`` before it reads or
writes what others do; since it ends no sooner than what it waited for, that holds for all before.
Needs compute capability 9 (Hopper), and ``launch_pdl`` at the launch.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def wait_for_earlier(OVERLAPS: tl.constexpr):
    """Let the next kernel start, and wait until all earlier ones have ended."""
    if OVERLAPS:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
