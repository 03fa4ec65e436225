"""Protects: the block map is the KV manager's, and of other tenants it shows no more than use."""

from __future__ import annotations

import pytest

from tests.server.tiny import make_engine
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.sampling_params import SamplingParams
from twostroke.inspector.blocks import draw_blocks
from twostroke.observability.frames.visibility import Visibility
from twostroke.observability.snapshot import BlockState

PROMPT = list(range(1, 18))  # four full blocks of four, and one token


def request(request_id: str, max_tokens: int, tenant: str) -> GenerationRequest:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return GenerationRequest(
        request_id=request_id, prompt_token_ids=PROMPT, params=params, tenant=tenant
    )


def state_of_two_requests() -> BlockState:
    """One has ended and left its prompt cached; another with the same prompt runs."""
    engine = make_engine()
    engine.submit(request("first", 3, "a"))
    while engine.has_work():
        engine.step()
    engine.submit(request("second", 40, "b"))
    for _ in range(4):
        engine.step()
    snapshot = engine.snapshot(with_blocks=True)
    assert [request.request_id for request in snapshot.running] == ["second"]
    assert [request.request_id for request in snapshot.ended] == ["first"]
    assert snapshot.running[0].num_cached_tokens == 16
    engine.close()
    assert snapshot.blocks is not None
    return snapshot.blocks


def test_cells_agree_with_the_tables() -> None:
    state = state_of_two_requests()
    drawn = draw_blocks(state)
    by_block = dict(zip(drawn.cells.block, drawn.cells.owner, strict=True))
    positions = dict(zip(drawn.cells.block, drawn.cells.position, strict=True))
    table = state.tables["second"]
    assert drawn.owners == ["second"]
    assert [by_block[block] for block in table] == [0] * len(table)
    assert [positions[block] for block in table] == list(range(len(table)))
    assert set(drawn.cells.block) == set(table) | set(state.cached.values())
    assert drawn.num_empty == state.num_blocks - len(drawn.cells.block)
    ages = {b: age for b, age in zip(drawn.cells.block, drawn.cells.age, strict=True) if age >= 0}
    assert [state.free[age] for age in ages.values()] == list(ages)


def test_what_a_window_gave_back_is_in_no_table() -> None:
    state = BlockState(
        num_blocks=6,
        block_size=4,
        tables={"a": [-1, -1, 3, 1], "b": [-1, 4]},
        cached={b"gone": 5},
        free=[0, 2, 5],
        chains=[],
    )
    for visible, shown in ((None, {1, 3, 4, 5}), (Visibility("t", {"a"}), {1, 3})):
        drawn = draw_blocks(state, visible)
        places = dict(zip(drawn.cells.block, drawn.cells.position, strict=True))
        assert places.keys() == shown and (places[3], places[1]) == (2, 3)
        assert drawn.num_empty == state.num_blocks - len(shown)


def test_the_tree_counts_what_was_found() -> None:
    drawn = draw_blocks(state_of_two_requests())
    root = drawn.tree[0]
    assert (root.parent, root.blocks, root.requests, root.found, root.held) == (-1, 4, 2, 1, 4)
    assert drawn.tokens_saved == 16


def test_of_other_tenants_nothing_is_shown() -> None:
    """Their blocks had cells without a name, which told any key how full the server was."""
    state = state_of_two_requests()
    drawn = draw_blocks(state, Visibility("a", {"first"}))
    assert drawn.owners == [] and drawn.cells.block == []
    assert drawn.num_empty == state.num_blocks
    assert all(node.found == 0 for node in drawn.tree)
    assert all(node.held == 0 for node in drawn.tree)  # that somebody has its prompt is not told
    assert state.tables  # another request holds some


def test_long_prompts_push_older_contents_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twostroke.engine.inspection.MAX_KEYS", 9)
    engine = make_engine()
    for number in range(4):
        engine.submit(request(str(number), 3, "a"))
        while engine.has_work():
            engine.step()
    blocks = engine.snapshot(with_blocks=True).blocks
    engine.close()
    assert blocks is not None
    assert [chain.request_id for chain in blocks.chains] == ["2", "3"]  # four blocks each
