"""Protects: the blocks that are replayed from steps are those that the engine really had."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.inspector.recorded import events, recording
from tests.server.tiny import make_engine
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.llm_engine import LLMEngine
from twostroke.inspector.block_replay import BlockReplay, Saved
from twostroke.inspector.blocks import draw_blocks
from twostroke.inspector.recording import Recording
from twostroke.observability.events import StepEvent
from twostroke.observability.snapshot import BlockState


def request(number: int, chance: random.Random, pairs: float = 0.2) -> GenerationRequest:
    """One of three beginnings, then tokens of its own; a share of them have two samples."""
    begin = [1 + chance.randrange(3)] * 13
    own = [chance.randrange(1, 300) for _ in range(chance.randrange(1, 30))]
    params = SamplingParams(
        max_tokens=chance.randrange(1, 60), ignore_eos=True, n=1 + (chance.random() < pairs)
    )
    return GenerationRequest(request_id=f"r{number}", prompt_token_ids=begin + own, params=params)


def compare(replay: BlockReplay, engine: LLMEngine) -> BlockState:
    found, real = replay.state(), engine.snapshot(with_blocks=True).blocks
    assert found is not None and real is not None
    assert found.tables == real.tables
    assert sorted(found.free) == sorted(real.free)
    # Of equal blocks that were computed at the same time the cache knows one only.
    assert set(real.cached.values()) <= set(found.cached.values())
    return real


@pytest.mark.parametrize("seed", range(6))
def test_tables_and_cached_blocks_are_the_engines_after_each_step(seed: int) -> None:
    """With shared prefixes, samples that share a prompt, evictions, preemptions and aborts."""
    chance = random.Random(seed)
    engine = make_engine(kv_cache_memory=2**16, max_num_batched_tokens=24)
    replay = BlockReplay(Saved(engine.info.num_blocks, engine.info.block_size))
    number, step, preempted = 0, -1, 0
    while number < 40 or engine.has_work():
        if number < 40 and chance.random() < 0.5:
            engine.submit(request(number, chance))
            number += 1
            if chance.random() < 0.1:
                engine.abort(f"r{chance.randrange(number)}")
        if engine.has_work():
            engine.step()
        for event in engine.recorder.events(step):
            step = event.step
            preempted += len(event.preempted)
            replay.add(event)
            if chance.random() < 0.1:
                replay = BlockReplay.restore(replay.save())
        if not engine.scheduler.kv.loads:
            compare(replay, engine)
    assert preempted
    engine.close()


def test_what_can_be_found_again_is_exact_where_requests_come_one_by_one() -> None:
    chance = random.Random(3)
    engine = make_engine(kv_cache_memory=2**17)
    replay = BlockReplay(Saved(engine.info.num_blocks, engine.info.block_size))
    for number in range(30):
        engine.submit(request(number, chance, pairs=0))
        before = engine.recorder.events()[-1].step if number else -1
        while engine.has_work():
            engine.step()
        for event in engine.recorder.events(before):
            replay.add(event)
        real = compare(replay, engine)
        found = replay.state()
        assert found is not None
        assert set(found.cached.values()) == set(real.cached.values())
        assert found.free == real.free
    engine.close()


def test_a_recording_has_its_blocks_at_every_moment() -> None:
    """Its simulation takes runs of decode steps in one go; each step tells its blocks."""
    source = Recording(recording())
    assert source.wait_until_read(20)
    for row in (0, 40, 300, len(events()) - 1):
        state = asyncio.run(source.state(events()[row].step, with_blocks=True))
        blocks, event = state.blocks, events()[row]
        assert blocks is not None
        ended = {finished.request_id for finished in event.finished}
        shares = {s.request_id: s.num_blocks for s in event.scheduled if s.request_id not in ended}
        assert shares.items() <= {name: len(table) for name, table in blocks.tables.items()}.items()
        held = {block for table in blocks.tables.values() for block in table}
        assert len(held) == event.total_blocks - event.free_blocks
        assert len(blocks.free) == event.free_blocks
        assert len(blocks.cached) >= event.cached_blocks
        assert draw_blocks(blocks).num_blocks == event.total_blocks
    source.close()


def test_a_saved_moment_leads_to_the_same_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twostroke.inspector.recording.MIN_BETWEEN", 7)
    monkeypatch.setattr("twostroke.inspector.recording.MAX_SAVED", 10**6)
    source = Recording(recording())
    assert source.wait_until_read(20)
    replay = BlockReplay(Saved(events()[-1].total_blocks, 16))
    for event in events()[:151]:
        replay.add(event)
    found = asyncio.run(source.state(events()[150].step, with_blocks=True)).blocks
    assert found == replay.state()
    source.close()


def test_a_recording_of_an_earlier_version_has_none(tmp_path: Path) -> None:
    path = tmp_path / "old.jsonl"
    kept = [event.to_dict() | {"block_tables": []} for event in events()[:50]]
    path.write_bytes(b"".join(StepEvent.from_dict(values).to_json() + b"\n" for values in kept))
    source = Recording(path)
    assert source.wait_until_read(20)
    assert asyncio.run(source.state(None, with_blocks=True)).blocks is None
    source.close()
