"""``twostroke route`` before two ``twostroke worker``: whichever is killed, clients see no byte."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine.workers.cutting_proxy import CuttingProxy
from tests.server.engines.many_streams import outcomes
from tests.server.engines.streamed_calls import chat_calls
from tests.server.engines.streamed_content import content_of
from tests.server.running import ServerProcess, running_process, wait_until
from twostroke.core.network.address import Address

CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": ("completions", {"prompt": "The river", "max_tokens": 300, "temperature": 0}),
    "samples": ("completions", {"prompt": "The river", "n": 3, "max_tokens": 300, "logprobs": 2}),
    "messages": (
        "messages",
        {"messages": [{"role": "user", "content": "What is a token?"}], "max_tokens": 300},
    ),
    **{kind: ("chat/completions", body) for kind, body in chat_calls(max_tokens=300).items()},
}
KILLED = ("plain", "samples")  # in the middle of these, which are long enough
ENGINE = ("--no-enable-prefix-caching", "--kv-cache-memory", "64MiB")


class Fleet:
    """A router, its workers, and what starts another worker in the place of one."""

    def __init__(self, stack: ExitStack, token: Path) -> None:
        self._stack, self._token = stack, token
        self.workers = [self._start("127.0.0.1:0") for _ in range(2)]
        self.addresses = [address_of(worker) for worker in self.workers]
        self.start_router()

    def start_router(self) -> None:
        """Start one, and wait for it and its workers."""
        flags = [f"--worker={address}" for address in self.addresses]
        flags += ["--token-file", str(self._token), "--port", "0", "--router", "least-loaded"]
        flags += ["--slow-start", "0", "--max-queued-requests", "2048"]
        self.router = self._stack.enter_context(running_process("-m", "twostroke", "route", *flags))
        self.url = self.router.url()
        wait_until(self.all_there)

    def all_there(self) -> bool:
        """Whether the router has both workers, as its metrics say."""
        text = httpx.get(self.url + "/metrics", timeout=30).text
        return len(re.findall(r"^twostroke:engine_up\{.*\} 1\.0$", text, re.MULTILINE)) == 2

    def _start(self, address: str) -> ServerProcess:
        flags = ["--listen", address, "--token-file", str(self._token), *ENGINE]
        return self._stack.enter_context(running_process("-m", "twostroke", "worker", *flags))

    def num_there(self) -> int:
        """Workers that the router has a connection to."""
        there = "front end 127.0.0.1:[0-9]+ is here"
        return sum(
            w.process.poll() is None and bool(re.search(there, w.stderr)) for w in self.workers
        )

    def kill_busy(self) -> None:
        """End the worker that has a request, without a word."""
        text = httpx.get(self.url + "/metrics", timeout=30).text
        found = re.search(r'num_requests_running\{engine="[^"]*:(\d+)".*\} [1-9]', text)
        assert found is not None
        ports = [address.rpartition(":")[2] for address in self.addresses]
        worker = self.workers[ports.index(found[1])]
        worker.process.kill()
        worker.end()

    def replace_dead(self) -> None:
        for index, worker in enumerate(self.workers):
            if worker.process.poll() is not None:
                self.workers[index] = self._start(self.addresses[index])
        wait_until(lambda: self.num_there() == 2)
        wait_until(lambda: self.health().status_code == 200)

    def blocks_in_use(self) -> float:
        """Share of the KV blocks that requests hold, of all workers together."""
        text = httpx.get(self.url + "/metrics", timeout=30).text
        shares = re.findall(r"^vllm:kv_cache_usage_perc\{.*\} (.*)$", text, re.MULTILINE)
        assert len(shares) == 2
        return sum(map(float, shares))

    def health(self) -> httpx.Response:
        return httpx.get(self.url + "/health", timeout=30)


def address_of(worker: ServerProcess) -> str:
    wait_until(lambda: " listens on " in worker.stderr)
    found = re.search(r"listens on (\S+)", worker.stderr)
    assert found is not None
    return found[1]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    token = tmp_path_factory.mktemp("fleet") / "token"
    token.write_text("a secret of the fleet\n")
    with ExitStack() as stack:
        made = Fleet(stack, token)
        yield made
        made.router.process.send_signal(signal.SIGTERM)
        assert made.router.end() == 0
        for worker in made.workers:
            if worker.process.poll() is None:
                worker.process.send_signal(signal.SIGTERM)
                assert worker.end() == 0
        logs = made.router.stderr + "".join(worker.stderr for worker in made.workers)
        assert "a secret of the fleet" not in logs


@pytest.fixture(scope="module")
def alone() -> Iterator[str]:
    """One process, whose answers are those that a fleet must give."""
    with running_process("-m", "twostroke", "serve", "--port", "0", *ENGINE) as server:
        yield server.url()


def stream(url: str, name: str, fleet: Fleet | None = None) -> list[str]:
    """The events of a call; with a fleet, its busy worker is killed in the middle."""
    route, body = CALLS[name]
    body = {"model": "pilot", "temperature": 0.9, "stream": True, **body}
    body |= {"temperature": 0} if route == "messages" else {"seed": 11}
    body |= {"ignore_eos": True} if name in KILLED else {}
    lines: list[str] = []
    with httpx.stream("POST", f"{url}/v1/{route}", json=body, timeout=60) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if line.startswith("data"):
                lines.append(line)
            if fleet is not None and len(lines) == 12:
                fleet.kill_busy()
                fleet = None
    assert fleet is None, "it was over before"
    return lines


@pytest.mark.parametrize("name", CALLS)
def test_a_fleet_answers_as_one_process(fleet: Fleet, alone: str, name: str) -> None:
    assert content_of(stream(fleet.url, name)) == content_of(stream(alone, name))


def test_a_worker_is_killed_in_the_middle_of_a_chat(fleet: Fleet, alone: str) -> None:
    for name in KILLED:
        assert content_of(stream(fleet.url, name, fleet)) == content_of(stream(alone, name))
        assert fleet.health().status_code == 200
        fleet.replace_dead()


def test_all_workers_die_and_come_back(fleet: Fleet) -> None:
    for worker in fleet.workers:
        worker.process.kill()
        worker.end()
    wait_until(lambda: fleet.health().status_code == 503)
    assert all(address in fleet.health().text for address in fleet.addresses)
    body = {"model": "pilot", "prompt": "a"}
    refused = httpx.post(fleet.url + "/v1/completions", json=body, timeout=30)
    assert refused.status_code == 503 and "worker" in refused.text
    fleet.replace_dead()
    answered = httpx.post(fleet.url + "/v1/completions", json=body, timeout=30)
    assert answered.status_code == 200
    metrics = httpx.get(fleet.url + "/metrics", timeout=30).text
    labels = set(re.findall(r'num_requests_running\{engine="([^"]+)"', metrics))
    assert len(labels) == 2, "each worker has series of its own"


@pytest.mark.parametrize("number", [200, 400])
def test_many_streams_at_once_are_all_answered(fleet: Fleet, number: int) -> None:
    """No 503 that capacity does not explain: the queue has room for all of them."""
    body = {"model": "pilot", "prompt": "The river", "max_tokens": 2, "ignore_eos": True}
    assert asyncio.run(outcomes(fleet.url, body, number)) == {"whole": number}
    assert fleet.blocks_in_use() == 0


def test_a_router_that_is_killed_leaves_no_block_behind(fleet: Fleet, alone: str) -> None:
    """Its streams end with it; workers keep their models, and serve the next router."""
    route, body = CALLS["plain"]
    body = {"model": "pilot", "stream": True, **body, "max_tokens": 2000, "ignore_eos": True}
    cut = pytest.raises((httpx.RemoteProtocolError, httpx.ReadError))
    with cut, httpx.stream("POST", f"{fleet.url}/v1/{route}", json=body, timeout=60) as answer:
        for number, _ in enumerate(answer.iter_lines()):
            if number == 12:
                fleet.router.process.kill()
    fleet.router.end()
    pids = [worker.process.pid for worker in fleet.workers]
    fleet.start_router()
    assert [worker.process.pid for worker in fleet.workers] == pids
    assert fleet.blocks_in_use() == 0
    assert content_of(stream(fleet.url, "plain")) == content_of(stream(alone, "plain"))


def test_a_router_that_is_stopped_for_a_while_changes_no_byte(fleet: Fleet, alone: str) -> None:
    """Its workers go on meanwhile, until its socket is full."""
    expected = content_of(stream(alone, "samples"))
    route, body = CALLS["samples"]
    body = {"model": "pilot", "temperature": 0.9, "seed": 11, "ignore_eos": True, **body}
    lines: list[str] = []
    url = f"{fleet.url}/v1/{route}"
    with httpx.stream("POST", url, json={**body, "stream": True}, timeout=60) as answer:
        for line in answer.iter_lines():
            lines += [line] if line.startswith("data") else []
            if len(lines) == 12:
                fleet.router.process.send_signal(signal.SIGSTOP)
                time.sleep(1.0)
                fleet.router.process.send_signal(signal.SIGCONT)
    assert content_of(lines) == expected


def test_clients_whose_connections_are_cut_leave_no_block_behind(fleet: Fleet) -> None:
    proxy = CuttingProxy(Address.parse(fleet.url.removeprefix("http://")))
    route, body = CALLS["plain"]
    body = {"model": "pilot", "stream": True, **body, "max_tokens": 2000, "ignore_eos": True}
    for how in ("cut", "full"):
        cut = pytest.raises((httpx.RemoteProtocolError, httpx.ReadError))
        url = f"http://{proxy.address}/v1/{route}"
        with cut, httpx.stream("POST", url, json=body, timeout=60) as answer:
            for number, _ in enumerate(answer.iter_lines()):
                if number == 12 and how == "full":  # nothing is read for a while, then it ends
                    proxy.flows.clear()
                    time.sleep(0.5)
                    threading.Timer(0.2, proxy.flows.set).start()
                if number == 12:
                    proxy.cut()
        wait_until(lambda: fleet.blocks_in_use() == 0)
    proxy.close()


def health_at(port: int) -> str:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", timeout=30).text
    except httpx.ConnectError:
        return ""


def test_a_router_waits_for_its_workers_and_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    flags = ["--worker", "127.0.0.1:1", "--port", str(port)]
    with running_process("-m", "twostroke", "route", *flags) as router:
        wait_until(lambda: "worker 127.0.0.1:1 cannot be reached" in health_at(port))
        assert '"loading"' in health_at(port)
        body = {"model": "pilot", "prompt": "a"}
        refused = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=30)
        assert refused.status_code == 503 and "no worker is there yet" in refused.text
        router.process.send_signal(signal.SIGTERM)
        assert router.end() == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["worker", "--listen", "0.0.0.0:0"], "is reached from other machines"),
        (["worker", "--kv-events"], "--kv-events are not passed on"),
        (["worker", "--target-file", "x"], "--target-file is not read by a router"),
        (["worker", "--token-file", "/nowhere"], "cannot read --token-file /nowhere"),
        (["route"], "a router needs workers"),
        (["route", "--worker", "127.0.0.1:1", "--engine-process"], "--engine-process needs an"),
    ],
)
def test_flags_that_cannot_hold_are_refused(arguments: list[str], message: str) -> None:
    with running_process("-m", "twostroke", *arguments) as process:
        assert process.end(60) != 0
        assert message in process.stderr


def test_another_token_is_refused_by_name(fleet: Fleet) -> None:
    flags = ["--listen", "127.0.0.1:0", "--kv-cache-memory", "64MiB"]
    with running_process("-m", "twostroke", "worker", "pilot", *flags) as worker:
        address = address_of(worker)
        arguments = ["route", "--worker", address, "--token-file", str(fleet._token)]
        with running_process("-m", "twostroke", *arguments) as router:
            assert router.end(30) != 0
            assert "has another token than this worker" in router.stderr
