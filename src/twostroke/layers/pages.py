"""Tensors in memory from the operating system itself: what is large and lives long."""

from __future__ import annotations

import contextlib
import math
import mmap
import sys
from collections.abc import Sequence

import torch
from torch import Tensor


def fresh_tensor(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Zeros on the CPU, page-aligned.

    The operating system supplies them when they are first touched, in huge pages if it can.

    torch.zeros would write them all now, and so would numpy's where the C library has room in a
    heap. Given back, they leave no hole in one either. Decode steps that read their weights from
    huge pages take 2 to 5 % less (docs/lab/cpu-kernels.md).
    """
    count = math.prod(shape) * dtype.itemsize
    return torch.frombuffer(_fresh_pages(count), dtype=torch.uint8)[:count].view(dtype).view(*shape)


def _fresh_pages(count: int) -> mmap.mmap | bytearray:
    count = max(count, 1)
    if sys.platform == "win32":
        return bytearray(count)
    pages = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # a kernel may have no huge pages
            pages.madvise(mmap.MADV_HUGEPAGE)  # as numpy does: what lies here is read all over
    return pages
