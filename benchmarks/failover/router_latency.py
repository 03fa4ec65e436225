"""What a router adds to the time to first token at one request, and TCP to a message.

    python -m benchmarks.failover.router_latency [--requests N]

The embedded model, three ways: ``serve`` in one process, ``serve --engine-process`` (a Unix
socket), and ``route`` before one ``worker`` (TCP on loopback). They take turns, one request at a
time, so that what else the machine does meets all of them alike. Writes
benchmarks/results/router_latency.json and .md.
"""

from __future__ import annotations

import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import cyclopts
import httpx

from benchmarks.environment import OtherPrograms, environment, environment_text, write_record
from benchmarks.server import free_port, running_server
from twostroke.core.network.address import watch_connection
from twostroke.engine.messages import AbortRequest
from twostroke.engine.process.frames import encode_frame, receive_frame

RESULTS = Path(__file__).parents[1] / "results"
CACHE = ("--kv-cache-memory", "64MiB")
BODY = {
    "model": "pilot",
    "messages": [{"role": "user", "content": "What is the KV cache?"}],
    "max_tokens": 4,
    "temperature": 0,
    "stream": True,
}


def main(*, requests: int = 400, rounds: int = 20_000, out: Path = RESULTS) -> None:
    """Measure and record.

    Args:
        requests: Of each way.
        rounds: Messages there and back of each kind of socket.
        out: Folder for the record.
    """
    other_programs = OtherPrograms()
    with tempfile.TemporaryDirectory(prefix="twostroke-router-") as name:
        times = first_tokens(Path(name), requests)
    trips = {kind: round_trip(pair, rounds) for kind, pair in socket_pairs().items()}
    base = tenths(times["one process"])[0]
    lines = [
        "| first token of one request, ms | fastest tenth | added | median | slowest tenth |",
        "|---|--:|--:|--:|--:|",
    ]
    for way, seconds in times.items():
        fast, *_, median, _, _, _, slow = tenths(seconds)
        lines.append(f"| {way} | {fast:.2f} | {fast - base:+.2f} | {median:.2f} | {slow:.2f} |")
    lines += ["", "| message there and back | median us | 99 % |", "|---|--:|--:|"]
    for kind, seconds in trips.items():
        median, slow = statistics.median(seconds), statistics.quantiles(seconds, n=100)[-1]
        lines.append(f"| {kind} | {1e6 * median:.1f} | {1e6 * slow:.1f} |")
    command = shlex.join(["python", "-m", "benchmarks.failover.router_latency", *sys.argv[1:]])
    where = environment(command, other_programs.share())
    text = environment_text(where) + "\n" + "\n".join(lines) + "\n"
    print("\n".join(lines))
    record: dict[str, Any] = {
        "environment": where,
        "first_token_seconds": times,
        "round_trip_seconds": {k: statistics.quantiles(v, n=100) for k, v in trips.items()},
    }
    write_record(out / "router_latency", "What a router adds", text, record)


def tenths(seconds: list[float]) -> list[float]:
    """Nine numbers that cut the times into tenths, in milliseconds.

    The first is the one to compare where other programs run beside.
    """
    return [1e3 * each for each in statistics.quantiles(seconds, n=10)]


def first_tokens(folder: Path, number: int) -> dict[str, list[float]]:
    """Seconds to the first token of each request, by how the model is served."""
    with ExitStack() as stack:
        serve = [
            stack.enter_context(running_server("pilot", folder / f"{index}.log", *CACHE, *flags))
            for index, flags in enumerate(((), ("--engine-process",)))
        ]
        router = stack.enter_context(running_router(folder))
        ways = dict(
            zip(
                ("one process", "engine process, Unix socket", "router and worker, TCP"),
                (serve[0].url, serve[1].url, router),
                strict=True,
            )
        )
        clients = {
            way: stack.enter_context(httpx.Client(base_url=url, trust_env=False, timeout=60))
            for way, url in ways.items()
        }
        times: dict[str, list[float]] = {way: [] for way in ways}
        for index in range(number + 20):
            for way, client in clients.items():
                seconds = first_token(client)
                if index >= 20:  # connections are open, and caches warm
                    times[way].append(seconds)
    return times


def first_token(client: httpx.Client) -> float:
    began, seconds = time.perf_counter(), 0.0
    with client.stream("POST", "/v1/chat/completions", json=BODY) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if not seconds and '"content":"' in line and '"content":""' not in line:
                seconds = time.perf_counter() - began
    assert seconds, "no token came"
    return seconds


@contextmanager
def running_router(folder: Path, num_workers: int = 1, flags: Sequence[str] = ()) -> Iterator[str]:
    """The URL of a router before workers, all as processes of their own."""
    addresses, port = [f"127.0.0.1:{free_port()}" for _ in range(num_workers)], free_port()
    commands: list[tuple[str, ...]] = [
        ("worker", "pilot", "--listen", address, *CACHE) for address in addresses
    ]
    workers = [f"--worker={address}" for address in addresses]
    commands.append(("route", "pilot", *workers, "--port", str(port), *flags))
    processes = []
    try:
        for command in commands:
            with (folder / f"{command[0]}.log").open("wb") as log:
                processes.append(
                    subprocess.Popen([sys.executable, "-m", "twostroke", *command], stderr=log)
                )
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 60
        while not is_well(url):
            assert time.monotonic() < deadline, "the router is not ready"
            time.sleep(0.05)
        yield url
    finally:
        for process in processes:
            process.kill()
            process.wait()


def is_well(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", trust_env=False, timeout=60).status_code == 200
    except httpx.ConnectError:
        return False


def socket_pairs() -> dict[str, tuple[socket.socket, socket.socket]]:
    """Two connected ends of each kind."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    for each in (near, far):
        watch_connection(each)
    return {"Unix socket": socket.socketpair(), "TCP on loopback": (near, far)}


def round_trip(pair: tuple[socket.socket, socket.socket], number: int) -> list[float]:
    """Seconds for a small message there, and as many bytes back, between two threads."""
    near, far = pair
    sent = encode_frame(AbortRequest("a request's id, as long as they are"))

    def answer() -> None:
        while receive_frame(far) is not None:
            far.sendall(sent)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    times = []
    for _ in range(number):
        began = time.perf_counter()
        near.sendall(sent)
        receive_frame(near)
        times.append(time.perf_counter() - began)
    near.shutdown(socket.SHUT_RDWR)
    thread.join()
    for each in pair:
        each.close()
    return times


if __name__ == "__main__":
    cyclopts.run(main)
