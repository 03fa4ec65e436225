"""Protects: several samples of one prompt, and salts, beside recurrent layers: each sample goes on
from a state of its own, and no salted request from another's.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import torch

from tests.engine.exactness.test_exactness import Call
from tests.engine.exactness.test_recurrent_tiers import HYBRIDS, make_engine
from tests.engine.exactness.test_speculation_mixes import naive_tokens, run
from tests.server.tiny import VOCAB
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.prefix_hit import PrefixEnd, PrefixHit
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.llm_engine import LLMEngine
from twostroke.kv_cache.block_hash import prefix_hashes
from twostroke.runtime.torch_executor import TorchExecutor
from twostroke.sampling.random import derive_seed

SAMPLES = 4


def prompt_of(length: int, seed: int = 0) -> list[int]:
    random = Random(seed)
    return [random.randrange(1, VOCAB) for _ in range(length)]


def ask(name: str, prompt: list[int], seed: int = 5, n: int = 1, salt: str = "") -> Call:
    params = SamplingParams(max_tokens=16, temperature=1.0, ignore_eos=True, seed=seed, n=n)
    request = GenerationRequest(
        request_id=name, prompt_token_ids=prompt, params=params, cache_salt=salt
    )
    return Call(0, request, None)


def found(engine: LLMEngine) -> dict[str, PrefixHit]:
    """What each request found when it started, by its own id."""
    started = [item for event in engine.recorder.events() for item in event.started]
    return {
        item.request_id: item.prefix_hit
        for item in started
        if isinstance(item.prefix_hit, PrefixHit)
    }


@pytest.mark.parametrize("length", [5, 31, 32, 33, 41])
@pytest.mark.parametrize("family", HYBRIDS)
def test_samples_are_what_separate_requests_get(family: str, length: int) -> None:
    """Prompts that end at, before and after a block; each sample has the seed of its own request.

    Samples after the first start from the last checkpoint within the prompt, if it has one.
    """
    prompt = prompt_of(length)
    engine = make_engine(family, kv_cache_memory=10**6)
    together = run(engine, [ask("all", prompt, n=SAMPLES)])
    hits = [hit.state_tokens for hit in found(engine).values()]
    engine.close()
    assert len(hits) == SAMPLES
    assert sorted(hits) == [0, *[(length - 1) // 8 * 8] * (SAMPLES - 1)]
    tokens = [together["all", index].tokens for index in range(SAMPLES)]
    assert len({*map(tuple, tokens)}) > 1, "all samples are alike: nothing is shown"
    for index in range(SAMPLES):
        alone = make_engine(family, kv_cache_memory=10**6)
        (answer,) = run(alone, [ask("one", prompt, seed=derive_seed(5, index))]).values()
        alone.close()
        assert answer.tokens == tokens[index]


@pytest.mark.parametrize("options", [{}, {"speculation": "ngram"}, {"max_num_batched_tokens": 7}])
@pytest.mark.parametrize("family", HYBRIDS)
def test_samples_change_no_state_that_others_start_from(
    family: str, options: dict[str, object]
) -> None:
    """The checkpoint within the prompt has the same bits after four answers went on from it."""
    prompt = prompt_of(21, seed=1)
    engine = make_engine(family, kv_cache_memory=10**6, **options)
    executor, pool = engine.executor, engine.scheduler.kv.states.pool
    assert isinstance(executor, TorchExecutor)
    run(engine, [ask("first", prompt)])
    (slot,) = {slot for slot in pool.cached().values() if is_within(engine, prompt, slot)}
    before = [tensor[slot].clone() for tensor in executor.kv.recurrent.tensors()]
    answers = run(engine, [ask("all", prompt, n=SAMPLES), ask("more", [*prompt, 3])])
    for index in range(SAMPLES):
        assert answers["all", index].tokens == naive_tokens(
            engine, ask("all", prompt, n=SAMPLES).request, index
        )
    assert {hit.state_tokens for hit in found(engine).values()} == {0, 16}
    for tensor, expected in zip(executor.kv.recurrent.tensors(), before, strict=True):
        assert torch.equal(tensor[slot], expected)
    engine.close()


def is_within(engine: LLMEngine, prompt: list[int], slot: int) -> bool:
    """Whether a slot has the checkpoint after the first 16 tokens of a prompt."""
    hashes = prefix_hashes(prompt[:16], 8, engine.info.model_id, "")
    return engine.scheduler.kv.states.pool.content(slot) == hashes[-1]


@pytest.mark.parametrize("family", HYBRIDS)
def test_a_salt_keeps_states_apart(family: str) -> None:
    """Each salt finds its own, also while the others run; answers are all the same."""
    prompt = prompt_of(33, seed=2)
    engine = make_engine(family, kv_cache_memory=10**6)
    expected = naive_tokens(engine, ask("x", prompt).request, 0)
    for turn in ("1", "2"):
        calls = [ask(f"{salt}{turn}", prompt, salt=salt) for salt in ("", "one", "two")]
        answers = run(engine, calls)
        assert [answer.tokens for answer in answers.values()] == [expected] * 3
    hits = found(engine)
    first = [hits[name] for name in ("1", "one1", "two1")]
    new_salt = PrefixHit(0, 0, PrefixEnd.NEW_SALT)
    assert first == [PrefixHit(0, 0, PrefixEnd.FIRST_TIME), new_salt, new_salt]
    assert {hits[name].state_tokens for name in ("2", "one2", "two2")} == {32}
    engine.close()


@pytest.mark.parametrize("family", HYBRIDS)
def test_a_salted_request_takes_no_state_from_a_tier(family: str, tmp_path: Path) -> None:
    """After a restart, when all is on disk."""
    prompt, hits = prompt_of(33, seed=3), dict[str, int]()
    for turn, salt in (("1", "one"), ("2", ""), ("3", "one")):
        engine = make_engine(family, kv_cache_memory=10**6, kv_disk=str(tmp_path))
        run(engine, [ask(turn, prompt, salt=salt)])
        hits |= {name: hit.state_tokens for name, hit in found(engine).items()}
        engine.close()
    assert hits == {"1": 0, "2": 0, "3": 32}
