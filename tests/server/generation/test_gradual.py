"""Many prompts of one call are submitted a few at a time, and none is left where one is refused."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from tests.server.scripted import ScriptedEngine, ScriptedStream
from twostroke.core.errors import InvalidRequestError
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.pooling import PoolingParams
from twostroke.gateway.caller import Caller
from twostroke.server.generation.generation import PROMPTS_AT_ONCE, Generation
from twostroke.server.openai.embeddings.pooling_fields import pooling_request
from twostroke.server.state.served_model import ServedModel


class RefusingEngine(ScriptedEngine):
    refused_id = ""

    def submit(self, request: GenerationRequest) -> ScriptedStream:
        if request.request_id == self.refused_id:
            raise InvalidRequestError("no")
        return super().submit(request)


def generation_of(engine: ScriptedEngine, count: int) -> Generation:
    requests = [pooling_request(str(i), [1, 2], PoolingParams()) for i in range(count)]
    model = ServedModel(engine.loaded_model(), ("m",))
    return Generation(model, Caller(), "embd-1", requests, streamed=False, gradual=True)


async def test_other_work_gets_its_turn_in_between() -> None:
    engine = ScriptedEngine()
    generation = generation_of(engine, 300)
    seen = [0]

    async def watch() -> None:
        while len(engine.submitted) < 300:
            seen.append(len(engine.submitted))
            await asyncio.sleep(0)

    await asyncio.gather(watch(), generation.submit_rest())
    assert len(engine.submitted) == 300
    assert max(after - before for before, after in pairwise(seen)) <= PROMPTS_AT_ONCE
    generation.abort()


async def test_a_refusal_leaves_nothing_running() -> None:
    engine = RefusingEngine()
    engine.refused_id = "40"
    generation = generation_of(engine, 60)
    with pytest.raises(InvalidRequestError):
        await generation.submit_rest()
    assert len(engine.submitted) == 40
    assert sorted(engine.aborted) == sorted(request.request_id for request in engine.submitted)


async def test_a_cancelled_call_leaves_nothing_running() -> None:
    engine = ScriptedEngine()
    task = asyncio.ensure_future(generation_of(engine, 300).submit_rest())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert 0 < len(engine.submitted) < 300
    assert len(engine.aborted) == len(engine.submitted)
