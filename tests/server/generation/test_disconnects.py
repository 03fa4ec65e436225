"""A client that leaves gives its blocks back before the next step, and ``/metrics`` says so."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest

from tests.fakes import FakeExecutor
from tests.server.running import running_server, wait_until
from tests.text.tiny_tokenizers import byte_level
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.step import StepPlan, StepResult
from twostroke.engine.clients.stream import AsyncStream
from twostroke.engine.clients.thread import AsyncEngine
from twostroke.engine.llm_engine import LLMEngine
from twostroke.text.tokenizer import Tokenizer

BODY = {"prompt": [1, 2, 3, 4, 5], "max_tokens": 100, "ignore_eos": True}


class GatedExecutor(FakeExecutor):
    """Runs a step only when it is let through."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Semaphore(0)
        self.steps = 0  # begun, those that wait at the gate included

    def execute(self, plan: StepPlan) -> StepResult:
        self.steps += 1
        self.gate.acquire()
        return super().execute(plan)


class WatchedEngine(AsyncEngine):
    """Records when the server has noticed that a client is gone: its request is aborted then."""

    def __init__(self, engine: LLMEngine) -> None:
        super().__init__(engine)
        self.noticed = threading.Event()

    def submit(self, request: GenerationRequest) -> AsyncStream:
        stream = super().submit(request)
        send_abort = stream._send_abort

        def abort() -> None:
            send_abort()
            self.noticed.set()

        stream._send_abort = abort
        return stream


@pytest.fixture
def executor() -> GatedExecutor:
    return GatedExecutor()


@pytest.fixture
def server(executor: GatedExecutor) -> Iterator[tuple[str, WatchedEngine]]:
    engine = WatchedEngine(LLMEngine(executor, Tokenizer(byte_level())))
    with running_server(engine) as url:
        yield url, engine
    executor.gate.release(1000)
    engine.close()


def metric(url: str, name: str) -> float:
    lines = httpx.get(url + "/metrics").text.splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(name + "{"))


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("steps", [0, 4])
def test_its_blocks_are_free_within_one_step(
    executor: GatedExecutor, server: tuple[str, WatchedEngine], streamed: bool, steps: int
) -> None:
    """Before its first token or amid its answer, streamed or not."""
    url, engine = server
    with send(url, {**BODY, "stream": streamed}) as connection:
        for _ in range(steps):
            executor.gate.release()
        wait_until(lambda: executor.steps == steps + 1)  # the next one has begun
        assert steps == 0 or metric(url, "vllm:kv_cache_usage_perc") > 0
        if streamed and steps:
            assert b"200 OK" in connection.recv(100)
    assert engine.noticed.wait(5)
    executor.gate.release()  # the step in flight ends, and there is none after it
    wait_until(lambda: metric(url, "vllm:num_requests_running") == 0)
    assert metric(url, "vllm:kv_cache_usage_perc") == 0
    assert executor.steps == steps + 1
    assert engine.status.stats.free_blocks == engine.info.num_blocks


def send(url: str, body: dict[str, object]) -> socket.socket:
    """A connection on which the request is under way; to close it is to leave."""
    address = urlsplit(url)
    connection = socket.create_connection((address.hostname, address.port), timeout=5)
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n"
    connection.sendall(f"{head}content-type: application/json\r\n\r\n".encode() + data)
    return connection
