"""Two calls of one key cannot have another key's calls refused as too late."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import pytest

from tests.gateway.test_queue_shares import QUIET, post, server_of_two_keys
from tests.server.running import wait_until
from twostroke.core.config import EngineConfig, ObservabilityConfig, PolicyName, SchedulerConfig

ENDLESS: dict[str, Any] = {"prompt": [3, 4, 5], "n": 128, "max_tokens": 380, "ignore_eos": True}


def config(policy: PolicyName, target: float) -> EngineConfig:
    return EngineConfig(
        scheduler=SchedulerConfig(policy=policy, max_num_seqs=16, admission="predicted"),
        observability=ObservabilityConfig(target=(f"ttft=p95:{target}",)),
    )


def send_endless(url: str) -> threading.Thread:
    def send() -> None:
        with contextlib.suppress(httpx.HTTPError):  # the server ends before the answers do
            post(url, "sk-flood", ENDLESS)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def test_a_light_key_is_served_beside_many_samples() -> None:
    """Under `fair`, two at a time, so that the second finds one of its own key waiting."""
    with server_of_two_keys(config=config("fair", 2.0)) as (url, client):
        threads = [send_endless(url) for _ in range(2)]
        # The second call waits behind the first, or is refused: both is right.
        wait_until(lambda: client.status.stats.num_waiting >= 100)
        with ThreadPoolExecutor(2) as pool:
            responses = list(pool.map(partial(post, url, "sk-quiet"), [QUIET] * 40))
    assert [response.status_code for response in responses] == [200] * 40, responses[0].text
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("policy", ["fcfs", "deadline"])
def test_a_key_with_nothing_waiting_is_let_in_under_any_policy(policy: PolicyName) -> None:
    """The prediction alone would refuse it: what waits takes longer than its target."""
    with server_of_two_keys(config=config(policy, 0.2)) as (url, client):
        flood = {**ENDLESS, "n": 40, "max_tokens": 40}
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(post, url, "sk-flood", flood)
            wait_until(lambda: client.status.stats.num_waiting > 0)
            assert post(url, "sk-quiet", QUIET).status_code == 200
            assert first.result().status_code == 200
