"""What a drain aborts ends as an error that clients repeat, not as half an answer."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio

from tests.fakes import FakeExecutor
from tests.text.tiny_tokenizers import byte_level
from twostroke.core.step import StepPlan, StepResult
from twostroke.engine.clients.thread import AsyncEngine
from twostroke.engine.llm_engine import LLMEngine
from twostroke.server.application import create_app
from twostroke.text.tokenizer import Tokenizer

STEP_SECONDS = 0.03
BODY = {"prompt": [1, 2, 3], "max_tokens": 100, "ignore_eos": True}


class SlowExecutor(FakeExecutor):
    """A hundred tokens take seconds, and each step lasts at least until ``gate`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()

    def execute(self, plan: StepPlan) -> StepResult:
        time.sleep(STEP_SECONDS)
        assert self.gate.wait(20)
        return super().execute(plan)


@pytest.fixture
def executor() -> SlowExecutor:
    return SlowExecutor()


@pytest_asyncio.fixture
async def engine(executor: SlowExecutor) -> AsyncIterator[AsyncEngine]:
    engine = AsyncEngine(LLMEngine(executor, Tokenizer(byte_level())))
    yield engine
    executor.gate.set()
    engine.close()


def client_for(engine: AsyncEngine) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(create_app(engine.loaded_model())), base_url="http://test/v1/"
    )


def tokens(engine: AsyncEngine) -> int:
    return sum(share.num_new_tokens for event in engine.events() for share in event.scheduled)


async def drain_when(engine: AsyncEngine, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)
    await engine.drain(0)


async def test_an_answer_that_is_cut_off_is_a_503(engine: AsyncEngine) -> None:
    async with client_for(engine) as client:
        answer = asyncio.create_task(client.post("completions", json=BODY))
        await drain_when(engine, lambda: engine.status.stats.num_running == 1)
        response = await asyncio.wait_for(answer, 5)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "shutting_down")
    assert int(response.headers["retry-after"]) > 0


async def test_a_stream_that_is_cut_off_ends_with_an_error(engine: AsyncEngine) -> None:
    """OpenAI's client raises it."""
    async with client_for(engine) as http:
        answer = asyncio.create_task(http.post("completions", json={**BODY, "stream": True}))
        await drain_when(engine, lambda: tokens(engine) > 2)
        response = await asyncio.wait_for(answer, 5)
    *chunks, error, done, end = response.text.split("\n\n")
    assert chunks  # at least: tokens that come while the event loop is late share one
    assert not any('"finish_reason":"abort"' in chunk for chunk in chunks)
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == "shutting_down"
    assert (done, end) == ("data: [DONE]", "")
    again = httpx.MockTransport(
        lambda _: httpx.Response(200, headers=response.headers, text=response.text)
    )
    answering: Any = httpx.AsyncClient(transport=again)
    # Newer clients are annotated with httpx2, and take both.
    client = openai.AsyncOpenAI(api_key="x", base_url="http://test/v1", http_client=answering)
    with pytest.raises(openai.APIError, match="shut down before the answer was complete"):
        async for _ in await client.completions.create(model="x", prompt="x", stream=True):
            pass


async def test_no_client_waits_for_a_long_step(engine: AsyncEngine, executor: SlowExecutor) -> None:
    """The server is gone 5 s later, and a step may take more: its clients saw the connection
    break.
    """
    executor.gate.clear()
    async with client_for(engine) as client:
        answer = asyncio.create_task(client.post("completions", json=BODY))
        async with asyncio.timeout(5):
            while not engine.status.stats.num_running + engine.status.stats.num_waiting:
                await asyncio.sleep(0.005)
        await engine.drain(0)
        response = await asyncio.wait_for(answer, 5)
    assert response.status_code == 503
    assert not executor.gate.is_set()  # the step is still under way
