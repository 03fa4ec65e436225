"""Protects: what bounds a server, and how many more fit, from real steps."""

from __future__ import annotations

from itertools import count as counting

import pytest

from tests.inspector.recorded import events
from twostroke.core.step import Reason
from twostroke.inspector.why.bound import bound_of
from twostroke.inspector.why.room import room_of
from twostroke.observability.events import (
    HeldBackRequest,
    LabelledRequest,
    ScheduledTokens,
    StepEvent,
)
from twostroke.observability.frames.columns import encode_steps
from twostroke.observability.frames.own import OWN_LABEL
from twostroke.questions.model_facts import Ceilings, StepCost, StepWork
from twostroke.simulator.cost.shown_costs import facts_of_recording

CEILINGS = Ceilings(device="a device", flops=6e10, bandwidth=2e7)


class Costs:
    """A device that reads 1 MB a step and 1 kB a cached token, and 1 MFLOP a computed token."""

    ceilings = CEILINGS

    def cost(self, work: StepWork) -> StepCost:
        tokens = work.requests + work.drafts + sum(new for new, _ in work.chunks)
        moved = 1e6 + 1e3 * work.context
        flops = 1e6 * tokens
        return StepCost(flops, moved, max(flops / 1e12, moved / 1e9))


def decode(step: int, users: int, duration: float = 0.1, **fields: object) -> StepEvent:
    shares = [
        ScheduledTokens(
            request_id=f"r{user}",
            start=99,
            num_tokens=1,
            num_prompt_tokens=0,
            sampled=True,
            num_new_tokens=1,
            num_blocks=5,
        )
        for user in range(users)
    ]
    given: dict[str, object] = {
        "num_running": users,
        "total_blocks": 100,
        "free_blocks": 100 - 5 * users,
        **fields,
    }
    when = {"step": step, "time": step * 0.1, "duration": duration}
    return StepEvent(scheduled=shares, **when, **given)  # type: ignore[arg-type]


def prefill(step: int, tokens: int) -> StepEvent:
    share = ScheduledTokens(
        request_id="p",
        start=0,
        num_tokens=tokens,
        num_prompt_tokens=tokens,
        sampled=False,
        num_new_tokens=0,
        num_blocks=5,
    )
    return StepEvent(step=step, time=step * 0.1, duration=0.1, scheduled=[share])


def test_decode_is_bound_by_memory_and_prefill_by_arithmetic() -> None:
    frame = encode_steps([decode(n, 2) for n in range(10)])
    bound = bound_of(frame, 0.0, 1.0, Costs(), CEILINGS)
    assert (bound.kind, bound.running) == ("memory", 2)
    assert bound.busy == pytest.approx(1.0)
    assert bound.memory == pytest.approx(1.2e6 / 0.1 / 2e7)
    frame = encode_steps([prefill(n, 4096) for n in range(10)])
    bound = bound_of(frame, 0.0, 1.0, Costs(), CEILINGS)
    assert bound.kind == "compute"
    assert bound.compute == pytest.approx(4096e6 / 0.1 / 6e10)


def test_steps_that_come_near_no_ceiling_are_bound_by_neither() -> None:
    """A server at 4 % of its arithmetic is not bound by arithmetic, whatever its mix of steps."""
    far = Ceilings(device="a device", flops=1e12, bandwidth=1e9)
    frame = encode_steps([prefill(n, 4096) if n % 2 else decode(n, 2) for n in range(10)])
    bound = bound_of(frame, 0.0, 1.0, Costs(), far)
    assert bound.kind == "overhead"
    assert bound.compute is not None
    assert 0.01 < bound.compute < 0.05


def test_the_larger_share_is_the_one_that_binds() -> None:
    """A few long prefills among decodes: what is said and its two figures do not differ."""
    steps = [prefill(n, 3000) if n < 6 else decode(n, 14) for n in range(10)]
    bound = bound_of(encode_steps(steps), 0.0, 1.0, Costs(), CEILINGS)
    assert bound.compute is not None
    assert bound.memory is not None
    assert bound.kind == ("compute" if bound.compute > bound.memory else "memory") == "memory"


