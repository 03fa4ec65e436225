"""Protects: drafts never show in an output, and a request that loads holds up no other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fakes import VOCAB
from tests.scheduling.harness import BLOCK, Harness, expected_output, make_request
from twostroke.core.config import SchedulerConfig
from twostroke.core.request import FinishReason
from twostroke.core.step import Reason, StepResult
from twostroke.scheduling.speculation import FixedDepth


def test_accepted_drafts_save_steps_and_never_show() -> None:
    """Progress moves by what was accepted: fewer steps, the same tokens, blocks given back."""
    steps = []
    for num_drafts in (0, 4):
        harness = Harness(num_drafts=num_drafts)
        request = make_request("a", [1, 2, 3], 40)
        harness.scheduler.add(request)
        harness.run()
        assert request.output_token_ids == expected_output(request, [1, 2, 3])
        steps.append(len(harness.plans))
        assert (harness.executor.num_accepted > 0) == (num_drafts > 0)
    assert steps[1] < steps[0]


def test_drafts_yield_to_the_budget_and_to_the_length_of_the_answer() -> None:
    harness = Harness(SchedulerConfig(max_num_batched_tokens=3), num_drafts=8)
    request = make_request("a", [1], 5)
    harness.scheduler.add(request)
    while harness.scheduler.has_work():
        harness.step()
        share = harness.last.scheduled["a"]
        assert share.num_tokens <= 3
        assert share.start + share.num_tokens < request.max_total_tokens
    assert request.output_token_ids == expected_output(request, [1])


def test_rejected_drafts_are_not_indexed() -> None:
    """A block enters the prefix cache when accepted tokens fill it, and not before."""
    harness = Harness(num_drafts=8)
    request = make_request("a", [1, 2], 30)
    harness.scheduler.add(request)
    while harness.scheduler.has_work():
        harness.step()
        assert harness.kv.pool.num_cached <= request.num_computed_tokens // BLOCK


def test_a_loading_request_holds_up_no_other() -> None:
    """It waits outside the queue until its blocks are there, and the plans say why."""
    harness = Harness(SchedulerConfig(max_num_seqs=1))
    for name in ("loading", "held", "other"):
        harness.scheduler.add(make_request(name, [1, 2, 3], 1))
    harness.set_aside("loading")
    harness.set_aside("held")
    harness.step()
    assert list(harness.last.scheduled) == ["other"]
    reasons = {d.request_id: d.reason for d in harness.last.decisions}
    assert reasons == {"loading": Reason.LOADING, "held": Reason.LOADING}
    plan = harness.scheduler.schedule(harness.now)
    assert not plan.scheduled
    harness.executor.execute(plan)
    harness.scheduler.update(plan, StepResult(loaded=["loading"]), harness.now)
    harness.step()
    assert list(harness.last.scheduled) == ["loading"]
    harness.scheduler.finish("held", FinishReason.ABORT, harness.now)
    harness.scheduler.waiting.resume("held")
    assert not harness.scheduler.has_work()


def test_a_load_that_fails_lets_its_request_compute() -> None:
    """It waits for nothing any more, and its output is what it would have been."""
    harness = Harness()
    request = make_request("a", [1, 2, 3], 3)
    harness.scheduler.add(request)
    harness.set_aside("a")
    plan = harness.scheduler.schedule(harness.now)
    harness.executor.execute(plan)
    harness.scheduler.update(plan, StepResult(failed_loads=["a", "unknown"]), harness.now)
    harness.run()
    assert request.output_token_ids == expected_output(request, [1, 2, 3])


def test_drafts_preempt_nothing() -> None:
    """Where known tokens fit and drafts do not, the drafts are left out."""
    preemptions = []
    for num_drafts in (0, 8):
        harness = Harness(num_blocks=6, num_drafts=num_drafts)
        for name in "ab":
            harness.scheduler.add(make_request(name, [ord(name), 2, 3], 2 * BLOCK))
        harness.run()
        preemptions.append(harness.scheduler.batch.num_preemptions)
    assert preemptions == [0, 0]


@pytest.mark.parametrize("seed", range(40))
def test_a_stop_token_among_accepted_drafts_ends_the_request(seed: int) -> None:
    """The tokens behind it are nowhere: not in the output, not in blocks that others find."""
    for caching in (True, False):
        outputs = []
        for num_drafts in (0, 7):
            config = SchedulerConfig(max_num_batched_tokens=16)
            harness = Harness(config, num_blocks=12, caching=caching, num_drafts=num_drafts)
            requests = [make_request(name, [seed, 2, 3], 30, seed=seed) for name in "abc"]
            for request in requests:
                request.stop_token_ids = frozenset(range(seed % 7, VOCAB, 9))
                harness.scheduler.add(request)
            harness.run()
            outputs.append([request.token_ids for request in requests])
        assert outputs[0] == outputs[1]


@pytest.mark.parametrize("num_blocks", [6, 64])
def test_drafting_gets_slots_where_there_are_some(num_blocks: int) -> None:
    """Drafting may write keys and values behind the known tokens; it takes no block from others,
    and nothing is drafted that could not become part of the answer."""
    harness = Harness(num_blocks=num_blocks)
    harness.scheduler.depth = FixedDepth(3, needs_slots=True)
    requests = [make_request(name, [ord(name), 2, 3], 2 * BLOCK) for name in "ab"]
    for request in requests:
        harness.scheduler.add(request)
    granted = 0
    while harness.scheduler.has_work():
        harness.step()
        for share in harness.last.scheduled.values():
            request = harness.scheduler.requests.get(share.request_id, requests[0])
            end = share.start + share.num_tokens
            if share.max_new_drafts:
                table = harness.executor.tables[share.request_id]
                assert len(table) * BLOCK >= end + share.max_new_drafts
                assert end + 1 + share.max_new_drafts < request.max_total_tokens
                granted += 1
    assert granted
    assert harness.scheduler.batch.num_preemptions == 0
    for request in requests:
        assert request.output_token_ids == expected_output(request, request.token_ids[:3])


def test_a_request_may_ask_for_fewer_drafts_or_none() -> None:
    harness = Harness()
    harness.scheduler.depth = FixedDepth(3)
    for name, asked in (("a", None), ("b", 0), ("c", 2), ("d", 9)):
        request = make_request(name, [ord(name), 2, 3], 20)
        request.params = replace(request.params, speculation=asked)
        harness.scheduler.add(request)
    harness.step()
    depths = {name: share.max_new_drafts for name, share in harness.last.scheduled.items()}
    assert depths == {"a": 3, "b": 0, "c": 2, "d": 3}


def test_a_share_that_is_repeated_counts_for_nothing() -> None:
    """Its numbers went wrong with drafts: the next step computes it again, without them."""
    harness = Harness(num_drafts=4)
    request = make_request("a", [1, 2, 3], 20)
    harness.scheduler.add(request)
    harness.step()
    plan = harness.scheduler.schedule(harness.now)
    assert plan.scheduled["a"].draft_token_ids
    harness.executor.execute(plan)
    computed, tokens = request.num_computed_tokens, list(request.token_ids)
    assert harness.scheduler.update(plan, StepResult(repeated=["a"]), harness.now) == []
    assert (request.num_computed_tokens, request.token_ids) == (computed, tokens)
    plan = harness.scheduler.schedule(harness.now)
    assert not plan.scheduled["a"].draft_token_ids
    harness.scheduler.update(plan, harness.executor.execute(plan), harness.now)
    harness.run()
    assert request.output_token_ids == expected_output(request, [1, 2, 3])


def test_a_sample_that_resumes_still_waits_for_its_leaders_prompt() -> None:
    harness = Harness(SchedulerConfig(max_num_batched_tokens=4))
    leader = make_request("a", list(range(10)), 2)
    sample = make_request("b", list(range(10)), 2, leader=leader)
    harness.scheduler.add(leader)
    harness.scheduler.add(sample)
    harness.set_aside("b")
    harness.scheduler.waiting.resume("b")
    harness.step()
    assert Reason.SHARES_PROMPT in harness.reasons()
    harness.run()
    assert sample.num_cached_tokens == 9
