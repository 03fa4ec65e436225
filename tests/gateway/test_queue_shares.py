"""Two calls of one key fill the queue: another key is neither refused nor kept waiting."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import httpx

from tests.fakes import FakeExecutor
from tests.machine_speed import slowness
from tests.server.running import running_server, wait_until
from tests.text.tiny_tokenizers import byte_level
from twostroke.core.config import EngineConfig, SchedulerConfig
from twostroke.core.step import StepPlan, StepResult
from twostroke.engine.clients.thread import AsyncEngine
from twostroke.engine.llm_engine import LLMEngine
from twostroke.gateway.gateway import Gateway
from twostroke.gateway.options import GatewayOptions
from twostroke.server.options import ServerOptions
from twostroke.text.tokenizer import Tokenizer

NUM_SAMPLES = 1024
FLOOD: dict[str, Any] = {
    "prompt": [[3, 4, 5]] * 8,
    "n": NUM_SAMPLES // 8,
    "max_tokens": 200,
    "ignore_eos": True,
}
QUIET: dict[str, Any] = {"prompt": [5, 6, 7], "max_tokens": 1, "ignore_eos": True}


class PacedExecutor(FakeExecutor):
    """A step takes what it would on a machine that is no faster with few tokens than with many."""

    def execute(self, plan: StepPlan) -> StepResult:
        time.sleep(0.01)
        return super().execute(plan)


@contextmanager
def server_of_two_keys(
    max_queued_requests: int = ServerOptions().max_queued_requests,
    config: EngineConfig | None = None,
    **gateway: Any,
) -> Iterator[tuple[str, AsyncEngine]]:
    engine = LLMEngine(
        PacedExecutor(4000, max_model_len=400),
        Tokenizer(byte_level()),
        config or EngineConfig(scheduler=SchedulerConfig(policy="fair", max_num_seqs=16)),
    )
    client = AsyncEngine(engine, max_queued_requests=max_queued_requests)
    keys = Gateway(GatewayOptions(api_key=("sk-quiet", "sk-flood"), **gateway))
    with running_server(client, gateway=keys) as url:
        try:
            yield url, client
        finally:
            client.close()


def post(url: str, key: str, body: dict[str, Any]) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=60)


def ask_quietly(url: str, times: int) -> tuple[list[int], float]:
    """Statuses of one-token answers, one after another, and the median of their seconds."""
    statuses, seconds = [], []
    for _ in range(times):
        began = time.monotonic()
        statuses.append(post(url, "sk-quiet", QUIET).status_code)
        seconds.append(time.monotonic() - began)
    return statuses, median(seconds)


@contextmanager
def flooded(url: str, client: AsyncEngine) -> Iterator[None]:
    def send() -> None:
        with contextlib.suppress(httpx.HTTPError):  # it is cut off when enough has been seen
            post(url, "sk-flood", FLOOD)

    threads = [threading.Thread(target=send) for _ in range(2)]
    for thread in threads:
        thread.start()
    wait_until(lambda: client.status.stats.num_waiting > NUM_SAMPLES // 2)
    try:
        yield
        assert client.status.stats.num_waiting > NUM_SAMPLES // 2, "the flood had dried up"
    finally:
        client.close()
        for thread in threads:
            thread.join()


def test_a_full_queue_of_one_key_refuses_no_other() -> None:
    """Two calls locked all other keys out: 143 of 143 of their requests got a 429."""
    with server_of_two_keys(requests_per_minute=100) as (url, client):
        _, alone = ask_quietly(url, 10)
        with flooded(url, client):
            statuses, beside = ask_quietly(url, 20)
            assert statuses == [200] * 20
            # A few steps: it is boosted, but the samples of the flood share its first ones.
            assert beside < 5 * alone + 0.2 * slowness()
            many = post(url, "sk-quiet", {**QUIET, "prompt": [[5, 6, 7]] * 16, "n": 4})
            assert many.status_code == 200, many.text
            refused = post(url, "sk-flood", FLOOD)
            error = refused.json()["error"]
            assert (refused.status_code, error["code"]) == (429, "queue_full"), error
            assert int(refused.headers["retry-after"]) >= 1
            assert "this call adds 1024 (prompts times n)" in error["message"]
            assert "send fewer prompts or a lower n" in error["message"]
            assert "--max-queued-requests" in error["message"]


def test_a_call_larger_than_the_queue_is_taken_by_an_idle_server() -> None:
    """Of one key alone: it has nothing waiting, so that nothing is gained by refusing it."""
    with server_of_two_keys(max_queued_requests=10) as (url, _):
        response = post(url, "sk-quiet", {**QUIET, "n": 100})
        assert response.status_code == 200 and len(response.json()["choices"]) == 100
