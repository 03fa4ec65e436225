"""Protects: threads of a server share one heap of the C library."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

COUNT = """
import ctypes, sys, threading
from twostroke.core.freed_memory import share_heaps
if sys.argv[1] == "shared":
    share_heaps()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.fdopen.restype = ctypes.c_void_p, ctypes.c_void_p
meet = threading.Barrier(7)
def take():
    libc.malloc(1000)
    meet.wait()
threads = [threading.Thread(target=take) for _ in range(6)]
for thread in threads:
    thread.start()
meet.wait()
libc.malloc_info(0, ctypes.c_void_p(libc.fdopen(1, b"w")))
libc.fflush(None)
"""


pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="heaps of glibc")


def count_heaps(how: str, **environment: str) -> int:
    plain = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
    command = [sys.executable, "-c", COUNT, how]
    info = subprocess.run(
        command, env=plain | environment, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    return info.count("<heap nr=")


def test_threads_share_one() -> None:
    assert count_heaps("apart") > 2
    assert count_heaps("shared") == 1


def test_what_the_user_has_set_stands() -> None:
    assert count_heaps("shared", MALLOC_ARENA_MAX="5") == 5
