"""Protects: models with recurrent layers answer as a plain loop does while their states go to swap
space, host memory and disk, and come back, after a restart too.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.checkpoints import write_checkpoint
from tests.engine.exactness.test_exactness import Call
from tests.engine.exactness.test_recurrent_exactness import SMALL
from tests.engine.exactness.test_speculation_mixes import Answer, calls, naive_tokens, run
from tests.engine.exactness.test_tier_exactness import spoil
from tests.models.tiny_families import FAMILIES
from tests.server.tiny import VOCAB, checkpoint
from tests.text.tiny_tokenizers import byte_level
from twostroke.core.config import EngineConfig
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.prefix_hit import PrefixEnd, PrefixHit
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.llm_engine import LLMEngine
from twostroke.observability.kv_events import BlockStored
from twostroke.runtime.block_bytes import BlockAndStateBytes, BlockBytes
from twostroke.runtime.loading import load_torch_executor
from twostroke.text.tokenizer import Tokenizer

HYBRIDS = ("qwen3.5", "falcon-h1", "lfm2", "mamba2")  # the last keeps states alone


@cache
def hybrid(family: str) -> Path:
    return write_checkpoint(Path(mkdtemp()) / family, FAMILIES[family] | SMALL)


def make_engine(family: str, **options: Any) -> LLMEngine:
    flat = {
        "model": str(hybrid(family)),
        "dtype": "float32",
        "device": "cpu",
        "max_model_len": 72,
        "block_size": 8,
        "max_num_seqs": 4,
    }
    config = EngineConfig.from_flat(flat | options)
    return LLMEngine(load_torch_executor(config), Tokenizer(byte_level()), config)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    family=st.sampled_from(HYBRIDS),
    calls=calls(),
    budget=st.sampled_from([5, 16, 256]),
    room=st.sampled_from([1.2, 2.0, 4.0]),
    preemption=st.sampled_from(["recompute", "swap", "auto"]),
    host=st.sampled_from([0, 0, 60_000, 10**6]),
    disk=st.sampled_from([0, 40_000, 10**7]),
    speculation=st.sampled_from([None, None, "ngram"]),
    seed=st.integers(0, 2**32),
)
def test_no_token_changes_over_a_restart(
    family: str,
    calls: list[Call],
    budget: int,
    room: float,
    preemption: str,
    host: int,
    disk: int,
    speculation: str | None,
    seed: int,
) -> None:
    """The same calls twice, on two engines one after the other over one folder, spoiled between."""
    with TemporaryDirectory() as folder:
        options: dict[str, Any] = {"speculation": speculation} if speculation else {}
        if disk:
            options |= {"kv_disk": folder, "kv_disk_size": disk}
        for _ in range(2):
            engine = make_engine(
                family,
                kv_cache_memory=int(room * least_memory(family, 9 if speculation else 0)),
                max_num_batched_tokens=budget,
                preemption=preemption,
                swap_space=200_000,
                kv_host_memory=host,
                **options,
            )
            answers = run(engine, calls)
            engine.scheduler.kv.check_integrity()
            for call in calls:
                for index in range(call.request.params.n):
                    answer = answers.get((call.request.request_id, index), Answer())
                    expected = naive_tokens(engine, call.request, index)
                    assert answer.tokens == expected[: len(answer.tokens)]
                    if call.abort_at is None and not call.request.params.stop:
                        assert answer.tokens == expected
            engine.close()
            spoil(Path(folder), Random(seed))


@cache
def least_memory(family: str, num_drafts: int) -> int:
    """Bytes of cache for some requests, one of them of full length."""
    engine = make_engine(family, kv_cache_memory=10**7)
    executor, info = engine.executor, engine.info
    states = executor.kv.recurrent.tensors()  # type: ignore[attr-defined]
    state = sum(tensor[0].nbytes for tensor in states)
    engine.close()
    return int(info.block_bytes * info.kv_groups.count * 9 * 1.5 + (6 + num_drafts) * state)


def ask(name: str, prompt: list[int], max_tokens: int = 6, n: int = 1) -> Call:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, seed=3, n=n)
    request = GenerationRequest(request_id=name, prompt_token_ids=prompt, params=params)
    return Call(0, request, None)


@pytest.mark.parametrize("speculation", [None, "draft"])
@pytest.mark.parametrize("family", HYBRIDS)
def test_a_prefix_on_disk_is_found_after_a_restart(
    family: str, speculation: str | None, tmp_path: Path
) -> None:
    """With its state, which the answers show: all but the prompt's last tokens are loaded.

    A draft model, of which nothing is kept there, changes nothing.
    """
    options: dict[str, Any] = {"kv_disk": str(tmp_path), "kv_events": True}
    if speculation:
        drafts = {"method": speculation, "model": str(checkpoint()), "num_speculative_tokens": 3}
        options["speculative_config"] = drafts
    prompt = [Random(1).randrange(1, VOCAB) for _ in range(50)]
    found = []
    for _ in range(2):
        engine = make_engine(family, kv_cache_memory=10**6, **options)
        answers = run(engine, [ask("a", prompt, n=2)])
        for index in range(2):
            expected = naive_tokens(engine, ask("a", prompt, n=2).request, index)
            assert answers["a", index].tokens == expected
        started = [item for event in engine.recorder.events() for item in event.started]
        found.append(started[0].num_cached_tokens)
        assert engine.cache.events is not None
        batches = engine.cache.events.kept.since(-1)
        events = [event for batch in batches for event in batch.events]
        told = {h for event in events if isinstance(event, BlockStored) for h in event.block_hashes}
        assert told and all(len(each) == 32 for each in told), "an event names a part of a state"
        engine.close()
    assert found == [0, 48]


def test_blocks_without_a_state_are_explained(tmp_path: Path) -> None:
    """All files of states are gone: the blocks are there, and no state after them."""
    prompt = [Random(2).randrange(1, VOCAB) for _ in range(50)]
    for turn in range(2):
        engine = make_engine("qwen3.5", kv_cache_memory=10**6, kv_disk=str(tmp_path))
        run(engine, [ask("a", prompt)])
        (started,) = [item for event in engine.recorder.events() for item in event.started]
        engine.close()
        if turn:
            assert isinstance(started.prefix_hit, PrefixHit)
            assert started.prefix_hit.end is PrefixEnd.NO_CHECKPOINT
            assert (started.prefix_hit.state_tokens, started.prefix_hit.block_tokens) == (0, 48)
        for file in tmp_path.glob("*/*.kv"):
            if len(file.stem) > 34:
                file.unlink()


@pytest.mark.parametrize("family", HYBRIDS)
def test_a_swapped_request_goes_on_from_its_state(family: str) -> None:
    """Two grow until one gives way; it comes back by blocks and state, not by computing."""
    engine = make_engine(
        family,
        kv_cache_memory=10**6,
        preemption="swap",
        swap_space=10**6,
        max_num_seqs=2,
    )
    asked = [ask(name, [Random(name).randrange(1, VOCAB) for _ in range(20)], 30) for name in "ab"]
    pool = engine.scheduler.kv.pool
    taken = [pool.allocate() for _ in range(pool.num_free - 9 * engine.info.kv_groups.count)]
    answers: dict[str, list[int]] = {"a": [], "b": []}
    for call in asked:
        engine.submit(call.request)
    while engine.has_work():
        for output in engine.step():
            answers[output.request_id] += output.token_ids
    for block in taken:
        pool.release(block)
    for call in asked:
        assert answers[call.request.request_id] == naive_tokens(engine, call.request, 0)
    stats = engine.last_stats.tiers
    assert stats is not None and stats.swapped_out > 0
    assert stats.swapped_in == stats.swapped_out
    engine.close()


def test_bytes_of_blocks_and_states_come_back_as_they_were() -> None:
    """NaN, and states that end within a part; in other places than they came from."""
    generator = torch.Generator().manual_seed(0)

    def some(*shape: int) -> torch.Tensor:
        return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)

    blocks = [some(6, 8, 4).view(torch.bfloat16), some(6, 16).view(torch.float32)]
    states = [some(3, 5, 28).view(torch.float32), some(3, 18).view(torch.bfloat16)]
    memory = BlockAndStateBytes(BlockBytes(blocks), 6, states)
    assert memory.block_bytes == 48 and memory.num_parts == 4  # 158 bytes
    read = memory.read([7, 2, 9, 6, 8])
    wanted = [tensor[0].clone() for tensor in states], [tensor[2].clone() for tensor in blocks]
    memory.write([15, 5, 17, 14, 16], read)
    for tensor, expected in zip(states, wanted[0], strict=True):
        assert tensor[2].contiguous().view(torch.uint8).equal(expected.view(torch.uint8))
    for tensor, expected in zip(blocks, wanted[1], strict=True):
        assert tensor[5].contiguous().view(torch.uint8).equal(expected.view(torch.uint8))
