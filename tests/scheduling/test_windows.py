"""Protects: giving blocks back that fell out of a window changes no token and loses no block.

The fake executor fails when a request reads a slot, in any group of layers, that its window shows
and that holds anything else than its own tokens' keys and values.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scheduling.harness import BLOCK, Harness, draw_prompt, expected_output, make_request
from tests.scheduling.test_tiers import Tiers
from tests.specs import respecify
from twostroke.core.config import SchedulerConfig
from twostroke.core.kv_groups import KVGroups
from twostroke.core.kv_tier_config import PreemptionName
from twostroke.core.request import FinishReason, Request
from twostroke.kv_cache.check_fits import check_fits

WINDOWS: list[tuple[int | None, ...]] = [
    (1,),
    (3,),
    (4,),
    (9,),
    (None, 1),
    (None, 6),
    (None, None, 5),
    (None, 3, 3),
    (None, 2, 11),
    (4, 13),
]


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    windows=st.sampled_from(WINDOWS),
    spare=st.sampled_from([0, 1, 3, 12, 40]),
    caching=st.sampled_from([True, True, True, False]),
    tiers=st.sampled_from([None, None, (0, 6), (4, 0), (50, 3)]),
    saves_filled=st.booleans(),
    preemption=st.sampled_from(["recompute", "swap", "auto"]),
    budget=st.sampled_from([5, 16, 64]),
    max_num_seqs=st.sampled_from([2, 5]),
    num_drafts=st.sampled_from([0, 0, 3]),
    ahead=st.booleans(),
)
def test_no_token_changes_whatever_is_given_back(
    seed: int,
    windows: tuple[int | None, ...],
    spare: int,
    caching: bool,
    tiers: tuple[int, int] | None,
    saves_filled: bool,
    preemption: PreemptionName,
    budget: int,
    max_num_seqs: int,
    num_drafts: int,
    ahead: bool,
) -> None:
    """Random arrivals, shared prefixes, samples, drafts and aborts over scarce blocks and tiers."""
    random = Random(seed)
    groups = KVGroups(windows, budget)
    harness = Harness(
        SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=max_num_seqs),
        groups.most_blocks(8 * BLOCK + 14, BLOCK) + spare,
        caching,
        num_drafts,
        open_tiers=None if tiers is None else Tiers(*tiers, saves_filled=saves_filled),
        preemption=preemption if tiers is not None else "recompute",
        groups=groups,
        ahead=ahead,
    )
    shared = [random.randrange(50) for _ in range(6 * BLOCK)]
    requests: list[Request] = []
    aborted: set[str] = set()
    for number in range(10):
        prompt, leader = draw_prompt(random, shared, requests)
        request = make_request(
            str(number), prompt, random.randrange(1, 14), seed=random.randrange(3), leader=leader
        )
        salt = leader.spec.cache_salt if leader else random.choice(["", "", "salt"])
        respecify(request, cache_salt=salt)
        check_fits(request.max_total_tokens, harness.num_blocks, BLOCK, groups)
        requests.append(request)
        harness.scheduler.add(request)
        for _ in range(random.randrange(4)):
            if harness.has_work():
                harness.step()
        if random.random() < 0.15:
            victim = random.choice(requests)
            if harness.scheduler.finish(victim.request_id, FinishReason.ABORT, 0.0):
                aborted.add(victim.request_id)
    harness.run(3000)
    for request in requests:
        if request.request_id not in aborted:
            prompt = request.token_ids[: request.num_prompt_tokens]
            output = request.token_ids[request.num_prompt_tokens :]
            assert output == expected_output(request, prompt)


@pytest.mark.parametrize("windows", WINDOWS)
def test_a_long_request_holds_no_more_than_was_promised(windows: tuple[int | None, ...]) -> None:
    """Alone, in a cache that holds just it; the windows' part does not grow with its length."""
    groups = KVGroups(windows, 8)
    num_blocks = groups.most_blocks(600, BLOCK)
    harness = Harness(SchedulerConfig(max_num_batched_tokens=8), num_blocks, groups=groups)
    request = make_request("long", [n % 50 for n in range(300)], 300)
    harness.scheduler.add(request)
    most = 0
    while harness.has_work():
        harness.step()
        most = max(most, num_blocks - harness.kv.pool.num_free)
    assert request.num_preemptions == 0 and request.num_output_tokens == 300
    whole = windows.count(None) * 600 // BLOCK
    assert (
        most
        <= num_blocks
        == whole
        + sum(groups.most_in_window(window, 8, BLOCK) for window in windows if window is not None)
    )


def test_a_prefix_is_found_where_every_group_has_what_it_needs() -> None:
    """A window of 6 tokens needs the last two blocks of the prefix, the other group all of it."""
    harness = Harness(num_blocks=64, groups=KVGroups((None, 6)))
    prompt = list(range(10 * BLOCK + 1))
    harness.scheduler.add(make_request("first", prompt, 1))
    harness.run()
    again = make_request("again", prompt, 1)
    kv = harness.kv
    assert kv.find_prefix(again).num_tokens == 10 * BLOCK
    keys = again.block_hashes

    def lose(position: int, group: int) -> None:
        block = kv.pool.find(keys[2 * position + group])
        assert block is not None
        kv.pool.hold(block)
        kv.pool.unindex(block)
        kv.pool.release(block)

    lose(3, 1)  # fell out of the window long before the end
    assert kv.find_prefix(again).num_tokens == 10 * BLOCK
    lose(9, 1)  # now the prefix ends before it
    assert kv.find_prefix(again).num_tokens == 9 * BLOCK
    lose(5, 0)  # 5 blocks would do for one group, but the window of that end has lost block 3
    assert kv.find_prefix(again).num_tokens == 3 * BLOCK
    lose(0, 0)
    assert kv.find_prefix(again).num_tokens == 0
