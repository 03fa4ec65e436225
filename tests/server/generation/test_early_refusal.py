"""`--admission predicted` over HTTP: a real engine with more requests than it can begin in time."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx

from tests.fakes import FakeExecutor
from tests.server.tiny import tiny_engine
from tests.text.tiny_tokenizers import byte_level
from twostroke.core.config import EngineConfig, ObservabilityConfig, SchedulerConfig
from twostroke.core.step import StepPlan, StepResult
from twostroke.engine.clients.thread import AsyncEngine
from twostroke.engine.llm_engine import LLMEngine
from twostroke.server.application import create_app
from twostroke.text.tokenizer import Tokenizer

BODY: dict[str, Any] = {"prompt": [1, 2, 3], "max_tokens": 8, "ignore_eos": True, "stream": True}
TARGET = ObservabilityConfig(target=("ttft=p95:0.2",))


class SlowExecutor(FakeExecutor):
    def execute(self, plan: StepPlan) -> StepResult:
        time.sleep(0.01)
        return super().execute(plan)


def slow_engine(**scheduler: Any) -> AsyncEngine:
    """A request takes 80 ms, and two run at once."""
    settings = SchedulerConfig(**{"max_num_seqs": 2, "admission": "predicted", **scheduler})
    config = EngineConfig(scheduler=settings, observability=TARGET)
    return AsyncEngine(LLMEngine(SlowExecutor(), Tokenizer(byte_level()), config))


async def flood(
    engine: AsyncEngine, count: int, pause: float = 0.005, **fields: Any
) -> list[httpx.Response]:
    transport = httpx.ASGITransport(create_app(engine.loaded_model()))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        calls = []
        for _ in range(count):
            calls.append(asyncio.create_task(client.post("/v1/completions", json=BODY | fields)))
            await asyncio.sleep(pause)
        return await asyncio.wait_for(asyncio.gather(*calls), 20)


async def test_what_would_be_late_is_refused_at_once() -> None:
    """All are answered, the refused ones with 429, and metrics and step events say why."""
    engine = slow_engine()
    try:
        responses = await flood(engine, 60)
        metrics = (await engine.records()).metrics.decode()
        events = engine.events()
        later = await flood(engine, 1)
    finally:
        engine.close()
    refused = [response for response in responses if response.status_code == 429]
    assert {response.status_code for response in responses} == {200, 429}
    assert 10 <= len(refused) < 60
    error = refused[0].json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "predicted_late")
    assert "its target is 0.2 s" in error["message"] and "deadline_ms" in error["message"]
    assert 1 <= int(refused[0].headers["retry-after"]) <= 60
    assert "twostroke:requests_refused_total{" in metrics
    told = [one for event in events for one in event.refused]
    assert told and all(one.predicted_ttft > 0.2 == one.ttft_target for one in told)
    assert all(one.ahead > 0 for one in told)
    assert [response.status_code for response in later] == [200]


async def test_more_time_lets_a_request_in() -> None:
    engine = slow_engine()
    try:
        both = await asyncio.gather(
            flood(engine, 50), flood(engine, 20, 0.0125, deadline_ms=60_000)
        )
    finally:
        engine.close()
    assert {response.status_code for response in both[1]} == {200}
    assert 429 in {response.status_code for response in both[0]}


async def test_deadlines_are_refused_where_nothing_goes_by_them() -> None:
    with tiny_engine() as engine:
        responses = await flood(engine, 1, deadline_ms=100)
    assert responses[0].status_code == 400
    assert responses[0].json()["error"]["param"] == "deadline_ms"
    assert "--policy deadline" in responses[0].json()["error"]["message"]


async def test_a_deadline_out_of_range_names_the_field() -> None:
    with tiny_engine(policy="deadline") as engine:
        for value in (0, -5, 10**9, "soon", 1.5):
            (response,) = await flood(engine, 1, deadline_ms=value)
            assert response.status_code == 400
            assert response.json()["error"]["param"] == "deadline_ms"
        (response,) = await flood(engine, 1, deadline_ms=1, stream=False)
        assert response.status_code == 200
        assert engine.status.stats.num_waiting == 0


async def test_answers_do_not_depend_on_policy_nor_budget() -> None:
    """The same seeds, under a target that no step can meet: every prompt in the least chunks."""
    bodies = {"temperature": 1.0, "seed": 5, "stream": False, "prompt": list(range(1, 120))}
    texts = []
    settings: dict[str, Any] = {"policy": "deadline", "tpot_target": 1e-4}
    for flags in ({}, settings | {"admission": "predicted"}):
        with tiny_engine(**flags) as engine:
            responses = await flood(engine, 6, 0.0, **bodies)
        texts.append([response.json()["choices"][0]["text"] for response in responses])
    assert texts[0] == texts[1]