def test_time_outside_the_model_is_the_hosts() -> None:
    steps = [decode(n, 2, timings={"schedule": 0.06, "forward": 0.03}) for n in range(10)]
    bound = bound_of(encode_steps(steps), 0.0, 1.0, Costs(), CEILINGS)
    assert bound.kind == "host"
    assert bound.host == pytest.approx(0.7)


def test_a_queue_for_lack_of_room_comes_first() -> None:
    held = [HeldBackRequest(request_id="w", reason=Reason.NO_FREE_BLOCK)]
    steps = [decode(n, 2, held_back=held, num_waiting=1) for n in range(10)]
    bound = bound_of(encode_steps(steps), 0.0, 1.0, Costs(), CEILINGS)
    assert (bound.kind, bound.within, bound.reason) == ("queue", "memory", "no_free_block")
    assert bound.left_out == 1.0


def test_a_server_without_work_waits_for_it() -> None:
    frame = encode_steps([decode(0, 1)])
    bound = bound_of(frame, 0.0, 5.0, Costs(), CEILINGS)
    # The step itself had a limit, though the server rested for most of the time.
    assert (bound.kind, bound.within) == ("idle", "memory")
    bound = bound_of(frame, 9.0, 10.0)
    assert (bound.kind, bound.within) == ("idle", "idle")


def test_a_step_that_is_longer_than_the_part_of_time_was_busy_for_all_of_it() -> None:
    frame = encode_steps([decode(0, 2, duration=12.0)])
    bound = bound_of(frame, 7.0, 12.0, Costs(), CEILINGS)
    assert (bound.kind, bound.busy) == ("overhead", 1.0)
    assert bound_of(frame, 12.0, 17.0, Costs(), CEILINGS).kind == "idle"


def test_a_step_that_runs_is_no_rest() -> None:
    frame = encode_steps([decode(0, 2)])
    bound = bound_of(frame, 5.0, 10.0, Costs(), CEILINGS, running_since=2.0)
    assert (bound.kind, bound.why) == ("unknown", "unended")
    assert (bound.busy, bound.unended) == (1.0, 8.0)
    # One that ended in this part of time tells what bounds it, and counts with the one that runs.
    bound = bound_of(frame, 0.0, 1.0, Costs(), CEILINGS, running_since=0.1)
    assert bound.kind == "memory"
    assert bound.busy == pytest.approx(1.0)
    # One that began only now is no load yet.
    assert bound_of(frame, 5.0, 10.0, running_since=9.9).kind == "idle"


def test_what_is_not_known_says_why() -> None:
    class Counts(Costs):
        """What steps cost, on a device without a sheet."""

        ceilings = None  # type: ignore[assignment]

    def why(steps: list[StepEvent], *known: object) -> tuple[str, str]:
        bound = bound_of(encode_steps(steps), 0.0, 1.0, *known)  # type: ignore[arg-type]
        return bound.kind, bound.why

    steps = [decode(n, 2) for n in range(10)]
    assert why(steps) == ("unknown", "model")
    assert why(steps, Counts(), None) == ("unknown", "device")
    assert why([decode(n, 0) for n in range(10)], Costs(), CEILINGS) == ("unknown", "tokens")
    assert why(steps, Costs(), CEILINGS) == ("memory", "")


def test_merged_steps_are_not_taken_for_one() -> None:
    frame = encode_steps([decode(n, 2) for n in range(10)], max_steps=5)
    bound = bound_of(frame, 0.0, 1.0, Costs(), CEILINGS)
    assert (bound.kind, bound.why) == ("unknown", "tokens")


def test_rest_and_what_is_unknown_are_both_told() -> None:
    bound = bound_of(encode_steps([decode(0, 1)]), 0.0, 5.0)
    assert (bound.kind, bound.within, bound.why) == ("idle", "unknown", "model")


