"""``twostroke up``: one command, two replicas; whatever ends or changes, clients see no byte."""

from __future__ import annotations

import os
import pty
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from safetensors.torch import load_file

from tests.runtime.adapters.peft_files import adapter_config, adapter_tensors, write_adapter
from tests.server.engines.processes import started_by
from tests.server.engines.streamed_calls import chat_calls
from tests.server.engines.streamed_content import content_of
from tests.server.running import ROOT, ServerProcess, running_process, wait_until
from tests.server.tiny import checkpoint
from tests.text.tiny_tokenizers import byte_level

GUIDE = (ROOT / "docs" / "reference" / "fleet.md").read_text()
BODY = {
    **chat_calls(max_tokens=400)["plain"],
    "seed": 3,
    "ignore_eos": True,
    "temperature": 0.9,
    "stream": True,
}
POOLS = """
[server]
shutdown-timeout = 20

[pools.chat]
model = "pilot"
replicas = 2
kv-cache-memory = "64MiB"

[pools.tiny]
model = "{tiny}"
enable-lora = true
max-lora-rank = 16
kv-cache-memory = "8MiB"
"""


def replicas(fleet: ServerProcess) -> list[int]:
    return started_by(fleet.process.pid, "twostroke.engine_process")


def stream(url: str, after_some: Callable[[], None] | None = None, model: str = "chat") -> Any:
    """What the events of a chat say; in the middle of it something is done."""
    lines: list[str] = []
    body = {**BODY, "model": model}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if line.startswith("data"):
                lines.append(line)
            if len(lines) == 20 and after_some is not None:
                after_some()
                after_some = None
    assert after_some is None, "it was over before"
    assert lines[-1] == "data: [DONE]"
    return content_of(lines)


def metrics(url: str) -> str:
    return httpx.get(f"{url}/metrics", timeout=30).text


def kill_busy(url: str, fleet: ServerProcess) -> None:
    """End the replica that has a request, as the status on stderr names it."""
    busy = re.search(r'requests_running\{engine="(\d+)".*\} 1', metrics(url))
    assert busy is not None
    pids = re.findall(rf"replica {busy[1]} ready \(process (\d+)", fleet.stderr)
    os.kill(int(pids[-1]), signal.SIGKILL)


@contextmanager
def running(path: Path, text: str) -> Iterator[ServerProcess]:
    path.write_text(text)
    flags = ["--local", "--config", str(path), "--port", "0"]
    with running_process("-m", "twostroke", "up", *flags) as fleet:
        yield fleet


def test_two_commands_survive_the_end_of_a_replica() -> None:
    assert "make fleet" in GUIDE and "twostroke chat --url http://127.0.0.1:8000" in GUIDE
    listed = subprocess.run(
        ["make", "-n", "fleet", "FLAGS="], cwd=ROOT, capture_output=True, text=True, check=True
    )
    command = next(line for line in listed.stdout.splitlines() if "twostroke up" in line)
    arguments = shlex.split(command.replace("--port 8000", "--port 0"))[1:]
    with running_process("-m", "twostroke", *arguments) as fleet:
        url = fleet.url()
        expected = stream(url, model="pilot")
        assert stream(url, lambda: kill_busy(url, fleet), model="pilot") == expected
        assert httpx.get(f"{url}/health", timeout=30).status_code == 200
        wait_until(lambda: re.search("2 of 2 ready; .*restart 1", fleet.stderr) is not None)
        assert (
            'twostroke:replica_restarts_total{engine="0",model_name="pilot",pool="pilot"}'
            in metrics(url)
        )


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fleet") / "fleet.toml"


@pytest.fixture(scope="module")
def tiny(path: Path) -> Path:
    """A model with a tokenizer of its own."""
    folder = path.with_name("tiny")
    shutil.copytree(checkpoint(), folder)
    byte_level().save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def fleet(path: Path, tiny: Path) -> Iterator[ServerProcess]:
    with running(path, POOLS.format(tiny=tiny)) as fleet:
        fleet.url()
        yield fleet
        children = replicas(fleet)
        fleet.process.send_signal(signal.SIGTERM)
        assert fleet.end(30) == 0
        assert not any(map(psutil.pid_exists, children))


