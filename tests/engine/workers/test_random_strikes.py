"""Protects: whatever is drawn to happen to workers' connections, each stream has its own tokens.

The larger version, with processes, models and HTTP: ``benchmarks/failover/random_kills.py``.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import ExitStack

import pytest

from tests.engine.process.scripted_process import call, tokens_of, undisturbed, until
from tests.engine.workers.cutting_proxy import CuttingProxy
from tests.engine.workers.routed import are_there, routed
from tests.engine.workers.scripted_worker import worker_on_thread
from twostroke.engine.process.replicas import Replicas

STALL_SECONDS = 0.4
REQUESTS = [
    call(kind, first=first, max_tokens=60, **params)
    for first in (1, 8, 9, 10)
    for kind, params in (
        (f"greedy {first}", {}),
        (f"sampled {first}", {"temperature": 1.0}),
        (f"three {first}", {"temperature": 1.0, "n": 3}),
    )
]


async def strike(proxies: list[CuttingProxy], drawn: random.Random) -> None:
    """Do one thing to one of the proxies, and undo it."""
    proxy, how = drawn.choice(proxies), drawn.choice(("cut", "full", "closed"))
    if how == "full":  # for less than the stall timeout, or for more
        proxy.flows.clear()
        await asyncio.sleep(drawn.choice((0.05, 2 * STALL_SECONDS)))
        proxy.flows.set()
        return
    proxy.is_open = how == "cut"
    proxy.cut()
    await asyncio.sleep(drawn.uniform(0.0, 0.2))
    proxy.is_open = True


async def disturb(replicas: Replicas, proxies: list[CuttingProxy], drawn: random.Random) -> None:
    """One strike after the other, each once both workers are there, for as long as it is let."""
    while True:
        await until(lambda: are_there(replicas))
        await asyncio.sleep(drawn.uniform(0.0, 0.05))
        await strike(proxies, drawn)


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOSTROKE_TEST_HUNG", "/nowhere")


@pytest.mark.parametrize("seed", range(3))
async def test_strikes_drawn_at_random_change_no_token_and_leave_no_block(seed: int) -> None:
    drawn = random.Random(seed)
    expected = [await undisturbed(request) for request in REQUESTS]
    with ExitStack() as stack:
        workers = [stack.enter_context(worker_on_thread()) for _ in range(2)]
        proxies = [CuttingProxy(worker.address) for worker in workers]
        for proxy in proxies:
            stack.callback(proxy.close)
        addresses = [proxy.address for proxy in proxies]
        replicas = stack.enter_context(routed(addresses, stall_seconds=STALL_SECONDS))
        await until(lambda: are_there(replicas))
        disturbing = asyncio.create_task(disturb(replicas, proxies, drawn))
        streams = [replicas.submit(request) for request in REQUESTS]
        async with asyncio.timeout(30):
            assert await asyncio.gather(*map(tokens_of, streams)) == expected
        disturbing.cancel()
        await asyncio.wait([disturbing])
        assert sum(replicas.candidates.num_failures.values()), "nothing was struck"
        for proxy in proxies:
            proxy.flows.set()
            proxy.is_open = True
        await until(lambda: not any(worker._engine.scheduler.requests for worker in workers))
