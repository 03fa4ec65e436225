"""Protects: large memory is taken from the system, zeroed, and only as it is used."""

from __future__ import annotations

import errno
import mmap
import sys
from pathlib import Path

import pytest

from twostroke.kernels.pages import fresh_pages


def _resident() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_pages_are_there_when_they_are_touched_and_gone_when_they_are_freed() -> None:
    before, size = _resident(), 64 * 2**20
    pages = fresh_pages(size)
    assert _resident() - before < size / 8
    pages[: size // 2] = b"\1" * (size // 2)
    assert pages[size // 2 - 1 : size // 2 + 2] == b"\1\0\0"
    assert _resident() - before > size / 2 - 2**20
    del pages
    assert _resident() - before < size / 8


def test_a_kernel_without_huge_pages_gives_others(monkeypatch: pytest.MonkeyPatch) -> None:
    class WithoutHugePages(mmap.mmap):
        def madvise(self, option: int, start: int = 0, length: int = 0) -> None:
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(mmap, "mmap", WithoutHugePages)
    assert len(fresh_pages(100)) == 100


def test_no_bytes_are_some() -> None:
    assert len(fresh_pages(0)) == 1