def reload(fleet: ServerProcess, path: Path, text: str) -> None:
    """Change the file, and wait until the fleet has read it."""
    path.write_text(text)
    said = fleet.stderr.count("the fleet ")
    fleet.process.send_signal(signal.SIGHUP)
    wait_until(lambda: fleet.stderr.count("the fleet ") > said)


def test_each_model_has_a_pool(fleet: ServerProcess) -> None:
    url = fleet.url()
    names = [each["id"] for each in httpx.get(f"{url}/v1/models", timeout=30).json()["data"]]
    assert names == ["chat", "tiny"] and len(replicas(fleet)) == 3
    text = metrics(url)
    for name, number in (("chat", 2), ("tiny", 1)):
        assert (
            f'twostroke:replicas{{model_name="{name}",pool="{name}",state="ready"}} {number}.0'
            in text
        )
        assert f'twostroke:replicas_wanted{{model_name="{name}",pool="{name}"}} {number}.0' in text


def test_a_changed_file_replaces_replicas_and_no_request(fleet: ServerProcess, path: Path) -> None:
    url, text = fleet.url(), path.read_text()
    expected, before = stream(url), set(replicas(fleet))

    def streams() -> list[Any]:
        """One after another, until the replicas of one pool are others."""
        contents = []
        while len(before & set(replicas(fleet))) > 1:
            contents.append(stream(url))
        return contents

    with ThreadPoolExecutor() as threads:
        clients = [threads.submit(streams) for _ in range(3)]
        reload(fleet, path, text.replace("replicas = 2", "replicas = 2\nmax-num-seqs = 3"))
        contents = [content for client in clients for content in client.result(60)]
    assert len(contents) >= 3 and all(content == expected for content in contents)


def test_a_file_that_cannot_hold_changes_nothing(
    fleet: ServerProcess, path: Path, tiny: Path
) -> None:
    text, before = path.read_text(), replicas(fleet)
    for wrong, message in (
        (text.replace("replicas = 2", "replcas = 2"), "did you mean replicas?"),
        (text.replace("shutdown-timeout = 20", "port = 1"), "[server] has changed"),
        (
            text + '\n[pools.more]\nmodel = "pilot"\n',
            "pools come and go with a restart alone: more",
        ),
        (text.replace('"pilot"', f'"{tiny}"'), "has another vocabulary or chat template"),
        (text.replace('"pilot"', '"/nowhere"'), "no folder '/nowhere'"),
    ):
        reload(fleet, path, wrong)
        assert message in fleet.stderr and "the fleet stays as it was" in fleet.stderr
    reload(fleet, path, text)
    assert replicas(fleet) == before


def test_what_clients_have_loaded_a_new_replica_has_too(
    fleet: ServerProcess, path: Path, tmp_path: Path
) -> None:
    url = fleet.url()
    tensors = load_file(checkpoint() / "model.safetensors")
    folder = write_adapter(tmp_path, adapter_config(), adapter_tensors(tensors))
    order = {"lora_name": "later", "lora_path": str(folder), "base_model_name": "tiny"}
    loaded = httpx.post(f"{url}/v1/load_lora_adapter", json=order, timeout=30)
    assert loaded.status_code == 200, loaded.text
    body = {"model": "later", "prompt": list(range(5, 25)), "max_tokens": 12, "temperature": 0}

    def complete(model: str) -> str:
        asked = body | {"model": model, "ignore_eos": True}
        answer = httpx.post(f"{url}/v1/completions", json=asked, timeout=60)
        assert answer.status_code == 200, answer.text
        text: str = answer.json()["choices"][0]["text"]
        return text

    expected = complete("later")
    assert expected != complete("tiny")
    before = set(replicas(fleet))
    text = path.read_text()
    reload(fleet, path, text.replace('"8MiB"', '"8MiB"\nmax-num-seqs = 5'))
    wait_until(lambda: len(set(replicas(fleet)) - before) == 1 and len(replicas(fleet)) == 3)
    assert complete("later") == expected


