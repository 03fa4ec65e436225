"""Protects: a start that works is left alone, one that waits is seen to hang."""

from __future__ import annotations

import subprocess
import sys
import time

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
