"""Protects: states of recurrent layers come back from swap space and tiers with their blocks.

The fake executor fails where a state is not that of the tokens before it.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes import STATE_PARTS
from tests.scheduling.harness import (
    BLOCK,
    Harness,
    draw_prompt,
    expected_output,
    make_request,
)
from tests.scheduling.test_tiers import Tiers, run
from tests.specs import respecify
from twostroke.core.config import SchedulerConfig
from twostroke.core.kv_groups import KVGroups, is_state_key
from twostroke.core.kv_tier_config import PreemptionName
from twostroke.core.prefix_hit import PrefixEnd, PrefixHit
from twostroke.core.request import FinishReason, Request
from twostroke.kv_cache.hit_explainer import HitExplainer

PROMPT = list(range(5 * BLOCK + 1))


@settings(max_examples=250, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    num_blocks=st.sampled_from([14, 16, 24]),
    num_slots=st.sampled_from([1, 2, 3, 5, 12]),
    spacing=st.integers(1, 4),
    swap=st.sampled_from([0, 3, 9, 100]),
    host=st.sampled_from([0, 2, 8, 80]),
    saves_filled=st.booleans(),
    preemption=st.sampled_from(["recompute", "swap", "auto"]),
    windows=st.sampled_from([(None,), (None,), (None, 6), (5,)]),
    budget=st.sampled_from([5, 16, 64]),
    policy=st.sampled_from(["fcfs", "priority", "fair"]),
    num_drafts=st.sampled_from([0, 0, 3]),
    repeat_every=st.sampled_from([0, 3]),
    ahead=st.booleans(),
)
def test_no_token_changes_whatever_moves(
    seed: int,
    num_blocks: int,
    num_slots: int,
    spacing: int,
    swap: int,
    host: int,
    saves_filled: bool,
    preemption: PreemptionName,
    windows: tuple[int | None, ...],
    budget: int,
    policy: str,
    num_drafts: int,
    repeat_every: int,
    ahead: bool,
) -> None:
    """Turns, samples, salts, aborts, failures and clearing over scarce blocks, slots and tiers."""
    random, groups = Random(seed), KVGroups(windows, budget)
    config = SchedulerConfig(
        max_num_batched_tokens=budget,
        max_num_seqs=4,
        policy=policy,  # type: ignore[arg-type]
    )
    tiers = Tiers(swap, host, saves_filled=saves_filled)
    harness = Harness(
        config,
        num_blocks * groups.count,
        groups=groups,
        num_state_slots=num_slots,
        state_spacing=spacing,
        num_drafts=num_drafts,
        repeat_every=repeat_every,
        open_tiers=tiers,
        preemption=preemption,
        ahead=ahead,
    )
    shared = [random.randrange(50) for _ in range(6 * BLOCK)]
    requests: list[Request] = []
    aborted: set[str] = set()
    for number in range(10):
        prompt, leader = draw_prompt(random, shared, requests)
        request = make_request(
            str(number),
            prompt,
            random.randrange(1, 14),
            leader=leader,
            priority=leader.spec.priority if leader else random.randrange(3),
            tenant=leader.tenant if leader else random.choice(["a", "b"]),
            has_form=num_slots > 2 and random.random() < 0.3,
        )
        salt = leader.spec.cache_salt if leader else random.choice(["", "", "salt"])
        respecify(request, cache_salt=salt)
        requests.append(request)
        harness.scheduler.add(request)
        for _ in range(random.randrange(4)):
            if harness.has_work():
                harness.step()
        if random.random() < 0.15:
            victim = random.choice(requests)
            discard = random.random() < 0.5
            if harness.scheduler.finish(
                victim.request_id, FinishReason.ABORT, 0.0, discard=discard
            ):
                aborted.add(victim.request_id)
        if random.random() < 0.05:
            harness.kv.clear()
    run(harness, 4000)
    for request in requests:
        if request.request_id not in aborted:
            prompt = request.token_ids[: request.num_prompt_tokens]
            output = request.token_ids[request.num_prompt_tokens :]
            assert output == expected_output(request, prompt)
    if (swap_tier := tiers.tiers.get("swap")) is not None:
        assert len(swap_tier._free) == swap
    assert harness.kv.states.pool.num_free == num_slots


def fill(harness: Harness, num_requests: int = 6) -> None:
    """Requests that evict everything before them."""
    for number in range(num_requests):
        harness.scheduler.add(make_request(f"fill {number}", [40 + number] * (3 * BLOCK), 2))
    run(harness)


def evicted(*, saves_filled: bool = False, num_slots: int = 3) -> tuple[Harness, Request, Tiers]:
    """Of a request of five blocks nothing is in the cache, and all below it."""
    tiers = Tiers(host=200, saves_filled=saves_filled)
    harness = Harness(num_blocks=8, num_state_slots=num_slots, state_spacing=100, open_tiers=tiers)
    request = make_request("first", PROMPT, 2)
    harness.scheduler.add(request)
    run(harness)
    fill(harness)
    assert harness.kv.find_prefix(make_request("probe", PROMPT)).num_tokens == 0
    return harness, request, tiers


@pytest.mark.parametrize("saves_filled", [False, True])
def test_a_prefix_comes_back_with_the_state_at_its_end(saves_filled: bool) -> None:
    """Whether tiers get what is evicted, or what is full."""
    harness, _, _ = evicted(saves_filled=saves_filled)
    again = make_request("again", [*PROMPT, 3], 3)
    harness.scheduler.add(again)
    run(harness)
    assert again.num_cached_tokens == 5 * BLOCK
    assert again.output_token_ids == expected_output(again, [*PROMPT, 3])
    counts = harness.tiered.counts
    assert counts.loaded == {"host": 5 + STATE_PARTS}
    assert counts.loaded_parts == {"host": STATE_PARTS}


def test_without_its_state_a_prefix_is_not_loaded() -> None:
    """One part of it is gone: its blocks are no use, and none is loaded."""
    harness, request, tiers = evicted()
    part = next(
        key
        for key in tiers.tiers["host"]._slots
        if is_state_key(key) and isinstance(key, bytes) and key[:-3] == request.block_hashes[4]
    )
    tiers.tiers["host"].drop([part])
    HitExplainer(harness.kv, harness.tiered.directory)
    harness.scheduler.add(make_request("new", [33] * 5, 1))  # its step reports the loss
    run(harness)
    again = make_request("again", [*PROMPT, 3], 3)
    harness.scheduler.add(again)
    run(harness)
    assert again.num_cached_tokens == 0 and not harness.tiered.counts.loaded
    assert again.output_token_ids == expected_output(again, [*PROMPT, 3])
    assert again.prefix_hit == PrefixHit(0, 5 * BLOCK, PrefixEnd.NO_CHECKPOINT)


def test_what_was_not_loaded_is_explained() -> None:
    """A disk so slow that computing is faster."""
    harness, _, _ = evicted()
    HitExplainer(harness.kv, harness.tiered.directory)
    speeds = harness.tiered.speeds
    speeds._token_seconds, speeds._load_seconds = 1e-9, {"host": 1.0}
    again = make_request("again", [*PROMPT, 3], 3)
    harness.scheduler.add(again)
    run(harness)
    assert again.prefix_hit == PrefixHit(0, 5 * BLOCK, PrefixEnd.NOT_LOADED)


def test_a_state_that_gives_way_to_the_next_is_not_written() -> None:
    """Of an answer of ten blocks a tier that saves what is full gets the last state alone."""
    tiers = Tiers(host=200, saves_filled=True)
    harness = Harness(num_blocks=64, num_state_slots=8, state_spacing=100, open_tiers=tiers)
    request = make_request("long", PROMPT, 10 * BLOCK)
    harness.scheduler.add(request)
    run(harness)
    ends = {key[:-3] for key in tiers.tiers["host"]._slots if is_state_key(key)}  # type: ignore
    assert ends == {request.block_hashes[4], request.block_hashes[14]}


def preempted_and_back(preemption: PreemptionName, swap: int = 100) -> tuple[Harness, Request, int]:
    """A request that gives way while it answers, and how many tokens it computes after that."""
    config = SchedulerConfig(max_num_seqs=2, policy="priority")
    tiers = Tiers(swap=swap if preemption == "swap" else 0)
    harness = Harness(
        config,
        12,
        num_state_slots=3,
        state_spacing=100,
        open_tiers=tiers,
        preemption=preemption,
    )
    victim = make_request("victim", PROMPT[: 3 * BLOCK + 1], 30, priority=1)
    harness.scheduler.add(victim)
    while victim.num_output_tokens < 5:
        harness.step()
    other = make_request("other", [9] * (5 * BLOCK), 5 * BLOCK, priority=0)
    harness.scheduler.add(other)
    computed = 0
    while harness.scheduler.has_work():
        harness.step()
        share = harness.last.scheduled.get("victim")
        if share is not None and victim.num_preemptions:
            computed += share.num_tokens
    run(harness)
    assert victim.output_token_ids == expected_output(victim, PROMPT[: 3 * BLOCK + 1])
    return harness, victim, computed


def test_a_swapped_request_goes_on_from_its_last_checkpoint() -> None:
    """With the last slot there was: what came before it is not computed again."""
    harness, victim, computed = preempted_and_back("swap")
    assert victim.num_preemptions == 1 and harness.tiered.counts.swapped_in == 1
    num_swapped = harness.tiered.counts.saved["swap"] - STATE_PARTS
    assert num_swapped >= 4 and harness.tiered.counts.loaded_parts["swap"] == STATE_PARTS
    _, plain, all_computed = preempted_and_back("recompute")
    assert plain.num_preemptions == 1
    assert all_computed - computed == num_swapped * BLOCK


def test_without_room_for_its_state_a_request_is_computed_again() -> None:
    harness, victim, _ = preempted_and_back("swap", swap=4 + STATE_PARTS - 1)
    assert victim.num_preemptions == 1 and harness.tiered.counts.swapped_out == 0


@pytest.mark.parametrize("num_slots", [8, 3])  # with three, the pool evicts checkpoints meanwhile
def test_wrong_states_leave_the_tiers(num_slots: int) -> None:
    tiers = Tiers(host=200, saves_filled=True)
    harness = Harness(num_blocks=64, num_state_slots=num_slots, state_spacing=1, open_tiers=tiers)
    request = make_request("wrong", PROMPT, 9)
    harness.scheduler.add(request)
    while request.num_output_tokens < 6:
        harness.step()
    assert any(map(is_state_key, tiers.tiers["host"]._slots))
    harness.scheduler.finish("wrong", FinishReason.ERROR, 0.0, discard=True)
    run(harness)
    assert not tiers.tiers["host"]._slots
