"""Protects: swap and tiers change no token, lose no block and hold up no other request.

The fake executor fails when a request reads a slot that holds anything else than its own tokens'
keys and values; the tiers are the real ones, tiny.
"""

from __future__ import annotations

import threading
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scheduling.harness import BLOCK, Harness, expected_output, make_request
from tests.specs import respecify
from twostroke.core.config import SchedulerConfig
from twostroke.core.kv_groups import KVGroups
from twostroke.core.kv_tier_config import PreemptionName
from twostroke.core.prefix_hit import KVOffer
from twostroke.core.request import BlockKey, FinishReason, Request
from twostroke.core.step import Reason
from twostroke.kv_cache.connector import KVConnector, TierInfo
from twostroke.kv_cache.manager import KVCacheManager
from twostroke.kv_tiers.memory_tier import MemoryTier
from twostroke.scheduling.tiered_blocks import MAX_PEERS, TieredBlocks

PROMPT = list(range(5 * BLOCK + 1))


class Tiers:
    """Opens tiers in memory of so many blocks, and keeps them for the test."""

    def __init__(self, swap: int = 0, host: int = 0, *, saves_filled: bool = False) -> None:
        self._sizes = {"swap": swap, "host": host}
        self._saves_filled = saves_filled
        self.tiers: dict[str, MemoryTier] = {}

    def __call__(self, block_bytes: int, _: threading.Event) -> dict[str, KVConnector]:
        for name, num_blocks in self._sizes.items():
            if num_blocks:
                self.tiers[name] = MemoryTier(
                    TierInfo(
                        name=name,
                        num_blocks=num_blocks,
                        block_bytes=block_bytes,
                        for_swap=name == "swap",
                        saves_filled=self._saves_filled,
                    )
                )
        return dict(self.tiers)


