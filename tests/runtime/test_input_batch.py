"""From plans to tensors: tokens, positions, slots, and block tables that are sent in parts."""

from __future__ import annotations

import torch

from tests.specs import resolved
from twostroke.core.step import NewRequest, ScheduledRequest, StepPlan
from twostroke.runtime.input_batch import Batch, InputBatch
from twostroke.runtime.live_requests import LiveRequests


class Inputs:
    """An input batch and the request states beside it, as an executor keeps them."""

    def __init__(self, max_num_seqs: int = 2, max_blocks: int = 4) -> None:
        self.requests = LiveRequests()
        device = torch.device("cpu")
        self.batch = InputBatch(max_blocks, 4, device, num_rows=max_num_seqs)

    def build(self, *shares: ScheduledRequest, new: dict[str, list[int]] | None = None) -> Batch:
        plan = StepPlan(step=0, time=0.0)
        for request_id, tokens in (new or {}).items():
            plan.new_requests[request_id] = NewRequest(resolved(request_id, tokens))
        for share in shares:
            plan.add(share)
        self.requests.update(plan)
        return self.batch.build(plan, self.requests)


def test_tokens_positions_and_slots() -> None:
    batch = Inputs().build(
        ScheduledRequest("a", 2, 4, False, 2, 0, [7, 3]),
        ScheduledRequest("b", 0, 2, True, 1, 0, [5]),
        new={"a": [10, 11, 12, 13, 14, 15, 16], "b": [20, 21]},
    )
    assert batch.token_ids.tolist() == [12, 13, 14, 15, 20, 21]
    assert batch.positions.tolist() == [2, 3, 4, 5, 0, 1]
    assert batch.query_start == [0, 4, 6]
    assert batch.attention.slots.tolist() == [30, 31, 12, 13, 20, 21]
    assert batch.attention.context_lens.tolist() == [6, 2]
    assert batch.attention.query_lens.tolist() == [4, 2]
    assert batch.attention.block_table[0, :2].tolist() == [7, 3]
    assert (batch.rows(0), batch.rows(1)) == (slice(0, 4), slice(4, 6))
    assert batch.sampling == [1]


def test_only_what_is_new_is_sent() -> None:
    """Blocks before ``first_new_block`` and tokens of earlier plans stay as they were."""
    inputs = Inputs()
    inputs.build(ScheduledRequest("a", 0, 8, True, 2, 0, [7, 3]), new={"a": list(range(8))})
    batch = inputs.build(ScheduledRequest("a", 8, 1, True, 3, 2, [6], [42]))
    assert batch.attention.block_table[0, :3].tolist() == [7, 3, 6]
    assert batch.attention.slots.tolist() == [24]
    assert batch.token_ids.tolist() == [42]
    batch = inputs.build(ScheduledRequest("a", 9, 1, True, 3, 1, [8, 6], [43]))
    assert batch.attention.block_table[0, :3].tolist() == [7, 8, 6]
    batch = inputs.build(ScheduledRequest("a", 10, 1, True, 3, 0, [], [44]))
    assert batch.attention.block_table[0, :3].tolist() == [7, 8, 6]
    assert inputs.requests["a"].token_ids == [*range(8), 42, 43, 44]


def test_tables_are_no_wider_than_what_is_filled() -> None:
    """Not as wide as the longest request that there may be: a step would copy millions of them."""
    inputs = Inputs(max_blocks=10**6)
    batch = inputs.build(
        ScheduledRequest("a", 0, 2, True, 1, 0, [7, 3, 9]),  # with slots for drafts to come
        ScheduledRequest("b", 0, 2, True, 1, 0, [5]),
        new={"a": [1, 2], "b": [3, 4]},
    )
    assert batch.attention.block_table.tolist() == [[7, 3, 9], [5, 0, 0]]
    batch = inputs.build(ScheduledRequest("b", 2, 1, True, 1, 1, [], [6]))
    assert batch.attention.block_table.shape == (1, 1)


def test_drafts_are_computed_behind_the_known_tokens() -> None:
    inputs = Inputs()
    inputs.build(ScheduledRequest("a", 0, 2, True, 2, 0, [7, 3]), new={"a": [1, 2]})
    batch = inputs.build(ScheduledRequest("a", 2, 3, True, 2, 0, [], [5], [8, 9]))
    assert batch.token_ids.tolist() == [5, 8, 9]
    assert batch.positions.tolist() == [2, 3, 4]
    assert inputs.requests["a"].token_ids == [1, 2, 5], "drafts are not known tokens"


def test_rows_are_reused_and_tables_grow() -> None:
    inputs = Inputs(max_num_seqs=1, max_blocks=1)
    names = ["a", "b", "c"]
    shares = [
        ScheduledRequest(name, 8, 1, True, 3, 0, [i, i + 1, i + 2]) for i, name in enumerate(names)
    ]
    batch = inputs.build(*shares, new={name: [1] * 9 for name in names})
    assert batch.attention.block_table[:, :3].tolist() == [[0, 1, 2], [1, 2, 3], [2, 3, 4]]
    assert inputs.batch.num_live == 3
    inputs.batch.release(["b", "unknown"])
    assert inputs.batch.num_live == 2
    batch = inputs.build(ScheduledRequest("b", 8, 1, True, 3, 0, [9, 8, 7]), new={"b": [1] * 9})
    assert batch.attention.block_table[0, :3].tolist() == [9, 8, 7]
