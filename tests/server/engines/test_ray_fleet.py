"""``twostroke up --ray local``: Ray places replicas; whatever ends or changes, clients see none."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.server.engines.test_fleet import kill_busy, metrics, reload, stream
from tests.server.engines.test_fleet_roles import FILE as ROLES
from tests.server.engines.test_fleet_roles import fetched, process_of
from tests.server.engines.test_prefill_engines import stream as roles_stream
from tests.server.running import ROOT, ServerProcess, running_process, wait_until

pytest.importorskip("ray")
ALONE = ("--kv-cache-memory", "64MiB", "--max-num-seqs", "8")
FILE = """
[server]
shutdown-timeout = 20

[pools.chat]
model = "pilot"
replicas = 2
kv-cache-memory = "64MiB"
"""


@contextmanager
def running(path: Path, text: str) -> Iterator[ServerProcess]:
    path.write_text(text)
    flags = ["--ray", "local", "--config", str(path), "--port", "0"]
    with running_process("-m", "twostroke", "up", *flags) as fleet:
        yield fleet


def runs(process: psutil.Process) -> bool:
    """One that has ended stays listed until its parent has asked for its status."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def processes(fleet: ServerProcess) -> set[str]:
    """Those of replicas that are ready, or leave, as they were told last."""
    told = [line for line in fleet.stderr.splitlines() if "pool chat: " in line]
    return set(re.findall(r"process (\d+)", told[-1]))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ray") / "fleet.toml"


@pytest.fixture(scope="module")
def fleet(path: Path) -> Iterator[ServerProcess]:
    with running(path, FILE) as fleet:
        fleet.url()
        yield fleet
        children = psutil.Process(fleet.process.pid).children(recursive=True)
        assert children
        fleet.process.send_signal(signal.SIGTERM)
        assert fleet.end(60) == 0
        wait_until(lambda: not any(map(runs, children)))


def test_a_stream_goes_on_where_another_actor_is(fleet: ServerProcess) -> None:
    url = fleet.url()
    expected = stream(url)
    assert stream(url, lambda: kill_busy(url, fleet)) == expected
    wait_until(lambda: re.search("2 of 2 ready; .*restart 1", fleet.stderr) is not None)
    assert 'twostroke:replica_restarts_total{engine="' in metrics(url)
    assert stream(url) == expected


def test_an_actor_that_hangs_is_left(fleet: ServerProcess) -> None:
    """Stopped for less than the stall timeout, it is waited for, and no byte is lost."""
    url = fleet.url()
    expected = stream(url)
    pids = [int(pid) for pid in re.findall(r"ready \(process (\d+)", fleet.stderr)[-2:]]

    def stop_for_a_while() -> None:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    assert stream(url, stop_for_a_while) == expected


def test_a_changed_file_replaces_actors_and_no_request(fleet: ServerProcess, path: Path) -> None:
    """Each has a successor before it leaves, so there is a place for one more."""
    url, former = fleet.url(), processes(fleet)
    expected = stream(url)

    def is_replaced() -> bool:
        return len(processes(fleet)) == 2 and not processes(fleet) & former

    def streams() -> list[Any]:
        contents, end = [stream(url)], time.monotonic() + 120
        while not is_replaced() and time.monotonic() < end:
            contents.append(stream(url))
        return contents

    with ThreadPoolExecutor() as threads:
        clients = [threads.submit(streams) for _ in range(2)]
        changed = FILE.replace("replicas = 2", "replicas = 2\nmax-num-seqs = 5")
        reload(fleet, path, changed)
        wait_until(is_replaced, 90)
        contents = [content for client in clients for content in client.result(60)]
    assert all(content == expected for content in contents)


class Nodes:
    """Ray's nodes on this machine: one for the server, and one for each replica."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.server.engines.ray_nodes"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.address = self._read()

    def tell(self, order: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{order}\n")
        self._process.stdin.flush()
        assert self._read() == "done"

    def close(self) -> None:
        self._process.communicate(timeout=60)

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def test_streams_of_a_machine_that_dies_go_on_in_another(tmp_path: Path) -> None:
    nodes = Nodes()
    path = tmp_path / "fleet.toml"
    path.write_text(FILE)
    flags = ["--ray", nodes.address, "--config", str(path), "--port", "0"]
    try:
        nodes.tell("add")
        nodes.tell("add")
        with running_process("-m", "twostroke", "up", *flags) as fleet:
            url = fleet.url()
            expected = stream(url)
            assert stream(url, lambda: nodes.tell("kill")) == expected
            wait_until(lambda: "waits for a machine with 1 CPU" in fleet.stderr)
            assert stream(url) == expected
            nodes.tell("add")
            wait_until(lambda: "2 of 2 ready" in fleet.stderr.splitlines()[-1], 90)
            assert stream(url) == expected
            fleet.process.send_signal(signal.SIGTERM)
            assert fleet.end(60) == 0
    finally:
        nodes.close()


def test_what_no_machine_has_is_refused(tmp_path: Path) -> None:
    text = '[pools.chat]\nmodel = "pilot"\nnum-gpus = 64\n'
    with running(tmp_path / "fleet.toml", text) as fleet:
        assert fleet.end(120) != 0
        assert "a replica needs 1 CPU and 64 GPU, and this machine has" in fleet.stderr
        assert "num-gpus in the pool" in fleet.stderr


def test_no_cluster_is_said(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(FILE)
    flags = ["--config", str(path), "--port", "0"]
    with running_process("-m", "twostroke", "up", "--ray", "127.0.0.1:1", *flags) as fleet:
        assert fleet.end(120) != 0
        assert "there is no Ray cluster at 127.0.0.1:1" in fleet.stderr
    with running_process("-m", "twostroke", "up", "--ray", "local", "--local", *flags) as fleet:
        assert fleet.end(60) != 0
        assert "--local and --ray cannot both be" in fleet.stderr


def again(fleet: ServerProcess) -> str:
    """What was told since a replica of the pool for prompts was down."""
    return fleet.stderr.rpartition("prompts: 0 of 1 ready")[2]


def test_actors_of_two_roles_are_one_model(tmp_path: Path) -> None:
    """Blocks cross between them, and go on to the next actor where one is killed."""
    with (
        running_process("-m", "twostroke", "serve", "--port", "0", *ALONE) as together,
        running(tmp_path / "roles.toml", ROLES.replace("replicas = 2", "replicas = 1")) as fleet,
    ):
        fleet.url()
        for number in range(2):
            expected = roles_stream(together, "plain", salt="ray")
            for attempt in range(4):  # blocks that are late on a busy machine are computed instead
                before = fetched(fleet)
                assert roles_stream(fleet, "plain", salt=f"ray{number}{attempt}") == expected
                if (num_fetched := fetched(fleet) - before) > 80:
                    break
            assert num_fetched > 80
            if not number:
                os.kill(process_of(fleet, "prompts"), signal.SIGKILL)
                assert roles_stream(fleet, "plain", salt="killed") == expected
                wait_until(lambda: "prompts: 1 of 1 ready" in again(fleet), 90)
        fleet.process.send_signal(signal.SIGTERM)
        assert fleet.end(60) == 0
