"""Protects: large memory is taken from the system, zeroed, and only as it is used."""

from __future__ import annotations

import errno
import mmap
import sys
from pathlib import Path

import pytest
import torch

from twostroke.layers.pages import fresh_tensor


def _resident() -> int:
    line = next(
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmRSS:")
    )
    return int(line.split()[1]) * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_pages_are_there_when_they_are_touched_and_gone_when_they_are_freed() -> None:
    before, size = _resident(), 64 * 2**20
    pages = fresh_tensor((4, size // 4), torch.uint8)
    assert _resident() - before < size / 8
    pages[:2] = 1
    assert pages[1, -1] == 1
    assert pages[2, 0] == 0
    assert _resident() - before > size / 2 - 2**20
    del pages
    assert _resident() - before < size / 8


def test_a_kernel_without_huge_pages_gives_others(monkeypatch: pytest.MonkeyPatch) -> None:
    class WithoutHugePages(mmap.mmap):
        def madvise(self, option: int, start: int = 0, length: int = 0) -> None:
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(mmap, "mmap", WithoutHugePages)
    assert fresh_tensor((10, 5), torch.bfloat16).tolist() == [[0.0] * 5] * 10


def test_a_tensor_may_be_empty() -> None:
    assert fresh_tensor((0, 3), torch.int8).shape == (0, 3)
