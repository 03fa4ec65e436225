"""Memory that has been freed and that the C library keeps, given back to the system."""

from __future__ import annotations

import ctypes
import os
import sys

_ARENA_MAX = -8  # ``M_ARENA_MAX`` of glibc's malloc.h
_HEAPS = 1


def return_freed_memory() -> None:
    """Shrink glibc's heaps; elsewhere nothing happens. Takes milliseconds, without the GIL.

    Large requests leave holes in the heaps of all threads, which count as taken.
    """
    if (
        sys.platform == "linux"
        and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None
    ):
        trim(0)


def share_heaps() -> None:
    """Have all threads share one of glibc's heaps; call it before threads are started.

    By default glibc makes up to eight for each core. Each keeps the holes that large requests leave
    in it, which together were a fifth of a small server's memory, and grew for minutes; two of them
    still held 30 MiB more than one. A user's ``MALLOC_ARENA_MAX`` stands.
    """
    if (
        sys.platform == "linux"
        and "MALLOC_ARENA_MAX" not in os.environ
        and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None
    ):
        mallopt(_ARENA_MAX, _HEAPS)
