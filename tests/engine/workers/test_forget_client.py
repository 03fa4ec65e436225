"""Protects: a worker's engine keeps nothing of one front end that would mislead the next."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.engine.process.scripted_process import call
from tests.fakes import FakeExecutor
from twostroke.core.config import EngineConfig
from twostroke.core.generation_request import GenerationRequest
from twostroke.engine.cache_orders import PinPrefix
from twostroke.engine.llm_engine import LLMEngine
from twostroke.engine.workers.run_worker import FrontEndClock
from twostroke.observability.events import RefusedRequest

REFUSED = RefusedRequest(
    request_id="refused", tenant="", predicted_ttft=9.0, ttft_target=1.0, factor=1.0, ahead=3
)
PROMPT = [number % 40 + 1 for number in range(64)]


def asked(request_id: str) -> GenerationRequest:
    return replace(call(request_id, max_tokens=3), prompt_token_ids=PROMPT)


def run(engine: LLMEngine, request_id: str) -> None:
    engine.submit(asked(request_id))
    while engine.has_work():
        engine.step()


@pytest.mark.parametrize("caches", [True, False])
def test_early_refusal_goes_on_with_and_without_a_prefix_cache(caches: bool) -> None:
    config = EngineConfig.from_flat({"admission": "predicted", "enable_prefix_caching": caches})
    engine = LLMEngine(FakeExecutor(), config=config)
    for request_id in ("a", "b"):
        run(engine, request_id)
        engine.submit(asked("left"))
        engine.forget_client()
        assert not engine.has_work()
        told, cached = engine.index_log.take(), engine.scheduler.kv.pool.cached()
        assert told is not None and told.cleared and set(told.stored) == set(cached)
        assert bool(cached) is caches, "what is cached stays, and the next client knows"


def test_what_is_cached_is_noted_only_where_a_client_is_told_of_it() -> None:
    """Without a client the notes would grow for as long as the engine runs."""
    engine = LLMEngine(FakeExecutor())
    run(engine, "a")
    assert "index_log" not in vars(engine)
    told, cached = engine.index_log.take(), engine.scheduler.kv.pool.cached()
    assert told is not None and set(told.stored) == set(cached) != set()
    engine.submit(replace(asked("b"), prompt_token_ids=PROMPT[::-1]))
    while engine.has_work():
        engine.step()
    told, then = engine.index_log.take(), engine.scheduler.kv.pool.cached()
    assert told is not None and not told.cleared and set(told.stored) == set(then) - set(cached)


@pytest.mark.parametrize(("first", "then"), [(1e6, 0.0), (0.0, 1e7)])
def test_pins_and_targets_end_with_the_clock_that_they_go_by(first: float, then: float) -> None:
    config = EngineConfig.from_flat({"target": ("ttft=p50:1", "queue=p99:1")})
    clock = FrontEndClock()
    clock.follow(first)
    engine = LLMEngine(FakeExecutor(), config=config, clock=clock)
    run(engine, "a")
    assert engine.cache.carry_out(PinPrefix(PROMPT, "", 1000.0)).pinned_tokens
    engine.forget_client()
    clock.follow(then)
    pool, targets = engine.scheduler.kv.pool, engine.targets
    assert not pool.pinned and pool.num_cached, "what is cached stays"
    engine.scheduler.kv.check_integrity()
    assert targets is not None
    for number in range(5):
        run(engine, f"b{number}")
    ttft, queue = (each.windows[0].observations for each in targets.report())
    assert ttft == 5 and queue < 30, "seconds of this clock"


def test_the_next_client_is_not_told_what_the_last_one_left() -> None:
    engine = LLMEngine(FakeExecutor())
    engine.submit(asked("left"))
    engine.loop.note_refusal(REFUSED)
    engine.forget_client()
    run(engine, "a")
    event = engine.recorder.events()[0]
    assert not event.finished and not event.refused
