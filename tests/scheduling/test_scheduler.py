"""The scheduler with the KV manager: exact under any mix, replayable, never stuck, and it says
why.
"""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes import VOCAB, FakeExecutor
from tests.scheduling.harness import BLOCK, Harness, expected_output, make_request
from tests.specs import respecify
from twostroke.core.config import PolicyName, SchedulerConfig
from twostroke.core.errors import ErrorMessage, NonFiniteLogitsError, RequestTooLargeError
from twostroke.core.request import FinishReason, Request
from twostroke.core.step import Reason
from twostroke.kv_cache.block_table import Prefix
from twostroke.kv_cache.check_fits import check_fits
from twostroke.kv_cache.manager import KVCacheManager
from twostroke.scheduling.policies.choose import choose_policy
from twostroke.scheduling.scheduler import Scheduler
from twostroke.scheduling.stats import read_stats

Arrival = tuple[int, list[int], int, int, int]  # step, prompt, max_tokens, n, priority
# config, num_blocks, caching, num_drafts, arrivals, aborts
Trace = tuple[SchedulerConfig, int, bool, int, list[Arrival], dict[int, int]]


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Mixes in which requests share prefixes and samples, and in which blocks are mostly scarce."""
    config = SchedulerConfig(
        max_num_batched_tokens=draw(st.sampled_from([1, 3, 7, 16, 40])),
        max_num_seqs=draw(st.integers(1, 8)),
        max_prefill_chunk=draw(st.none() | st.integers(1, 12)),
        policy=draw(st.sampled_from(get_args(PolicyName))),
        batching=draw(st.sampled_from(["continuous"] * 4 + ["static"])),
    )
    random = draw(st.randoms(use_true_random=False))
    shared = [random.randrange(VOCAB) for _ in range(12)]
    arrivals: list[Arrival] = [
        (
            random.randrange(8),
            shared[: random.randrange(13)]
            + [random.randrange(VOCAB) for _ in range(random.randrange(1, 10))],
            random.randrange(1, 13),
            random.choice([1, 1, 2, 4]),
            random.randrange(3),
        )
        for _ in range(draw(st.integers(1, 10)))
    ]
    aborts = {random.randrange(10): random.randrange(20) for _ in range(draw(st.integers(0, 3)))}
    return (
        config,
        draw(st.sampled_from([9, 9, 10, 12, 16, 30])),
        draw(st.booleans()),
        draw(st.sampled_from([0, 0, 1, 4])),
        arrivals,
        aborts,
    )


def replay(
    trace: Trace,
    *,
    ahead: bool = False,
) -> list[bytes]:
    """Run a trace to its end, check every output against the fake model alone, and return the
    plans.
    """
    config, num_blocks, caching, num_drafts, arrivals, aborts = trace
    harness = Harness(config, num_blocks, caching, num_drafts, ahead=ahead)
    samples: list[tuple[Request, list[int]]] = []
    for step in range(3000):
        for number, (at, prompt, max_tokens, n, priority) in enumerate(arrivals):
            if at == step:
                leader = None
                for index in range(n):
                    tenant = "abc"[number % 3]
                    request = make_request(
                        f"{number}#{index}",
                        prompt,
                        max_tokens,
                        leader=leader,
                        priority=priority,
                        seed=index,
                        tenant=tenant,
                    )
                    harness.scheduler.add(request)
                    samples.append((request, prompt))
                    leader = leader or request
            if aborts.get(number) == step:
                harness.scheduler.finish(f"{number}#0", FinishReason.ABORT, harness.now)
                harness.kv.check_integrity()
        if harness.has_work():
            harness.step()
        elif step > 12:
            break
    harness.run(0)
    for request, prompt in samples:
        expected = expected_output(request, prompt)
        if request.finish_reason is FinishReason.ABORT:
            expected = expected[: request.num_output_tokens]
        assert request.output_token_ids == expected, request.request_id
    return harness.plans


@settings(max_examples=300, deadline=None)
@given(traces())
def test_every_output_is_what_the_request_alone_would_give(
    trace: Trace,
) -> None:
    """Chunks, shared prefixes, samples, preemption and aborts never show in an output, and blocks
    never leak.
    """
    replay(trace)
    replay(trace, ahead=True)


@settings(max_examples=60, deadline=None)
@given(traces())
def test_the_same_trace_gives_the_same_plans(
    trace: Trace,
) -> None:
    """Replay, simulation and the inspector rest on this: byte for byte the same decisions."""
    assert replay(trace) == replay(trace)


def test_decode_goes_before_prefill() -> None:
    """A long prompt gets what is left of the budget; running requests never wait for it."""
    harness = Harness(SchedulerConfig(max_num_batched_tokens=8))
    harness.scheduler.add(make_request("a", [1, 2], 10))
    harness.step()
    harness.scheduler.add(make_request("long", list(range(1, 31)), 2))
    harness.step()
    assert [(i, s.num_tokens) for i, s in harness.last.scheduled.items()] == [("a", 1), ("long", 7)]
    assert harness.reasons() == {Reason.TOKEN_BUDGET}


def test_chunk_limit_leaves_budget_to_others() -> None:
    harness = Harness(SchedulerConfig(max_num_batched_tokens=20, max_prefill_chunk=6))
    harness.scheduler.add(make_request("long", list(range(1, 31)), 2))
    harness.scheduler.add(make_request("short", [1, 2, 3], 2))
    harness.step()
    assert {i: s.num_tokens for i, s in harness.last.scheduled.items()} == {"long": 6, "short": 3}
    assert harness.reasons() == {Reason.PREFILL_CHUNK}


def test_prefix_is_reused_and_counted() -> None:
    harness = Harness()
    prompt = list(range(1, 14))
    harness.scheduler.add(make_request("first", prompt))
    harness.run()
    second = make_request("second", prompt)
    harness.scheduler.add(second)
    harness.step()
    assert second.num_cached_tokens == 12
    assert harness.last.scheduled["second"].num_tokens == 1
    harness.run()


@pytest.mark.parametrize("salts", [("", "x"), ("x", "y")])
def test_salt_separates_prefixes(salts: tuple[str, str]) -> None:
    """One tenant must not learn from timing what another has sent."""
    harness = Harness()
    requests = [make_request(salt or "none", list(range(1, 14))) for salt in salts]
    for request, salt in zip(requests, salts, strict=True):
        respecify(request, cache_salt=salt)
        harness.scheduler.add(request)
        harness.run()
    assert [r.num_cached_tokens for r in requests] == [0, 0]


def test_samples_share_the_prompt_and_copy_on_write() -> None:
    """Three samples of a ten-token prompt: two full blocks are held once, the half-full third is
    copied.
    """
    harness = Harness(caching=False)
    leader = make_request("s#0", list(range(1, 11)), 6)
    for request in (leader, make_request("s#1", leader.token_ids, 6, leader=leader, seed=1)):
        harness.scheduler.add(request)
    harness.step()
    assert list(harness.last.scheduled) == ["s#0"]
    assert harness.reasons() == {Reason.SHARES_PROMPT}
    harness.step()
    assert harness.last.scheduled["s#1"].num_tokens == 1
    assert len(harness.last.block_copies) == 1
    tables = [harness.kv.block_ids(r) for r in harness.scheduler.running.values()]
    assert tables[0][:2] == tables[1][:2]
    assert tables[0][2] != tables[1][2]
    harness.run()


def test_preemption_names_who_caused_it_and_the_victim_still_answers_exactly() -> None:
    harness = Harness(SchedulerConfig(max_num_seqs=4), num_blocks=9)
    requests = [make_request(str(i), [i + 1] * 9, 14) for i in range(3)]
    for request in requests:
        harness.scheduler.add(request)
    preempted = []
    while harness.scheduler.has_work():
        harness.step()
        preempted += [
            (d.request_id, d.by) for d in harness.last.decisions if d.reason is Reason.PREEMPTED
        ]
    assert preempted
    assert all(victim > (by or "") for victim, by in preempted), "the later arrival must yield"
    for request in requests:
        assert request.output_token_ids == expected_output(request, request.token_ids[:9])


def test_priority_decides_who_runs_and_who_yields() -> None:
    harness = Harness(SchedulerConfig(max_num_seqs=1, policy="priority"))
    for request_id, priority in (("first", 1), ("low", 5), ("high", -1)):
        harness.scheduler.add(make_request(request_id, [1, 2], 2, priority=priority))
    order = []
    while harness.scheduler.has_work():
        harness.step()
        order += [i for i in harness.last.scheduled if i not in order]
    assert order == ["high", "first", "low"]


def test_an_id_used_again_after_an_abort_is_a_new_request() -> None:
    """The queue forgets lazily: what was aborted while it waited must not run under the same
    name.
    """
    harness = Harness(SchedulerConfig(max_num_seqs=1))
    for request_id in ("first", "a"):
        harness.scheduler.add(make_request(request_id, [1, 2, 3]))
    harness.step()
    harness.scheduler.finish("a", FinishReason.ABORT, harness.now)
    again = make_request("a", [4, 5])
    harness.scheduler.add(again)
    harness.run()
    assert again.output_token_ids == expected_output(again, [4, 5])


def test_static_batching_waits_for_the_whole_batch() -> None:
    harness = Harness(SchedulerConfig(max_num_seqs=2, batching="static"))
    for request_id, max_tokens in (("a", 2), ("b", 6), ("c", 2)):
        harness.scheduler.add(make_request(request_id, [1, 2, 3], max_tokens))
    steps = []
    while harness.scheduler.has_work():
        harness.step()
        steps.append(set(harness.last.scheduled))
    assert steps == [{"a", "b"}] * 2 + [{"b"}] * 4 + [{"c"}] * 2


def test_request_that_can_never_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(RequestTooLargeError) as caught:
        check_fits(20, num_blocks=4, block_size=BLOCK)
    assert (caught.value.needed, caught.value.available) == (20, 16)
    check_fits(16, num_blocks=4, block_size=BLOCK)


def test_failed_request_ends_alone_and_leaves_nothing_in_the_cache() -> None:
    """What a failed request computed may be wrong: a later request with the same prompt must not
    reuse it.
    """
    harness = Harness()
    bad, good = make_request("bad", list(range(1, 14))), make_request("good", list(range(20, 33)))
    harness.scheduler.add(bad)
    harness.scheduler.add(good)
    harness.step()
    plan = harness.scheduler.schedule(harness.now)
    result = harness.executor.execute(plan)
    result.errors["bad"] = ErrorMessage.of(NonFiniteLogitsError("NaN"))
    outputs = {o.request_id: o for o in harness.scheduler.update(plan, result, harness.now)}
    harness.kv.check_integrity()
    assert outputs["bad"].finish_reason is FinishReason.ERROR
    assert not outputs["good"].finished
    again = make_request("again", list(range(1, 14)))
    harness.scheduler.add(again)
    harness.run()
    assert again.num_cached_tokens == 0


def test_prompt_logprobs_compute_every_token() -> None:
    harness = Harness()
    harness.scheduler.add(make_request("first", list(range(1, 14))))
    harness.run()
    request = make_request("second", list(range(1, 14)))
    request.params = replace(request.params, prompt_logprobs=1)
    harness.scheduler.add(request)
    harness.step()
    assert harness.last.scheduled["second"].num_tokens == 13


def test_a_prompt_that_is_scored_goes_in_small_chunks() -> None:
    """Its logits would hold up other requests; once they are known it runs as any other."""
    harness = Harness(SchedulerConfig(max_num_batched_tokens=1000), num_blocks=400)
    plain, scored = (
        make_request(name, [number] * 600) for number, name in enumerate(("plain", "scored"))
    )
    scored.params = replace(scored.params, prompt_logprobs=1)
    for request in (scored, plain):
        harness.scheduler.add(request)
    harness.step()
    assert {name: item.num_tokens for name, item in harness.last.scheduled.items()} == {
        "scored": 256,
        "plain": 600,
    }
    assert harness.reasons() == {Reason.PREFILL_CHUNK}
    scored.num_scored_tokens = 599
    harness.step()
    assert harness.last.scheduled["scored"].num_tokens == 344
    harness.run()


def test_waste_is_the_unused_part_of_last_blocks() -> None:
    harness = Harness()
    harness.scheduler.add(make_request("a", list(range(1, 10)), 5))
    harness.step()
    stats = read_stats(harness.scheduler)
    assert (stats.allocated_slots, stats.used_slots) == (12, 9)


def test_admission_leaves_the_blocks_that_running_requests_still_need() -> None:
    """A prompt that runs in chunks has its later blocks promised, so that it is not preempted."""
    harness = Harness(SchedulerConfig(max_num_batched_tokens=8, max_prefill_chunk=4), num_blocks=10)
    harness.scheduler.add(make_request("long", list(range(1, 30)), 2))
    harness.scheduler.add(make_request("other", list(range(30, 42)), 2))
    harness.step()
    assert list(harness.last.scheduled) == ["long"]
    assert Reason.NO_FREE_BLOCK in harness.reasons()
    harness.run()
    assert harness.scheduler.batch.num_preemptions == 0


class CountingKV(KVCacheManager):
    """Counts the lookups."""

    lookups = 0

    def find_prefix(self, request: Request) -> Prefix:
        self.lookups += 1
        return super().find_prefix(request)


def test_who_is_kept_out_by_a_limit_is_not_looked_up_at_every_step() -> None:
    limits = (
        (SchedulerConfig(max_num_seqs=1), 64),  # no place
        (SchedulerConfig(), 5),  # no block: the first request needs them all
    )
    for config, num_blocks in limits:
        kv = CountingKV(num_blocks, BLOCK)
        scheduler = Scheduler(config, kv, choose_policy(config))
        executor = FakeExecutor(num_blocks, BLOCK)
        for name in ("first", "second"):
            scheduler.add(make_request(name, list(range(17)), max_tokens=3))
        for _ in range(3):
            plan = scheduler.schedule(0.0)
            scheduler.update(plan, executor.execute(plan), 0.0)
        assert kv.lookups == 1
        plan = scheduler.schedule(0.0)
        assert list(plan.scheduled) == ["second"]
        assert kv.lookups == 2
