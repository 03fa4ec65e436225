"""Memory that has been freed and that the C library keeps, given back to the system."""

from __future__ import annotations

import ctypes
import sys


def return_freed_memory() -> None:
    """Shrink glibc's heaps; elsewhere nothing happens. Takes milliseconds, without the GIL.

    Large requests leave holes in the heaps of all threads, which count as taken.
    """
    if (
        sys.platform == "linux"
        and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None
    ):
        trim(0)