def test_how_many_more_fit_is_the_least_of_three() -> None:
    frame = encode_steps([decode(n, 4) for n in range(10)])
    room = room_of(frame, Costs(), max_num_seqs=64, tpot=0.2)
    assert room is not None
    assert (room.users, room.context, room.tpot) == (4, 100, 0.1)
    assert (room.places, room.blocks) == (60, 16)
    # Naively: one more until the step, scaled to what it takes now, passes the limit.
    now = Costs().cost(StepWork(4, 400, (), 4)).seconds or 0.0
    time = next(
        more - 1
        for more in counting(1)
        if 0.1 * (Costs().cost(StepWork(4 + more, 400 + 100 * more, (), 4)).seconds or 0) / now
        > 0.2
    )
    assert room.time == time == 14
    assert (room.more, room.binding) == (14, "time")
    full = room_of(frame, Costs(), max_num_seqs=4, tpot=0.2)
    assert full is not None
    assert (full.more, full.binding) == (0, "places")
    late = room_of(frame, Costs(), max_num_seqs=64, tpot=0.05)
    assert late is not None
    assert (late.more, late.binding) == (0, "time")


def test_who_waits_for_room_leaves_none() -> None:
    held = [HeldBackRequest(request_id="w", reason=Reason.MAX_NUM_SEQS)]
    room = room_of(encode_steps([decode(n, 4, held_back=held) for n in range(10)]), Costs())
    assert room is not None
    assert (room.more, room.binding, room.blocks) == (0, "places", 16)


def test_no_decode_no_answer() -> None:
    assert room_of(encode_steps([prefill(0, 8)])) is None


def test_the_inspectors_own_requests_are_no_users() -> None:
    labelled = [LabelledRequest(request_id="r0", labels={OWN_LABEL: "next token"})]
    own = [decode(n, 1, 0.5, labelled=labelled if n == 0 else []) for n in range(9)]
    assert room_of(encode_steps(own)) is None
    room = room_of(encode_steps([*own, *(decode(n, 3) for n in range(9, 12))]))
    assert room is not None
    assert room.users == 3
    assert room.tpot == pytest.approx(0.1)


def drafting(step: int, duration: float, drafts: int, accepted: int) -> StepEvent:
    share = ScheduledTokens(
        request_id="r",
        start=99,
        num_tokens=1 + drafts,
        num_prompt_tokens=0,
        sampled=True,
        num_new_tokens=1 + accepted,
        num_blocks=5,
        num_drafts=drafts,
        num_accepted_drafts=accepted,
    )
    return StepEvent(step=step, time=step * 0.1, duration=duration, scheduled=[share])


def test_of_a_server_that_always_guesses_the_steps_with_guesses_count() -> None:
    room = room_of(encode_steps([drafting(n, 0.012, 2, 1) for n in range(4)]), max_num_seqs=9)
    assert room is not None
    assert (room.users, room.context, room.places) == (1, 100, 9)
    assert room.tpot == pytest.approx(0.006)
    steps = [drafting(0, 0.012, 2, 1), decode(1, 3, duration=0.01)]
    room = room_of(encode_steps(steps))
    assert room is not None
    assert room.users == 3
    assert room.tpot == pytest.approx(0.01)


def test_a_simulated_run_has_an_answer() -> None:
    facts = facts_of_recording("llama-3.1-8b", "h100")
    steps = events()
    frame = encode_steps(steps)
    end = steps[-1].time + steps[-1].duration
    bound = bound_of(frame, steps[0].time, end, facts.costs, facts.costs.ceilings)
    assert bound.kind == "memory"
    assert bound.memory is not None
    assert 0.3 < bound.memory < 1.05
    room = room_of(frame, facts.costs, facts.costs.ceilings, max_num_seqs=12)
    assert room is not None
    assert room.time is not None
    assert room.time > 0
