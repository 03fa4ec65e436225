"""Protects: a tenant with nothing running need not wait for heavy ones, and pays for it."""

from __future__ import annotations

import pytest

from tests.scheduling.harness import Harness, expected_output, make_request
from twostroke.core.config import SchedulerConfig
from twostroke.core.request import Request
from twostroke.core.step import Reason


def crowd(harness: Harness, count: int, output: int = 40) -> list[Request]:
    """A tenant's requests, some steps into their answers."""
    requests = [make_request(f"a{i}", [i + 1] * 6, output, tenant="a") for i in range(count)]
    for request in requests:
        harness.scheduler.add(request)
    for _ in range(6):
        harness.step()
    return requests


@pytest.mark.parametrize("seats, blocks", [(3, 64), (8, 10)])
def test_a_boosted_request_takes_the_place_of_the_heavy_tenants_latest(
    seats: int, blocks: int
) -> None:
    """Whether seats or blocks are lacking; and what is displaced goes on to give the same
    answer.
    """
    harness = Harness(
        SchedulerConfig(policy="fair", max_num_seqs=seats, max_num_batched_tokens=32), blocks, False
    )
    crowded = crowd(harness, 3, 20)
    boosted = make_request("b", [9] * 7, 5, tenant="b")
    harness.scheduler.add(boosted)
    harness.step()
    assert boosted.num_output_tokens == 1
    preempted = [
        (d.request_id, d.by) for d in harness.last.decisions if d.reason.value == "preempted"
    ]
    assert preempted == [("a2", "b")]
    harness.run()
    for request in [*crowded, boosted]:
        prompt = request.token_ids[: request.num_prompt_tokens]
        assert request.output_token_ids == expected_output(request, prompt)


def test_a_tenant_with_one_request_running_does_not_yield() -> None:
    harness = Harness(SchedulerConfig(policy="fair", max_num_seqs=2))
    for tenant in "abc":
        harness.scheduler.add(make_request(tenant, [1, 2, 3], 9, tenant=tenant))
    harness.run()
    assert harness.scheduler.batch.num_preemptions == 0


def test_a_boosted_prompt_goes_first_and_leaves_heavy_tenants_a_quarter() -> None:
    harness = Harness(
        SchedulerConfig(
            policy="fair", max_num_seqs=16, max_num_batched_tokens=16, max_prefill_chunk=8
        )
    )
    crowd(harness, 8)
    harness.scheduler.add(make_request("single", [1, 2], 30, tenant="c"))
    harness.step()
    harness.step()
    harness.scheduler.add(make_request("b", [9] * 20, 3, tenant="b"))
    shares, reasons = [], []
    for _ in range(4):
        harness.step()
        reasons.append({d.reason for d in harness.last.decisions if d.request_id != "b"})
        tokens = {name: item.num_tokens for name, item in harness.last.scheduled.items()}
        shares.append(
            (tokens["b"], tokens["single"], sum(n for name, n in tokens.items() if name[0] == "a"))
        )
    # The one with a single request goes on; what it takes comes out of the heavy tenants' quarter.
    assert shares == [(8, 1, 1), (8, 1, 1), (4, 1, 0), (1, 1, 8)]
    # Ten tokens of sixteen were spent: it is not the budget that kept the heavy tenants back.
    assert reasons == [{Reason.POLICY}] * 3 + [set()]


def test_a_tenant_that_displaces_repeatedly_must_have_forgone_the_cost() -> None:
    """Tiny requests without end make the engine compute no more tokens twice than their tenant let
    pass.
    """
    harness = Harness(
        SchedulerConfig(policy="fair", max_num_seqs=2, max_num_batched_tokens=64), 200, False
    )
    for number in range(2):
        harness.scheduler.add(make_request(f"a{number}", [number + 1] * 60, 60, tenant="a"))
    number, displaced, heavy_tokens = 0, [], 0
    while harness.scheduler.requests.keys() & {"a0", "a1"}:
        if not any(name[0] == "b" for name in harness.scheduler.requests):
            harness.scheduler.add(make_request(f"b{number}", [3], 1, tenant="b"))
            number += 1
        before = {name: r.num_computed_tokens for name, r in harness.scheduler.running.items()}
        harness.step()
        heavy_tokens += sum(
            i.num_tokens for name, i in harness.last.scheduled.items() if name[0] == "a"
        )
        displaced += [
            before[d.request_id] for d in harness.last.decisions if d.reason.value == "preempted"
        ]
    assert displaced
    assert sum(displaced) <= heavy_tokens / 2 + max(displaced)
