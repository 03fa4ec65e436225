"""Protects: the tensors of a step hold its tokens, positions and slots; only changes are read."""

from __future__ import annotations

import torch

from twostroke.core.request import Request
from twostroke.core.sampling_params import SamplingParams
from twostroke.core.step import ScheduledRequest, StepPlan
from twostroke.runtime.input_batch import InputBatch


def request(name: str, tokens: list[int]) -> Request:
    return Request(name, tokens, SamplingParams(), len(tokens), 100)


def plan(*items: ScheduledRequest) -> StepPlan:
    found = StepPlan(step=0, time=0.0)
    for item in items:
        found.add(item)
    return found


def batch_maker(max_num_seqs: int = 2, max_blocks: int = 4) -> InputBatch:
    return InputBatch(max_num_seqs, max_blocks, block_size=4, device=torch.device("cpu"))


def test_tokens_positions_and_slots() -> None:
    a, b = request("a", [10, 11, 12, 13, 14, 15, 16]), request("b", [20, 21])
    inputs = batch_maker()
    batch = inputs.build(
        plan(ScheduledRequest(a, 2, 4, [7, 3], 0), ScheduledRequest(b, 0, 2, [5], 0))
    )
    assert batch.token_ids.tolist() == [12, 13, 14, 15, 20, 21]
    assert batch.positions.tolist() == [2, 3, 4, 5, 0, 1]
    assert batch.query_start == [0, 4, 6]
    assert batch.attention.slots.tolist() == [30, 31, 12, 13, 20, 21]
    assert batch.attention.context_lens.tolist() == [6, 2]
    assert batch.attention.query_lens.tolist() == [4, 2]
    assert batch.attention.block_table[0, :2].tolist() == [7, 3]
    assert (batch.rows(0), batch.rows(1)) == (slice(0, 4), slice(4, 6))


def test_only_the_changed_part_of_a_table_is_read() -> None:
    a, inputs = request("a", list(range(13))), batch_maker()
    inputs.build(plan(ScheduledRequest(a, 0, 8, [7, 3], 0)))
    # What lies before table_changed_from is not looked at again: -1 would be seen otherwise.
    batch = inputs.build(plan(ScheduledRequest(a, 8, 4, [-1, 3, 6], 2)))
    assert batch.attention.block_table[0, :3].tolist() == [7, 3, 6]
    assert batch.attention.slots.tolist() == [24, 25, 26, 27]
    batch = inputs.build(plan(ScheduledRequest(a, 12, 1, [-1, 8, 6, 1], 1)))
    assert batch.attention.block_table[0].tolist() == [7, 8, 6, 1]


def test_rows_are_reused_and_tables_grow() -> None:
    inputs = batch_maker(max_num_seqs=1, max_blocks=1)
    names = ["a", "b", "c"]
    items = [
        ScheduledRequest(request(name, [1] * 9), 8, 1, [i, i + 1, i + 2], 0)
        for i, name in enumerate(names)
    ]
    batch = inputs.build(plan(*items))
    assert batch.attention.block_table[:, :3].tolist() == [[0, 1, 2], [1, 2, 3], [2, 3, 4]]
    assert inputs.num_live == 3
    inputs.release(["b", "unknown"])
    assert inputs.num_live == 2
    # A released request that comes back is new, whatever the plan says about its table.
    batch = inputs.build(plan(ScheduledRequest(items[1].request, 8, 1, [9, 8, 7], 3)))
    assert batch.attention.block_table[0, :3].tolist() == [9, 8, 7]
