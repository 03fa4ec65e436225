"""Protects: a request's recurrent state is that of its own tokens, wherever it starts from."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scheduling.harness import BLOCK, Harness, draw_prompt, expected_output, make_request
from tests.specs import respecify
from twostroke.core.config import SchedulerConfig
from twostroke.core.kv_groups import KVGroups
from twostroke.core.request import FinishReason, Request
from twostroke.kv_cache.state_slots import StateSlots


@settings(max_examples=120)
@given(
    seed=st.integers(0, 10**6),
    num_blocks=st.integers(14, 40),
    num_slots=st.integers(1, 12),
    spacing=st.integers(1, 4),
    caching=st.booleans(),
    windows=st.sampled_from([(None,), (None, 6), (5,)]),
    budget=st.integers(3, 20),
    num_drafts=st.sampled_from([0, 0, 2, 5]),
    repeat_every=st.sampled_from([0, 2, 5]),
    ahead=st.booleans(),
)
def test_every_output_is_what_the_request_alone_would_give(
    seed: int,
    num_blocks: int,
    num_slots: int,
    spacing: int,
    caching: bool,
    windows: tuple[int | None, ...],
    budget: int,
    num_drafts: int,
    repeat_every: int,
    ahead: bool,
) -> None:
    """Shared prefixes, turns, samples, aborts and preemptions over scarce blocks and slots; drafts
    that are rejected, draws that are repeated.

    The fake executor fails where a state is not that of the tokens before it.
    """
    random, groups = Random(seed), KVGroups(windows, budget)
    harness = Harness(
        SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=4),
        num_blocks * groups.count,
        caching,
        groups=groups,
        num_state_slots=num_slots,
        state_spacing=spacing,
        num_drafts=num_drafts,
        repeat_every=repeat_every,
        ahead=ahead,
    )
    shared = [random.randrange(50) for _ in range(6 * BLOCK)]
    requests: list[Request] = []
    aborted: set[str] = set()
    for number in range(10):
        prompt, leader = draw_prompt(random, shared, requests)
        has_form = num_slots > 2 and random.random() < 0.3
        request = make_request(
            str(number), prompt, random.randrange(1, 14), leader=leader, has_form=has_form
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
    harness.run(4000)
    for request in requests:
        if request.request_id not in aborted:
            prompt = request.token_ids[: request.num_prompt_tokens]
            output = request.token_ids[request.num_prompt_tokens :]
            assert output == expected_output(request, prompt)


def test_the_next_turn_starts_where_the_last_one_ended() -> None:
    """At the last block boundary of its answer, however far apart kept checkpoints are."""
    harness = Harness(num_blocks=64, num_state_slots=8, state_spacing=100)
    text = [n % 50 for n in range(3 * BLOCK + 2)]
    for turn, answer in enumerate((2 * BLOCK + 1, BLOCK, 9)):
        request = make_request(str(turn), text, answer)
        found = harness.kv.find_prefix(request).num_tokens
        assert found == 0 if turn == 0 else found == (len(text) - 2) // BLOCK * BLOCK
        harness.scheduler.add(request)
        harness.run()
        assert request.num_cached_tokens == found
        text = [*request.token_ids, 7]


def test_a_prompt_that_is_sent_again_is_computed_from_its_last_block_on() -> None:
    harness = Harness(num_blocks=64, num_state_slots=8, state_spacing=100)
    for length in (5 * BLOCK, 5 * BLOCK + 1, 5 * BLOCK + 3):
        prompt = [length, *range(length - 1)]
        for name in ("first", "again"):
            request = make_request(f"{name}-{length}", prompt, 1)
            harness.scheduler.add(request)
            harness.run()
        assert request.num_cached_tokens == (length - 1) // BLOCK * BLOCK


def test_an_answer_keeps_one_checkpoint_and_those_at_their_spacing() -> None:
    harness = Harness(num_blocks=64, num_state_slots=32, state_spacing=4)
    request = make_request("long", list(range(2 * BLOCK + 1)), 10 * BLOCK)
    harness.scheduler.add(request)
    harness.run()
    keys = request.block_hashes
    assert isinstance(harness.kv.states, StateSlots)
    pool = harness.kv.states.pool
    kept = [place for place, key in enumerate(keys, 1) if pool.find(key) is not None]
    assert kept == [2, 4, 8, 12]  # the prompt's last boundary, every fourth, and the latest


def test_without_a_free_slot_no_checkpoint_is_made() -> None:
    """One slot is enough to run one request after the other."""
    harness = Harness(num_blocks=64, num_state_slots=1)
    prompt = list(range(4 * BLOCK + 1))
    requests = [make_request(name, prompt, 5) for name in "abc"]
    for request in requests:
        harness.scheduler.add(request)
    harness.run()
    for request in requests:
        assert request.num_cached_tokens == 0
        assert request.output_token_ids == expected_output(request, prompt)
