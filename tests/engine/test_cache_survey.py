"""Protects: who looks at a large prefix cache does not hold up the requests that run."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes import FakeExecutor
from tests.server.running import wait_until
from twostroke.core.config import CacheConfig, EngineConfig
from twostroke.core.errors import InvalidRequestError
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.output import RequestOutput
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine import cache_admin
from twostroke.engine.cache_admin import CacheAdmin, SurveyedCache
from twostroke.engine.cache_orders import ShowCache
from twostroke.engine.clients.thread import AsyncEngine
from twostroke.engine.llm_engine import LLMEngine
from twostroke.kv_cache.prefix_book import OpenSurvey

NUM_BLOCKS, BLOCK = 40, 4


def call(request_id: str, prompt: list[int], max_tokens: int) -> GenerationRequest:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, detokenize=False, seed=0)
    return GenerationRequest(request_id=request_id, prompt_token_ids=prompt, params=params)


def make_engine() -> LLMEngine:
    return LLMEngine(FakeExecutor(2 * NUM_BLOCKS + 40, BLOCK, max_model_len=256))


async def fill(engine: AsyncEngine) -> None:
    async for _ in engine.submit(call("first", [1] * (NUM_BLOCKS * BLOCK), 1)):
        pass


async def test_steps_run_between_the_pieces_of_a_survey(monkeypatch: pytest.MonkeyPatch) -> None:
    """One piece, then one step, while a request runs."""
    happened: list[str] = []
    advance, step = CacheAdmin.advance, LLMEngine.step

    def noted_advance(self: CacheAdmin, survey: OpenSurvey) -> SurveyedCache | None:
        happened.append("piece")
        return advance(self, survey)

    def noted_step(self: LLMEngine) -> list[RequestOutput]:
        happened.append("step")
        return step(self)

    monkeypatch.setattr(cache_admin, "SURVEY_PIECE", 4)
    monkeypatch.setattr(CacheAdmin, "advance", noted_advance)
    monkeypatch.setattr(LLMEngine, "step", noted_step)
    engine = AsyncEngine(make_engine())
    try:
        await fill(engine)
        happened.clear()
        stream = engine.submit(call("other", [2] * 3, 60))
        report = await engine.manage_cache(ShowCache())
        async for _ in stream:
            pass
    finally:
        engine.close()
    first, last = happened.index("piece"), len(happened) - happened[::-1].index("piece")
    during = happened[first:last]
    assert during.count("piece") >= NUM_BLOCKS // 4
    assert during[:19] == ["piece", "step"] * 9 + ["piece"]
    (node,) = [node for node in report.prefixes if node.tokens >= NUM_BLOCKS * BLOCK - BLOCK]
    assert node.tiers == ["memory"]


async def test_a_survey_of_an_idle_engine_ends() -> None:
    """Also several at once, and one of an empty cache."""
    engine = AsyncEngine(make_engine())
    try:
        assert (await engine.manage_cache(ShowCache())).prefixes == []
        await fill(engine)
        reports = await asyncio.gather(*(engine.manage_cache(ShowCache()) for _ in range(3)))
        assert [len(report.prefixes) for report in reports] == [1, 1, 1]
        wait_until(lambda: engine.status.stats.num_running == 0)
    finally:
        engine.close()


async def test_what_goes_meanwhile_is_no_error() -> None:
    """A survey that is half done when the cache is emptied shows what it had copied."""
    llm = make_engine()
    llm.submit(call("a", [1] * (NUM_BLOCKS * BLOCK), 1))
    while llm.has_work():
        llm.step()
    survey = llm.cache.begin_survey(ShowCache())
    assert survey.advance(10) is None
    llm.scheduler.kv.clear()
    finished = survey.advance(1000)
    assert finished is not None
    tree = finished.tree()
    assert sum(node.tokens for node in tree.prefixes) == 10 * BLOCK and not tree.num_left_out


async def test_all_who_ask_at_once_share_a_survey(monkeypatch: pytest.MonkeyPatch) -> None:
    """One copy for each that asked took a gigabyte for 500 questions about a large cache."""
    begun: list[ShowCache] = []
    begin = CacheAdmin.begin_survey

    def noted(self: CacheAdmin, order: ShowCache) -> OpenSurvey:
        begun.append(order)
        return begin(self, order)

    monkeypatch.setattr(cache_admin, "SURVEY_PIECE", 1)
    monkeypatch.setattr(CacheAdmin, "begin_survey", noted)
    engine = AsyncEngine(make_engine())
    try:
        await fill(engine)
        orders = [ShowCache("a" if number % 2 else None) for number in range(100)]
        reports = await asyncio.gather(*map(engine.manage_cache, orders))
    finally:
        engine.close()
    assert len(begun) <= 4
    for order, report in zip(orders, reports, strict=True):
        assert len(report.prefixes) == (order.tenant is None)


async def test_a_survey_of_no_cache_is_refused() -> None:
    config = EngineConfig(cache=CacheConfig(enable_prefix_caching=False))
    engine = AsyncEngine(LLMEngine(FakeExecutor(), None, config))
    try:
        with pytest.raises(InvalidRequestError, match="keeps no prefixes"):
            await engine.manage_cache(ShowCache())
    finally:
        engine.close()
