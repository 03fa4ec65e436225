"""Starts scripted engines for the tests of what stands before them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.engine.process.scripted_engine import VERSION
from tests.fakes import FakeExecutor
from tests.text.tiny_tokenizers import byte_level
from twostroke.constraints.compiler import GrammarCompiler
from twostroke.core.config import EngineConfig
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.clients.stream import AsyncStream
from twostroke.engine.clients.thread import AsyncEngine
from twostroke.engine.llm_engine import LLMEngine
from twostroke.engine.process.engine_process import EngineProcess
from twostroke.engine.process.handshake import StartEngine
from twostroke.engine.process.process_link import ProcessLink, ProcessSource
from twostroke.text.tokenizer import Tokenizer

CONFIG = EngineConfig.from_flat({"kv_events": True})


def started(
    rank: int = 0,
    *,
    stall_seconds: float = 60.0,
    idle_seconds: float | None = None,
    seed: int | None = None,
) -> EngineProcess:
    """A client whose scripted engine runs."""
    config = replace(CONFIG, model=replace(CONFIG.model, seed=seed))
    source = ProcessSource(StartEngine(VERSION, config, rank=rank))
    tokenizer = Tokenizer(byte_level())
    return EngineProcess(
        source,
        source.start(),
        tokenizer=tokenizer,
        grammars=GrammarCompiler(tokenizer),
        stall_seconds=stall_seconds,
        idle_seconds=idle_seconds,
    )


def call(request_id: str, first: int = 1, **params: Any) -> GenerationRequest:
    fields = {"max_tokens": 40, "ignore_eos": True, "detokenize": False, "seed": 7, **params}
    return GenerationRequest(
        request_id=request_id,
        prompt_token_ids=[first, 2, 3, 4, 5, 6],
        params=SamplingParams(**fields),
    )


async def tokens_of(stream: AsyncStream) -> dict[int, list[int]]:
    """The tokens of each sample; none of them may end with an error."""
    tokens: dict[int, list[int]] = {}
    async for output in stream:
        assert output.error is None, output.error
        tokens.setdefault(output.index, []).extend(output.token_ids)
    return tokens


async def undisturbed(request: GenerationRequest) -> dict[int, list[int]]:
    """What an engine that nothing happens to gives a request."""
    engine = AsyncEngine(LLMEngine(FakeExecutor()))
    try:
        return await tokens_of(engine.submit(request))
    finally:
        engine.close()


def pid_of(engine: EngineProcess) -> int:
    """The process of the engine that runs, or ran last."""
    assert isinstance(engine._process, ProcessLink)
    return engine._process.pid


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)
