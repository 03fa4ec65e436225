"""Memory from the operating system itself, for what is large, lives long and grows."""

from __future__ import annotations

import contextlib
import mmap
import sys


def fresh_pages(count: int) -> mmap.mmap | bytearray:
    """At least ``count`` bytes of zeros, page-aligned, which the kernel supplies when they are first touched.

    torch.zeros would write them all now, and so would numpy's where the C library has room in a heap. Given back, they
    leave no hole in one either.
    """
    count = max(count, 1)
    if sys.platform == "win32":
        return bytearray(count)
    pages = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # a kernel may have no huge pages
            pages.madvise(mmap.MADV_HUGEPAGE)  # as numpy does: what lies here is read all over
    return pages
