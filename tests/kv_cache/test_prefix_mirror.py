"""Protects: a front end that follows an engine's cache by messages finds what the engine finds."""

from __future__ import annotations

import random

import pytest

from tests import wire
from tests.kv_cache.test_windows import BLOCK, compute
from tests.specs import resolved
from twostroke.core.kv_groups import ONE_GROUP, KVGroups
from twostroke.core.request import Request
from twostroke.core.sampling_params import SamplingParams
from twostroke.kv_cache.manager import KVCacheManager
from twostroke.kv_cache.prefix_mirror import IndexChanges, IndexLog, PrefixMirror, cached_keys


def some_request(dice: random.Random, request_id: str) -> Request:
    """Of few prompts, which begin alike, so that they are found in part or whole."""
    first, length = dice.choice((0, 0, 100, 200)), dice.randrange(1, 40)
    return Request(resolved(request_id, range(first, first + length)))


@pytest.mark.parametrize("groups", [ONE_GROUP, KVGroups((None, 2 * BLOCK)), KVGroups((8, 5))])
@pytest.mark.parametrize("seed", range(5))
def test_a_mirror_finds_what_the_cache_finds(groups: KVGroups, seed: int) -> None:
    """Through admissions, ends, evictions, wrong contents and clearing; several at once, too."""
    dice, log = random.Random(seed), IndexLog()
    kv = KVCacheManager(24 * groups.count, BLOCK, groups, model_id="m")
    kv.watch(log)
    mirror = PrefixMirror(BLOCK, groups, "m")
    running: list[Request] = []
    lengths = set()
    for number in range(300):
        new = some_request(dice, str(number))
        if kv.has_room(new, kv.find_prefix(new), 0):
            compute(kv, new)
            running.append(new)
        while running and (dice.random() < 0.4 or len(running) > 3):
            leaving = running.pop(dice.randrange(len(running)))
            kv.free(leaving, discard=dice.random() < 0.1)
        if dice.random() < 0.02:
            kv.clear()
        if dice.random() < 0.7:
            if dice.random() < 0.1:  # the next client, which knows nothing
                log.begin_again(cached_keys(kv.pool, kv.states.pool))
                mirror = PrefixMirror(BLOCK, groups, "m")
            if (changes := log.take()) is not None:
                mirror.apply(wire.decode(wire.encode(changes), IndexChanges))
            probe = some_request(dice, "probe")
            expected = kv.find_prefix(probe).num_tokens
            assert mirror.num_cached(Request(probe.spec)) == expected
            lengths.add(expected)
    assert len(lengths) > 3


def test_what_needs_every_logit_of_its_prompt_finds_nothing() -> None:
    log, kv = IndexLog(), KVCacheManager(10, BLOCK)
    kv.watch(log)
    compute(kv, Request(resolved("a", range(9))))
    mirror = PrefixMirror(BLOCK, ONE_GROUP, "")
    changes = log.take()
    assert changes is not None and log.take() is None
    mirror.apply(changes)
    assert mirror.num_cached(Request(resolved("b", range(9)))) == 8
    scored = resolved("c", range(9), params=SamplingParams(prompt_logprobs=1))
    assert mirror.num_cached(Request(scored)) == 0
