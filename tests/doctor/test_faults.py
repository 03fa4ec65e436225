"""Protects: the doctor names the cause of faults made on purpose, and proves what helps."""

from __future__ import annotations

import pytest

from benchmarks.doctor.simulated_faults import SIMULATED_FAULTS, Fault
from twostroke.doctor.diagnose import Diagnosis, diagnose
from twostroke.doctor.figures import Figure
from twostroke.doctor.time_spent import time_spent
from twostroke.observability.events import StepEvent

FAULTS = {fault.name: fault for fault in SIMULATED_FAULTS}


@pytest.mark.parametrize("fault", SIMULATED_FAULTS, ids=lambda fault: fault.name)
def test_the_cause_comes_first(fault: Fault) -> None:
    found = diagnose(fault.windows(), fleet=fault.fleet, proof=False)
    assert found.causes[0].name in fault.causes, [(c.name, c.share) for c in found.causes]
    if not found.causes[0].is_floor:
        assert found.causes[0].evidence or found.causes[0].seconds
    assert not found.tried.advice


@pytest.mark.parametrize("name", ["budget too small", "preempted", "CPU stolen", "slow reader"])
def test_parts_add_up_to_the_time_of_requests(name: str) -> None:
    fault = FAULTS.get(name, FAULTS["answers outgrow the KV cache"])
    (window,) = fault.windows()
    spent = time_spent(window)
    ends = {r.request_id: r.last for r in window.requests}
    taken = sum(
        max(
            ends[r.request_id] or 0.0,
            call.last_byte or 0.0 if (call := window.calls.get(r.request_id)) else 0.0,
        )
        - r.arrival
        for r in window.requests
    )
    assert spent.total == pytest.approx(taken, rel=0.01)


@pytest.mark.parametrize(
    ("name", "flag", "figure"),
    [
        ("budget too small", "--max-num-batched-tokens", Figure("ttft", 95)),
        ("chunk too small", "leave out --max-prefill-chunk", Figure("ttft", 95)),
        ("KV cache too small", "--kv-cache-memory", Figure("ttft", 95)),
        ("thrashing prefixes", "--kv-cache-memory", Figure("ttft", 95)),
        ("speculation on random text", "leave out --speculation", Figure("tpot", 50)),
        ("one hot key", "--policy fair", Figure("ttft", 95)),
        ("too few sequences", "--max-num-seqs", Figure("ttft", 95)),
        ("static batching", "--batching continuous", Figure("ttft", 95)),
        ("CPU stolen", "keep other programs off", Figure("e2el", 95)),
    ],
)
def test_the_lever_is_proven(name: str, flag: str, figure: Figure) -> None:
    found = diagnose(FAULTS[name].windows())
    first = found.tried.advice[0]
    assert first.lever.command.startswith(flag)
    assert first.main.figure == figure
    assert first.main.low <= first.main.after <= first.main.high
    assert first.main.after < first.main.before and first.main.helps > 0


def test_a_fleet_says_why_and_in_numbers() -> None:
    """Which prompts went to one engine and why; how many engines the work asks for."""
    hot = FAULTS["one hot prefix"]
    found = diagnose(hot.windows(), fleet=hot.fleet)
    said = found.causes[0].evidence[0]
    assert said.startswith("engine 0 has 2 times the mean work (120 requests, of others 0)")
    assert "120 of which begin with the same 768 tokens" in said
    assert "sent 119 of 120 there because it had their beginning" in said
    assert found.tried.advice[0].lever.command == "--router least-loaded"
    apart = FAULTS["too few engines for prompts"]
    found = diagnose(apart.windows(), fleet=apart.fleet)
    assert found.causes[0].evidence[0].startswith("1 engine for prompts is busy")
    assert "one more engine for prompts" in found.causes[0].evidence[1]
    assert not found.tried.advice and any("--prefill-engines" in each for each in found.elsewhere)
    still = FAULTS["a replica that stands still at times"]
    found = diagnose(still.windows(), proof=False)
    assert "replica 1 takes" in found.causes[0].evidence[0]
    assert "it stands still at times" in found.causes[0].evidence[0]
    assert "machine" not in [cause.name for cause in found.causes]


def test_an_unchanged_replay_is_what_was_recorded() -> None:
    """The simulator replays itself: what differs is the fit's error alone."""
    found = diagnose(FAULTS["too few sequences"].windows())
    replayed, recorded = found.tried.replayed
    assert replayed == pytest.approx(recorded, rel=0.1)


def test_a_sound_server_gets_no_advice() -> None:
    found = diagnose(FAULTS["nothing wrong"].windows())
    assert found.causes[0].is_floor
    assert not found.tried.advice
    assert found.tried.refused


def test_a_burst_does_not_bind_a_machine_that_mostly_idles() -> None:
    """Requests that came at once had waited, and a machine at 2 % was "bound by compute"."""
    (window,) = FAULTS["too much load"].windows()
    busy = sum(event.duration for event in window.events)
    later = window.begin + 50 * busy
    number = window.events[-1].step + 1
    window.events.append(StepEvent(step=number, time=later, duration=0.01))
    found = diagnose([window])
    assert not {"compute", "bandwidth"} & {cause.name for cause in found.causes}
    (idle,) = [cause for cause in found.causes if cause.name == "idle"]
    assert idle.is_floor
    assert idle.evidence[0] == "steps run 2% of the time: it mostly idles, and nothing binds it"
    assert "they came at once" in idle.evidence[1]
    assert not any("--replicas" in each.lever.command for each in found.tried.advice)


def test_the_same_steps_have_the_same_diagnosis() -> None:
    def once() -> Diagnosis:
        return diagnose(FAULTS["budget too small"].windows())

    first, again = once(), once()
    assert first.causes == again.causes
    assert first.tried.advice == again.tried.advice
