"""Protects: columns say what the step events say, whole or merged, and no more than is allowed."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.inspector.recorded import events
from twostroke.core.request import FinishReason
from twostroke.core.speculation_config import DepthChange, DepthReason
from twostroke.core.step import Reason
from twostroke.observability.events import (
    FinishedRequest,
    HeldBackRequest,
    PreemptedRequest,
    ScheduledTokens,
    StartedRequest,
    StepEvent,
)
from twostroke.observability.frames.columns import StepFrame, encode_steps, join_frames
from twostroke.observability.frames.visibility import Visibility


def shares_of(frame: StepFrame) -> dict[tuple[int, str], list[int]]:
    """Shares by step and request."""
    columns = frame.shares
    return {
        (frame.steps.step[row], frame.ids[number]): numbers
        for row, number, *numbers in zip(
            columns.row,
            columns.request,
            columns.start,
            columns.tokens,
            columns.prompt,
            columns.new,
            columns.blocks,
            strict=True,
        )
    }


def tokens_by_request(frame: StepFrame) -> Counter[str]:
    totals: Counter[str] = Counter()
    for number, tokens in zip(frame.shares.request, frame.shares.tokens, strict=True):
        totals[frame.ids[number]] += tokens
    return totals


def test_unmerged_columns_are_the_events() -> None:
    frame = encode_steps(events())
    assert frame.merged == 1
    assert frame.steps.step == [event.step for event in events()]
    assert frame.steps.tokens == [event.num_tokens for event in events()]
    assert frame.steps.prompt == [event.num_prompt_tokens for event in events()]
    assert frame.steps.waiting == [event.num_waiting for event in events()]
    assert frame.steps.time == pytest.approx([event.time for event in events()], abs=1e-6)
    assert shares_of(frame) == {
        (event.step, share.request_id): [
            share.start,
            share.num_tokens,
            share.num_prompt_tokens,
            share.num_new_tokens,
            share.num_blocks,
        ]
        for event in events()
        for share in event.scheduled
    }
    assert frame.timings["forward"] == pytest.approx(
        [event.timings["forward"] for event in events()], abs=1e-6
    )


def test_notes_name_starts_ends_and_reasons() -> None:
    frame = encode_steps(events())
    started = [s.request_id for note in frame.notes for s in note.started]
    ended = [frame.ids[number] for note in frame.notes for number, _ in note.finished]
    assert len(started) == len(ended) == 60
    assert set(started) == set(ended)
    reasons = {held.reason for note in frame.notes for held in note.held_back or ()}
    assert "max_num_seqs" in reasons  # 40 requests a second for 12 places


@pytest.mark.parametrize("max_steps", [1, 7, 100])
def test_merging_loses_no_token(max_steps: int) -> None:
    whole, merged = encode_steps(events()), encode_steps(events(), max_steps=max_steps)
    assert len(merged.steps.step) <= max_steps
    for name in ("tokens", "prompt", "new", "hits", "queries", "budget", "span"):
        assert sum(getattr(merged.steps, name)) == sum(getattr(whole.steps, name)), name
    assert tokens_by_request(merged) == tokens_by_request(whole)
    assert max(merged.steps.longest) == max(whole.steps.longest)
    end = merged.steps.time[-1] + merged.steps.duration[-1]
    assert end == pytest.approx(whole.steps.time[-1] + whole.steps.duration[-1], abs=1e-5)


def test_shares_are_bounded_too() -> None:
    num_shares = len(encode_steps(events()).shares.row)
    merged = encode_steps(events(), max_shares=num_shares // 4)
    assert merged.merged > 1
    assert len(merged.shares.row) < num_shares


def test_frames_join_to_the_frame_of_all_steps() -> None:
    pieces = [encode_steps(events()[begin : begin + 50]) for begin in range(0, len(events()), 50)]
    joined, whole = join_frames(pieces, 1), encode_steps(events())
    assert joined.steps == whole.steps
    assert shares_of(joined) == shares_of(whole)
    assert joined.timings == whole.timings
    ends = [
        [(frame.ids[number], why) for note in frame.notes for number, why in note.finished]
        for frame in (joined, whole)
    ]
    assert ends[0] == ends[1]


def event(step: int, **fields: object) -> StepEvent:
    shares = [
        ScheduledTokens(
            request_id=request_id,
            start=0,
            num_tokens=4,
            num_prompt_tokens=4,
            sampled=False,
            num_new_tokens=0,
            num_blocks=1,
        )
        for request_id in ("mine", "theirs")
    ]
    started = [
        StartedRequest(
            request_id=request_id,
            arrival_time=0.0,
            num_prompt_tokens=4,
            max_total_tokens=9,
            tenant=tenant,
        )
        for request_id, tenant in (("mine", "me"), ("theirs", "them"))
    ]
    return StepEvent(
        step=step,
        time=float(step),
        duration=0.5,
        scheduled=shares,
        started=started if step == 0 else [],
        num_running=2,
        num_waiting=7,
        free_blocks=3,
        cached_blocks=5,
        num_tokens=8,
        **fields,  # type: ignore[arg-type]
    )


def test_a_tenant_sees_its_own_requests_and_no_counts_of_others() -> None:
    steps = [
        event(0, held_back=[HeldBackRequest(request_id="theirs", reason=Reason.TOKEN_BUDGET)]),
        event(1, preempted=[PreemptedRequest(request_id="mine", by="theirs")]),
    ]
    frame = encode_steps(steps, Visibility("me"))
    assert frame.ids == ["mine"]
    assert frame.steps.tokens == [4, 4]
    assert frame.steps.running == [1, 1]
    assert frame.steps.waiting == frame.steps.free == frame.steps.cached == [0, 0]
    assert frame.notes[0].held_back is None or frame.notes[0].held_back == []
    assert frame.notes[-1].preempted == [(0, -1)]  # by whom is not said
    assert [s.request_id for note in frame.notes for s in note.started] == ["mine"]


def test_an_unknown_request_is_nobodys() -> None:
    frame = encode_steps([event(1)], Visibility("me"))  # it started before anybody looked
    assert frame.ids == []
    assert frame.steps.step == []
    assert (frame.first, frame.last) == (1, 1)


def test_how_many_others_wait_is_not_told() -> None:
    held = HeldBackRequest(request_id="mine", reason=Reason.NO_FREE_BLOCK, behind=7)
    frame = encode_steps([event(0, held_back=[held])], Visibility("me"))
    assert [h.behind for note in frame.notes for h in note.held_back or ()] == [0]


def test_a_feed_forgets_requests_that_have_ended() -> None:
    """Otherwise one that is open for days remembers every id of its tenant."""
    visible = Visibility("me")
    ended = FinishedRequest(request_id="mine", reason=FinishReason.STOP)
    frame = encode_steps([event(0), event(1, finished=[ended])], visible)
    assert [frame.ids[n] for note in frame.notes for n, _ in note.finished] == ["mine"]
    assert not visible("mine")


def deeper(step: int, name: str, depth: int) -> StepEvent:
    share = ScheduledTokens(
        request_id=name,
        start=step,
        num_tokens=1,
        num_prompt_tokens=0,
        sampled=True,
        num_new_tokens=1,
        num_blocks=1,
    )
    change = DepthChange(name, depth, DepthReason.PAYS, 1.5)
    return StepEvent(step=step, time=step, duration=1.0, scheduled=[share], depths=[change])


def test_depths_are_notes_and_of_merged_steps_the_last() -> None:
    """Merged, joined and seen by one tenant only, they stay with their request and step."""
    steps = [deeper(0, "a", 1), deeper(1, "b", 2), deeper(2, "a", 3), deeper(3, "b", 4)]
    whole = encode_steps(steps)
    told = [(whole.ids[one.request], one.step, one.depth) for n in whole.notes for one in n.depths]
    assert told == [("a", 0, 1), ("b", 1, 2), ("a", 2, 3), ("b", 3, 4)]
    joined = join_frames([encode_steps(steps[1:2]), encode_steps(steps[2:], max_steps=1)], 2)
    told = [
        (joined.ids[one.request], one.step, one.depth) for n in joined.notes for one in n.depths
    ]
    assert told == [("b", 1, 2), ("a", 2, 3), ("b", 3, 4)]
    merged = encode_steps([*steps, deeper(4, "a", 5)], max_steps=1)
    [note] = merged.notes
    assert {merged.ids[one.request]: one.depth for one in note.depths} == {"a": 5, "b": 4}
    own = encode_steps(steps, Visibility(None, only=["b"]))
    assert own.ids == ["b"]
    assert [one.depth for note in own.notes for one in note.depths] == [2, 4]
