"""Workers without a model as processes, for tests that kill and stop them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.server.running import ROOT
from twostroke.core.network.address import Address, bind


def free_port() -> int:
    with bind(Address("127.0.0.1", 0)) as bound:
        port: int = bound.getsockname()[1]
        return port


@contextmanager
def worker_process(port: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.engine.workers.scripted_worker", str(port)]
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "TWOSTROKE_TEST_HUNG": "/nowhere"}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        while process.stdout.readline().strip() != "ready":  # empty lines come of the trainer
            assert process.poll() is None
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
