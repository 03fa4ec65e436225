"""Protects: a start that works is left alone, one that waits is seen to hang."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil

from twostroke.engine.process.start_watch import StartWatch

# The one that is watched waits for another, which it has started.
CODE = """
import subprocess, sys, time
work = "import time; end = time.monotonic() + 2.5\\nwhile time.monotonic() < end: pass"
subprocess.run([sys.executable, "-c", work])
time.sleep(60)
"""


def test_work_of_what_it_has_started_counts_and_waiting_does_not() -> None:
    with subprocess.Popen([sys.executable, "-c", CODE]) as process:
        watch, began = StartWatch(process.pid, 1.0), time.monotonic()
        while not watch.hangs():
            time.sleep(0.1)
            assert time.monotonic() < began + 30
        assert time.monotonic() > began + 2.5
        process.kill()
    assert not StartWatch(process.pid, 1.0).hangs()


# A process that waits for its vfork is seen as one that waits for a disk: uninterruptible.
WAITS = "import ctypes, time; ctypes.CDLL(None).vfork(); time.sleep(60)"


def test_what_waits_for_a_slow_disk_does_not_hang() -> None:
    with subprocess.Popen([sys.executable, "-c", WAITS], start_new_session=True) as process:
        try:
            while psutil.Process(process.pid).status() != psutil.STATUS_DISK_SLEEP:
                time.sleep(0.05)
            watch, began = StartWatch(process.pid, 0.5), time.monotonic()
            while time.monotonic() < began + 1.5:
                assert not watch.hangs()
                time.sleep(0.1)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