def run(harness: Harness, limit: int = 3000) -> None:
    harness.run(limit)
    assert not harness.kv.loads
    assert not harness.tiered.has_work()


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    num_blocks=st.sampled_from([10, 12, 16, 24]),
    swap=st.sampled_from([0, 1, 3, 50]),
    host=st.sampled_from([0, 1, 4, 30]),
    saves_filled=st.booleans(),
    preemption=st.sampled_from(["recompute", "swap", "auto"]),
    budget=st.sampled_from([5, 16, 64]),
    max_num_seqs=st.sampled_from([2, 5]),
    policy=st.sampled_from(["fcfs", "priority", "fair"]),
    num_drafts=st.sampled_from([0, 0, 3]),
    ahead=st.booleans(),
)
def test_no_token_changes_whatever_moves(
    seed: int,
    num_blocks: int,
    swap: int,
    host: int,
    saves_filled: bool,
    preemption: PreemptionName,
    budget: int,
    max_num_seqs: int,
    policy: str,
    num_drafts: int,
    ahead: bool,
) -> None:
    """Random arrivals, shared prefixes, samples and aborts over scarce blocks and tiny tiers."""
    random = Random(seed)
    config = SchedulerConfig(
        max_num_batched_tokens=budget,
        max_num_seqs=max_num_seqs,
        policy=policy,  # type: ignore[arg-type]
    )
    tiers = Tiers(swap, host, saves_filled=saves_filled)
    harness = Harness(
        config,
        num_blocks,
        num_drafts=num_drafts,
        open_tiers=tiers,
        preemption=preemption,
        ahead=ahead,
    )
    shared = [random.randrange(50) for _ in range(5 * BLOCK)]
    requests: list[Request] = []
    aborted: set[str] = set()
    for number in range(10):
        prompt = shared[: random.choice([0, 2, 3, 5]) * BLOCK]
        prompt = prompt + [random.randrange(50) for _ in range(random.randrange(1, 9))]
        leader = requests[-1] if requests and random.random() < 0.15 else None
        if leader is not None:
            prompt = leader.token_ids[: leader.num_prompt_tokens]
        request = make_request(
            str(number),
            prompt,
            random.randrange(1, 14),
            seed=random.randrange(3),
            leader=leader,
            priority=leader.spec.priority if leader else random.randrange(3),
            tenant=leader.tenant if leader else random.choice(["a", "b"]),
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
            if harness.scheduler.finish(victim.request_id, FinishReason.ABORT, 0.0):
                aborted.add(victim.request_id)
    run(harness)
    for request in requests:
        if request.request_id not in aborted:
            prompt = request.token_ids[: request.num_prompt_tokens]
            assert request.output_token_ids == expected_output(request, prompt)
    if (swap_tier := tiers.tiers.get("swap")) is not None:
        assert len(swap_tier._free) == swap


def fill(harness: Harness, num_requests: int = 6) -> None:
    """Requests that evict everything before them."""
    for number in range(num_requests):
        harness.scheduler.add(make_request(f"fill {number}", [40 + number] * (3 * BLOCK), 2))
    run(harness)


def evicted(tiers: Tiers | None = None, num_blocks: int = 8) -> tuple[Harness, Request]:
    """Of a request of five blocks all are in host memory, and none is in the cache."""
    harness = Harness(num_blocks=num_blocks, open_tiers=tiers or Tiers(host=40))
    first = make_request("first", PROMPT, 2)
    harness.scheduler.add(first)
    run(harness)
    fill(harness, max(6, num_blocks // 2))
    return harness, first


def test_an_evicted_prefix_comes_back_from_host_memory() -> None:
    """A later request loads it instead of computing it, and the plans name the blocks."""
    harness, _ = evicted()
    again = make_request("again", PROMPT, 2)
    harness.scheduler.add(again)
    harness.step()
    assert not harness.last.scheduled
    assert [load.tier for load in harness.last.block_loads] == ["host"]
    assert Reason.LOADING in harness.reasons()
    run(harness)
    assert again.num_cached_tokens == 5 * BLOCK
    assert again.output_token_ids == expected_output(again, PROMPT)
    assert harness.tiered.counts.loaded["host"] == 5


def test_other_requests_run_while_one_loads() -> None:
    harness, _ = evicted(num_blocks=16)
    harness.scheduler.add(make_request("again", PROMPT, 2))
    harness.scheduler.add(make_request("other", [7, 8, 9], 2))
    harness.step()
    assert list(harness.last.scheduled) == ["other"]
    run(harness)


def test_salts_are_apart_in_tiers() -> None:
    harness, _ = evicted()
    again = make_request("again", PROMPT, 2)
    respecify(again, cache_salt="another tenant")
    harness.scheduler.add(again)
    run(harness)
    assert again.num_cached_tokens == 0


@pytest.mark.parametrize("preemption", ["swap", "recompute"])
def test_swap_saves_what_recomputation_computes_again(preemption: PreemptionName) -> None:
    """Two requests that do not fit together: the tokens computed are fewer with swap."""
    harness = Harness(num_blocks=12, open_tiers=Tiers(swap=40), preemption=preemption)
    for name in "ab":
        harness.scheduler.add(make_request(name, [ord(name)] * (4 * BLOCK), 3 * BLOCK))
    computed = 0
    while harness.scheduler.has_work():
        harness.step()
        computed += harness.last.num_tokens
    assert harness.scheduler.batch.num_preemptions
    least = 2 * (4 * BLOCK + 3 * BLOCK - 1)
    counts = harness.tiered.counts
    if preemption == "swap":
        assert counts.swapped_out == counts.swapped_in == harness.scheduler.batch.num_preemptions
        assert computed < least + harness.scheduler.batch.num_preemptions * BLOCK
    else:
        assert not counts.swapped_out


def test_swap_space_is_bounded_and_given_back() -> None:
    """What does not fit is computed again; at the end nothing is left in the swap space."""
    tiers = Tiers(swap=2)
    harness = Harness(num_blocks=12, open_tiers=tiers, preemption="swap")
    for name in "abc":
        harness.scheduler.add(make_request(name, [ord(name)] * (4 * BLOCK), 3 * BLOCK))
    run(harness)
    assert harness.scheduler.batch.num_preemptions
    assert harness.tiered.directory.num_blocks("swap") == 0
    assert len(tiers.tiers["swap"]._free) == 2


def test_a_request_that_ends_while_its_blocks_load_leaks_none() -> None:
    """The executor still writes into them, so they stay taken until it says that it is through."""
    harness, _ = evicted()
    harness.scheduler.add(make_request("again", PROMPT, 2))
    plan = harness.scheduler.schedule(0.0)
    assert plan.block_loads
    harness.scheduler.finish("again", FinishReason.ABORT, 0.0)
    assert harness.kv.pool.num_free < 8 and harness.scheduler.has_work()
    harness.scheduler.add(make_request("again", [1, 2, 3], 2))  # the id is free again
    harness.scheduler.update(plan, harness.executor.execute(plan), 0.0)
    harness.kv.check_integrity()
    run(harness)


def test_a_cleared_cache_stays_empty_of_what_was_on_its_way() -> None:
    """The load goes on, as the executor writes; its request computes what it waited for."""
    harness, _ = evicted()
    again = make_request("again", PROMPT, 2)
    harness.scheduler.add(again)
    plan = harness.scheduler.schedule(0.0)
    assert plan.block_loads
    harness.kv.clear()
    harness.kv.check_integrity()
    harness.scheduler.update(plan, harness.executor.execute(plan), 0.0)
    assert harness.kv.pool.num_cached == 0
    run(harness)
    assert again.num_cached_tokens == 0
    assert again.output_token_ids == expected_output(again, PROMPT)


@pytest.mark.parametrize("groups", [KVGroups((None,)), KVGroups((None, 6))])
def test_what_runs_while_the_cache_is_cleared_takes_no_place_in_it(groups: KVGroups) -> None:
    """Its later blocks filled cache and tiers although no lookup could reach them."""
    tiers = Tiers(host=50, saves_filled=True)
    harness = Harness(num_blocks=64, open_tiers=tiers, groups=groups)
    harness.scheduler.add(make_request("a", list(range(20)), 40))
    for _ in range(8):
        harness.step()
    harness.kv.clear()
    harness.run()
    assert not harness.kv.pool.num_cached
    assert not harness.tiered.directory.num_blocks("host")
    harness.scheduler.add(make_request("b", list(range(20)), 1))
    harness.run()
    assert harness.kv.find_prefix(make_request("c", list(range(20)), 1)).num_tokens


def test_a_cleared_cache_empties_the_swap_space_too() -> None:
    harness = Harness(num_blocks=12, open_tiers=Tiers(swap=40), preemption="swap")
    for name in "ab":
        harness.scheduler.add(make_request(name, [ord(name)] * (4 * BLOCK), 3 * BLOCK))
    directory = harness.tiered.directory
    for _ in range(100):
        if directory.num_blocks("swap"):
            break
        harness.step()
    assert directory.num_blocks("swap")
    harness.kv.clear()
    assert not directory.num_blocks("swap")
    run(harness)


def test_a_load_that_fails_is_tried_as_far_as_it_can_be() -> None:
    """One block is lost: those before it are loaded, the rest is computed."""
    tiers = Tiers(host=40)
    harness, first = evicted(tiers)
    tiers.tiers["host"].drop([first.block_hashes[3]])
    tiers.tiers["host"].changes()  # as if it had happened just after the scheduler looked
    again = make_request("again", PROMPT, 2)
    harness.scheduler.add(again)
    run(harness)
    assert again.num_cached_tokens == 3 * BLOCK
    assert again.output_token_ids == expected_output(again, PROMPT)
    assert harness.tiered.counts.failed_loads == 1


def test_what_may_be_wrong_is_dropped_from_tiers_too() -> None:
    harness = Harness(num_blocks=16, open_tiers=Tiers(host=40, saves_filled=True))
    request = make_request("a", list(range(5 * BLOCK + 1)), 9)
    harness.scheduler.add(request)
    for _ in range(3):
        harness.step()
    directory = harness.tiered.directory
    assert directory.num_blocks("host") == 5
    harness.scheduler.finish("a", FinishReason.ERROR, 0.0, discard=True)
    run(harness)
    assert directory.num_blocks("host") == 0
    assert harness.executor.transfers is not None
    host = harness.executor.transfers.tiers["host"]
    assert isinstance(host, MemoryTier) and not host._slots


def test_nothing_is_loaded_that_is_computed_faster() -> None:
    """A slow tier is tried, measured, left alone, and tried again after a while."""
    harness = Harness(num_blocks=8, open_tiers=Tiers(host=40))
    speeds = harness.tiered.speeds
    assert speeds.load_pays({"host": 5}, 5 * BLOCK)  # nothing is known
    speeds._token_seconds, speeds._load_seconds["host"] = 0.001, 0.0041
    refused = 0
    while not speeds.load_pays({"host": 5}, 5 * BLOCK):
        refused += 1
    assert 1 <= refused <= 10


def test_the_swap_of_a_victim_is_a_matter_of_speed_under_auto() -> None:
    """Swapping costs more than computing: auto computes, without asking the tier."""
    harness = Harness(num_blocks=12, open_tiers=Tiers(swap=40), preemption="auto")
    speeds = harness.tiered.speeds
    speeds._token_seconds, speeds._save_seconds = 1e-6, 10.0
    for name in "ab":
        harness.scheduler.add(make_request(name, [ord(name)] * (4 * BLOCK), 3 * BLOCK))
    run(harness)
    assert harness.scheduler.batch.num_preemptions
    assert harness.tiered.counts.swapped_out == 0


def test_a_result_may_name_requests_that_load_nothing() -> None:
    harness = Harness(num_blocks=8, open_tiers=Tiers(host=4))
    harness.scheduler.add(make_request("a", [1, 2, 3], 2))
    plan = harness.scheduler.schedule(0.0)
    result = harness.executor.execute(plan)
    result.loaded, result.failed_loads = ["a"], ["unknown"]
    harness.scheduler.update(plan, result, 0.0)
    run(harness)


class RefusingTier(MemoryTier):
    """Takes no block in."""

    def save(self, key: BlockKey, block: memoryview) -> bool:
        return False


def test_refused_saves_do_not_count_as_saved() -> None:
    """Neither in the counts, from which metrics come, nor in step events."""

    def open_tiers(block_bytes: int, _: threading.Event) -> dict[str, KVConnector]:
        sizes = {"num_blocks": 50, "block_bytes": block_bytes, "saves_filled": True}
        return {
            "host": MemoryTier(TierInfo(name="host", **sizes)),  # type: ignore[arg-type]
            "disk": RefusingTier(TierInfo(name="disk", **sizes)),  # type: ignore[arg-type]
        }

    harness = Harness(SchedulerConfig(), 20, open_tiers=open_tiers)
    harness.scheduler.add(make_request("a", list(range(3 * BLOCK + 1))))
    run(harness)
    assert harness.tiered.counts.saved == {"host": 4, "disk": 0}


def test_offers_bring_no_more_tiers_than_there_may_be() -> None:
    """And none that holds blocks of this engine's own, or is no address."""
    any_peer = TierInfo(name="peers", num_blocks=0, loads_only=True, by_address=True)
    host = TierInfo(name="host", num_blocks=4)
    for tiers, names in (
        ([host], []),
        ([host, any_peer], [f"10.0.0.1:{number}" for number in range(1, MAX_PEERS)]),
    ):
        blocks = TieredBlocks(KVCacheManager(8, BLOCK), tiers)
        for number in range(1, 200):
            request = make_request(str(number), [1] * (BLOCK + 1))
            blocks._expect(request, KVOffer(f"10.0.0.1:{number}", BLOCK))
            for other in ("host", "/run/some.sock", "peer0", "10.0.0.1"):
                blocks._expect(request, KVOffer(other, BLOCK))
        assert list(blocks.directory.tiers) == [*(tier.name for tier in tiers), *names]
        assert blocks.directory.num_blocks("host") == 0
