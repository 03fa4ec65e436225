"""Protects: limits of a key hold for several routers together, which share Redis and no more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.gateway.redis_servers import has_redis, mortal_redis
from tests.server.engines.test_route import ENGINE, address_of
from tests.server.running import running_process

LIMIT = 5


@pytest.fixture
def routers(tmp_path: Path) -> Iterator[list[str]]:
    """Two routers, each with a worker of its own; a real Redis, where one is installed."""
    with ExitStack() as stack:
        storage = stack.enter_context(mortal_redis("real" if has_redis() else "fake", tmp_path))
        flags = ["--listen", "127.0.0.1:0", *ENGINE]
        workers = [
            stack.enter_context(running_process("-m", "twostroke", "worker", *flags))
            for _ in range(2)
        ]
        limits = ["--api-key", "a-key-of-the-test", "--requests-per-minute", str(LIMIT)]
        limits += ["--rate-limit-storage", storage.url, "--port", "0"]
        made = [
            stack.enter_context(
                running_process(
                    *("-m", "twostroke", "route", f"--worker={address_of(worker)}", *limits)
                )
            )
            for worker in workers
        ]
        yield [router.url() for router in made]


def test_limits_hold_for_both_routers_together(routers: list[str]) -> None:
    body = {"model": "pilot", "prompt": "a", "max_tokens": 2}
    headers = {"authorization": "Bearer a-key-of-the-test"}
    answers = [
        httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=60)
        for _ in range(LIMIT)
        for url in routers
    ]
    assert [answer.status_code for answer in answers[:LIMIT]] == [200] * LIMIT
    # The minute may end meanwhile on a busy machine; alone, each router would let all of them in.
    assert Counter(answer.status_code for answer in answers)[429] >= 1
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert f"{LIMIT} requests per minute" in refused.text
