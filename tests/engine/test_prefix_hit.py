"""Protects: hits of models with recurrent layers say why they end; of others nothing changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.fakes import FakeExecutor
from tests.runtime.mixed_models import ask, run
from twostroke.core.prefix_hit import PrefixEnd, PrefixHit
from twostroke.engine.llm_engine import LLMEngine
from twostroke.inspector.request_table import RequestTable
from twostroke.observability.events import StartedRequest, StepEvent

BLOCK = 4


def make_engine(num_slots: int = 8, num_blocks: int = 64, spacing: int = 100) -> LLMEngine:
    executor = FakeExecutor(num_blocks, BLOCK, num_state_slots=num_slots)
    executor.info = replace(executor.info, state_spacing=spacing)
    return LLMEngine(executor)


def found(engine: LLMEngine, prompt: list[int], max_tokens: int = 1, **fields: Any) -> PrefixHit:
    """What a request finds that runs alone, as its event tells."""
    request = replace(ask("asked", prompt, max_tokens), **fields)
    engine.submit(request)
    run(engine)
    (started,) = [item for event in engine.recorder.events() for item in event.started][-1:]
    assert isinstance(started.prefix_hit, PrefixHit)
    assert started.num_cached_tokens == started.prefix_hit.state_tokens
    return started.prefix_hit


def text(number: int, length: int) -> list[int]:
    return [number, *range(length - 1)]


def test_a_hit_ends_where_no_state_was_kept() -> None:
    """Both begin with the same 20 tokens, of which no prompt ended."""
    engine = make_engine()
    assert found(engine, text(1, 33)) == PrefixHit(0, 0, PrefixEnd.FIRST_TIME)
    assert found(engine, text(1, 33)) == PrefixHit(32, 32, PrefixEnd.WHOLE_PROMPT)
    assert found(engine, [*text(1, 20), 49, 48, 47, 46, 45]) == PrefixHit(
        0, 20, PrefixEnd.NO_CHECKPOINT
    )
    assert found(engine, [*text(1, 20), 9, 9, 9, 9, 9]) == PrefixHit(20, 20, PrefixEnd.FIRST_TIME)


def test_checkpoints_and_blocks_that_gave_way_are_named() -> None:
    engine = make_engine(num_slots=2)
    found(engine, text(1, 33))
    for number in (2, 3):
        found(engine, text(number, 17))
    assert found(engine, text(1, 33)) == PrefixHit(0, 32, PrefixEnd.CHECKPOINT_EVICTED)
    engine = make_engine(num_blocks=12)
    found(engine, text(1, 33))
    found(engine, text(2, 45))
    assert found(engine, text(1, 33)).end is PrefixEnd.BLOCK_EVICTED


def test_another_salt_tells_nothing_of_what_others_sent() -> None:
    engine = make_engine()
    found(engine, text(1, 33), cache_salt="a")
    hit = PrefixHit(0, 0, PrefixEnd.NEW_SALT)
    assert found(engine, text(1, 33), cache_salt="b") == hit
    assert found(engine, text(7, 33), cache_salt="b") == hit
    assert found(engine, text(1, 33), cache_salt="a").state_tokens == 32


def test_metrics_count_reasons_and_what_was_computed_again() -> None:
    engine = make_engine()
    found(engine, text(1, 33))
    found(engine, [*text(1, 20), 49, 48, 47, 46, 45])
    lines = engine.metrics.render()[0].decode().splitlines()
    label = f'engine="0",model_name="{engine.config.model.model}"'
    assert f'twostroke:prefix_hit_ends_total{{{label},reason="first_time"}} 1.0' in lines
    assert f'twostroke:prefix_hit_ends_total{{{label},reason="no_checkpoint"}} 1.0' in lines
    assert f"twostroke:prefix_tokens_without_state_total{{{label}}} 20.0" in lines


def test_a_recording_keeps_it_for_the_page() -> None:
    engine = make_engine()
    hit = found(engine, text(1, 33))
    table = RequestTable()
    for event in engine.recorder.events():
        table.add(StepEvent.from_dict(event.to_dict()))
    (ended,) = table.at(10**6, {}, 1e9)[2]
    assert ended.prefix_hit == hit == engine.snapshot().ended[0].prefix_hit


def test_events_and_metrics_of_other_models_have_none_of_it() -> None:
    engine = make_engine(num_slots=0)
    engine.submit(ask("a", text(1, 33), 1))
    run(engine)
    (started,) = [item for event in engine.recorder.events() for item in event.started]
    assert isinstance(started, StartedRequest)
    assert all(b'prefix_hit"' not in event.to_json() for event in engine.recorder.events())
    assert b"prefix_hit_ends" not in engine.metrics.render()[0]
