"""Protects: beside recurrent layers pins keep states, too; KV events and mirrors stay true."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tests import wire
from tests.engine.calls import num_cached
from tests.engine.test_messages import ByteEngine
from tests.fakes import FakeExecutor
from tests.runtime.mixed_models import ask, run
from tests.scheduling.harness import BLOCK, Harness, draw_prompt, make_request
from tests.specs import resolved, respecify
from twostroke.core.config import EngineConfig, SchedulerConfig
from twostroke.core.errors import InvalidRequestError
from twostroke.core.kv_groups import KVGroups
from twostroke.core.request import FinishReason, Request
from twostroke.engine.cache_orders import ClearCache, PinPrefix
from twostroke.engine.llm_engine import LLMEngine
from twostroke.kv_cache.prefix_mirror import IndexChanges, IndexLog, PrefixMirror, cached_keys
from twostroke.kv_cache.state_slots import StateSlots
from twostroke.observability.kv_events import AllBlocksCleared, BlockRemoved, BlockStored

PROMPT = [7, *range(4 * BLOCK)]


def make_engine(num_slots: int = 8, **options: object) -> LLMEngine:
    executor = FakeExecutor(64, BLOCK, num_state_slots=num_slots)
    executor.info = replace(executor.info, state_spacing=100)
    return LLMEngine(executor, config=EngineConfig.from_flat({"model": "hybrid", **options}))


def compute(engine: LLMEngine, name: str, prompt: list[int]) -> int:
    """How many of its tokens were found."""
    engine.submit(ask(name, prompt, 1))
    request = engine.scheduler.requests[name]
    run(engine)
    return request.num_cached_tokens


def pin(engine: LLMEngine, prompt: list[int], seconds: float = 60) -> int:
    order = PinPrefix(token_ids=prompt, cache_salt="", seconds=seconds)
    return engine.cache.carry_out(order).pinned_tokens


@pytest.mark.parametrize("pinned", [True, False])
def test_a_pinned_prefix_keeps_its_state(pinned: bool) -> None:
    """Others take every slot several times; the pinned one is among the last."""
    engine = make_engine()
    compute(engine, "first", PROMPT)
    if pinned:
        assert pin(engine, PROMPT) == 4 * BLOCK
    for number in range(20):
        compute(engine, str(number), [number, *range(BLOCK)])
    assert compute(engine, "again", [*PROMPT, 1, 2]) == (4 * BLOCK if pinned else 0)


def test_a_pinned_state_outlasts_the_answer_that_it_is_in() -> None:
    """Checkpoints within an answer are replaced by the next one, but for pinned ones."""
    engine = make_engine()
    engine.submit(ask("long", PROMPT, 20))
    request = engine.scheduler.requests["long"]
    while request.num_computed_tokens < 6 * BLOCK:
        engine.step()
    text = request.token_ids[: 6 * BLOCK]
    assert pin(engine, text) == 6 * BLOCK
    run(engine)
    states = engine.scheduler.kv.states
    assert states.pool.find(request.block_hashes[5]) is not None
    assert compute(engine, "other", [*text, 3]) == 6 * BLOCK


def test_at_most_half_of_the_slots_are_pinned_and_pins_end() -> None:
    engine = make_engine(num_slots=6)
    for number in range(3):
        compute(engine, str(number), [number, *range(BLOCK)])
        assert pin(engine, [number, *range(BLOCK)], seconds=-1 if number == 0 else 60) == BLOCK
    compute(engine, "3", [3, *range(BLOCK)])
    assert pin(engine, [3, *range(BLOCK)]) == BLOCK  # the first one's time is over
    compute(engine, "4", [4, *range(BLOCK)])
    with pytest.raises(InvalidRequestError, match="too long"):
        pin(engine, [4, *range(BLOCK)])
    assert len(engine.scheduler.kv.states.pool.pinned) == 3
    engine.cache.carry_out(ClearCache())
    assert not engine.scheduler.kv.states.pool.pinned


def test_a_prefix_without_a_state_is_not_pinned() -> None:
    engine = make_engine(num_slots=1)
    compute(engine, "first", PROMPT)
    with pytest.raises(InvalidRequestError, match="no slot free for a state"):
        pin(engine, PROMPT)
    assert not engine.scheduler.kv.pool.pinned


@pytest.mark.parametrize("seed", range(4))
def test_kv_events_tell_the_blocks_that_are_found(seed: int) -> None:
    engine, random = make_engine(num_slots=5, kv_events=True), Random(seed)
    shared = [random.randrange(50) for _ in range(6 * BLOCK)]
    seen: set[str] = set()
    last, most = -1, 0
    for number in range(30):
        prompt, _ = draw_prompt(random, shared, [])
        engine.submit(ask(str(number), prompt, random.randrange(1, 9)))
        if random.random() < 0.5:
            run(engine)
        if random.random() < 0.1:
            engine.cache.carry_out(ClearCache())
        assert engine.cache.events is not None
        for batch in engine.cache.events.kept.since(last):
            last = batch.seq
            for event in batch.events:
                match event:
                    case BlockStored():
                        seen |= {*event.block_hashes}
                    case BlockRemoved():
                        seen -= {*event.block_hashes}
                    case AllBlocksCleared():
                        seen.clear()
        keys = engine.scheduler.kv.pool.cached()
        assert seen == {key.hex() for key in keys if isinstance(key, bytes)}
        most = max(most, len(seen))
    assert most > 10


@pytest.mark.parametrize("windows", [(None,), (None, 6)])
@pytest.mark.parametrize("seed", range(3))
def test_a_mirror_finds_what_a_cache_with_states_finds(
    seed: int, windows: tuple[int | None, ...]
) -> None:
    """What ``--admission predicted`` goes by: blocks alone would promise more."""
    random, groups = Random(seed), KVGroups(windows, 10)
    config = SchedulerConfig(max_num_batched_tokens=10, max_num_seqs=4)
    harness = Harness(config, 30 * groups.count, groups=groups, num_state_slots=6)
    log, mirror = IndexLog(), PrefixMirror(BLOCK, groups, "", has_states=True)
    harness.kv.watch(log)
    harness.kv.states.watch(log)
    shared = [random.randrange(50) for _ in range(6 * BLOCK)]
    requests: list[Request] = []
    lengths, shorter = set(), 0
    for number in range(80):
        prompt, _ = draw_prompt(random, shared, [])
        requests.append(make_request(str(number), prompt, random.randrange(1, 12)))
        harness.scheduler.add(requests[-1])
        for _ in range(random.randrange(4)):
            if harness.scheduler.has_work():
                harness.step()
        if random.random() < 0.1:
            victim = random.choice(requests).request_id
            harness.scheduler.finish(victim, FinishReason.ABORT, 0.0, discard=True)
        if random.random() < 0.03:
            harness.kv.clear()
        if random.random() < 0.1:  # the next client, which knows nothing
            log.begin_again(cached_keys(harness.kv.pool, harness.kv.states.pool))
            mirror = PrefixMirror(BLOCK, groups, "", has_states=True)
        if (changes := log.take()) is not None:
            mirror.apply(wire.decode(wire.encode(changes), IndexChanges))
        probe = Request(resolved("probe", draw_prompt(random, shared, requests)[0]))
        expected = harness.kv.find_prefix(probe).num_tokens
        assert mirror.num_cached(Request(probe.spec)) == expected
        blocks_alone = PrefixMirror(BLOCK, groups, "")
        blocks_alone.apply(IndexChanges([*harness.kv.pool.cached()]))
        shorter += expected < blocks_alone.num_cached(Request(probe.spec))
        lengths.add(expected)
    assert len(lengths) > 3 and shorter > 0


def test_a_salted_request_starts_from_no_state_of_others() -> None:
    """Nor does another salt, nor one without; the same salt does."""
    harness = Harness(num_blocks=64, num_state_slots=16)
    assert isinstance(harness.kv.states, StateSlots)
    found = {}
    for name, salt in (("a", ""), ("b", "one"), ("c", "two"), ("d", "one"), ("e", "")):
        request = make_request(name, PROMPT, 2)
        respecify(request, cache_salt=salt)
        harness.scheduler.add(request)
        harness.run()
        found[name] = request.num_cached_tokens
    assert found == {"a": 0, "b": 0, "c": 0, "d": 4 * BLOCK, "e": 4 * BLOCK}


async def test_predictions_go_by_states_as_well() -> None:
    """A client away from the engine knows how much of a prompt would be found."""
    engine = ByteEngine(make_engine(admission="predicted"))
    try:
        first = ask("first", PROMPT, 1)
        assert [output async for output in engine.submit(first)]
        await engine.snapshot()
        assert num_cached(engine, ask("again", PROMPT, 1)) == BLOCK * 4
        assert num_cached(engine, ask("parts", [*PROMPT[: 3 * BLOCK], 49, 48], 1)) == 0
    finally:
        engine.close()