def test_a_fleet_that_is_told_to_end_finishes_what_runs(tmp_path: Path) -> None:
    text = '[pools.chat]\nmodel = "pilot"\nkv-cache-memory = "64MiB"\n'
    with running(tmp_path / "fleet.toml", text) as fleet:
        url = fleet.url()
        children = replicas(fleet)
        expected = stream(url)
        assert stream(url, lambda: fleet.process.send_signal(signal.SIGTERM)) == expected
        assert fleet.end(30) == 0
        assert not any(map(psutil.pid_exists, children))


def test_no_replica_outlives_a_fleet_that_is_killed(tmp_path: Path) -> None:
    text = '[pools.chat]\nmodel = "pilot"\nreplicas = 2\nkv-cache-memory = "64MiB"\n'
    with running(tmp_path / "fleet.toml", text) as fleet:
        fleet.url()
        children = replicas(fleet)
        assert len(children) == 2
        fleet.process.kill()
        fleet.end()
        wait_until(lambda: not any(map(psutil.pid_exists, children)), 15)


def test_a_fleet_ends_with_its_terminal_and_reads_its_file_before(tmp_path: Path) -> None:
    path, log = tmp_path / "fleet.toml", tmp_path / "log"
    path.write_text('[pools.chat]\nmodel = "pilot"\nkv-cache-memory = "64MiB"\n')
    command = [sys.executable, "-m", "twostroke", "up", "--config", str(path), "--port", "0"]
    ours, theirs = pty.openpty()
    with log.open("wb") as errors:
        fleet = subprocess.Popen(
            ["setsid", "--ctty", *command],
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            stdin=theirs,
            stderr=errors,
        )
    try:
        os.close(theirs)
        wait_until(lambda: "curl" in log.read_text())
        children = started_by(fleet.pid, "twostroke.engine_process")
        fleet.send_signal(signal.SIGHUP)
        wait_until(lambda: "the fleet is as" in log.read_text())
        assert fleet.poll() is None and len(children) == 1
        os.close(ours)  # the terminal is gone
        assert fleet.wait(30) == 0
        assert not any(map(psutil.pid_exists, children))
    finally:
        fleet.kill()
        fleet.wait()


def test_requests_wait_for_a_pool_that_sleeps(tmp_path: Path) -> None:
    text = """
[pools.chat]
model = "pilot"
kv-cache-memory = "64MiB"
autoscale = "kv"
min-replicas = 0
max-replicas = 2
max-num-seqs = 2
autoscale-interval = 0.5
scale-down-after = 1
"""
    with running(tmp_path / "fleet.toml", text) as fleet:
        url = fleet.url()
        wait_until(lambda: "0 of 0 ready; replica 0 asleep" in fleet.stderr)
        wait_until(lambda: not replicas(fleet))
        assert httpx.get(f"{url}/health", timeout=30).status_code == 200
        with ThreadPoolExecutor() as threads:
            clients = [threads.submit(stream, url) for _ in range(6)]
            contents = [client.result(90) for client in clients]
        assert all(content == contents[0] for content in contents)
        # Whether it is ready before the answers are over depends on the machine.
        assert "replica 1 starts" in fleet.stderr
        wait_until(lambda: not replicas(fleet))


def test_what_cannot_be_is_said_at_once(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        path.write_text(f"[server]\nport = {port}\n[pools.a]\n")
        with running_process("-m", "twostroke", "up", "--config", str(path)) as fleet:
            assert fleet.end(60) != 0
            assert f"cannot listen on 127.0.0.1:{port}" in fleet.stderr
            assert f"--port {port % 65535 + 1}" in fleet.stderr
    with running(path, "[pools.chat]\nreplcas = 2\n") as fleet:
        assert fleet.end(60) != 0
        assert "there is no key 'replcas'" in fleet.stderr
        assert "did you mean replicas?" in fleet.stderr
