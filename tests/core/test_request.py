"""The plan's own bookkeeping."""

from __future__ import annotations

from twostroke.core.request import Request
from twostroke.core.sampling_params import SamplingParams
from twostroke.core.step import ScheduledRequest, StepPlan


def test_a_removed_request_takes_its_tokens_and_copies_with_it() -> None:
    """Its blocks may be given away in the same step: a stale copy could overwrite them."""
    plan = StepPlan(step=0, time=0.0)
    for name, blocks in (("a", [1, 2]), ("b", [3])):
        request = Request(
            request_id=name,
            token_ids=[1] * 9,
            num_prompt_tokens=9,
            params=SamplingParams(),
            max_total_tokens=20,
        )
        plan.add(ScheduledRequest(request, 0, 5, blocks, 0))
    plan.block_copies = [(7, 2), (8, 3)]
    plan.remove("a")
    plan.remove("unknown")
    assert (list(plan.scheduled), plan.num_tokens, plan.block_copies) == (["b"], 5, [(8, 3)])
