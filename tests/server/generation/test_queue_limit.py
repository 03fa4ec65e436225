"""`--max-queued-requests` over HTTP: a real engine on a slow executor, with a full queue."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx

from tests.fakes import FakeExecutor
from tests.text.tiny_tokenizers import byte_level
from twostroke.core.config import EngineConfig, SchedulerConfig
from twostroke.core.step import StepPlan, StepResult
from twostroke.engine.clients.thread import AsyncEngine
from twostroke.engine.llm_engine import LLMEngine
from twostroke.server.application import create_app
from twostroke.text.tokenizer import Tokenizer

BODY: dict[str, Any] = {"prompt": [1, 2, 3], "max_tokens": 8, "ignore_eos": True}


class SlowExecutor(FakeExecutor):
    def execute(self, plan: StepPlan) -> StepResult:
        time.sleep(0.02)
        return super().execute(plan)


async def test_a_full_queue_is_a_429_with_retry_after() -> None:
    config = EngineConfig(scheduler=SchedulerConfig(max_num_seqs=1))
    engine = AsyncEngine(
        LLMEngine(SlowExecutor(), Tokenizer(byte_level()), config), max_queued_requests=2
    )
    transport = httpx.ASGITransport(create_app(engine.loaded_model()))
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            responses = await asyncio.gather(
                *(client.post("/v1/completions", json=BODY) for _ in range(12))
            )
            again = await client.post("/v1/completions", json=BODY)
    finally:
        engine.close()
    refused = [response for response in responses if response.status_code == 429]
    served = [response for response in responses if response.status_code == 200]
    # Two wait, and one or more may have left the queue in the meantime.
    assert len(served) >= 2 and len(refused) >= 6
    assert len(served) + len(refused) == 12
    error = refused[0].json()["error"]
    assert (error["type"], error["code"], error["param"]) == (
        "rate_limit_error",
        "queue_full",
        None,
    )
    assert "--max-queued-requests" in error["message"]
    assert int(refused[0].headers["retry-after"]) >= 1
    assert {response.json()["usage"]["completion_tokens"] for response in served} == {8}
    assert again.status_code == 200


async def test_a_call_of_many_prompts_is_taken_whole_or_not_at_all() -> None:
    """With more prompts than may wait it was refused for ever, even by an idle server."""
    config = EngineConfig(scheduler=SchedulerConfig(max_num_seqs=2))
    engine = AsyncEngine(
        LLMEngine(SlowExecutor(), Tokenizer(byte_level()), config), max_queued_requests=2
    )
    transport = httpx.ASGITransport(create_app(engine.loaded_model()))
    many = {**BODY, "prompt": [[1, 2, i + 1] for i in range(8)]}
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            first = asyncio.ensure_future(client.post("/v1/completions", json=many))
            while engine.status.stats.num_waiting < 2 and not first.done():
                await asyncio.sleep(0.005)
            second = await client.post("/v1/completions", json=many)
            assert (second.status_code, (await first).status_code) == (429, 200)
            assert len((await first).json()["choices"]) == 8
    finally:
        engine.close()


def test_the_option_reaches_the_engine(monkeypatch: Any) -> None:
    """`twostroke serve` passes it on to the function that loads the engine."""
    import twostroke.cli.main
    import twostroke.server.process

    loads: list[Any] = []
    monkeypatch.setattr(
        twostroke.server.process,
        "run_server",
        lambda config, options, load, *_: loads.append(load),
    )
    assert twostroke.cli.main.run(["serve", "--max-queued-requests", "7"]) == 0
    assert loads[0].keywords["max_queued_requests"] == 7
    assert twostroke.cli.main.run(["serve", "--max-queued-requests", "0"]) == 2
