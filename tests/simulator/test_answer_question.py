"""Protects: what pages show of the simulator is what the simulator says."""

from __future__ import annotations

import pytest

from twostroke.core.config import CacheConfig, SchedulerConfig
from twostroke.core.errors import InsufficientMemoryError
from twostroke.questions.small_run import AskedRequest, AskedRun
from twostroke.simulator.answer_question import answer_question
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.simulator.scenario import Scenario
from twostroke.simulator.simulate import simulate
from twostroke.simulator.workloads.options import SimulatedWorkloadOptions


def requests(number: int, **fields: int) -> list[AskedRequest]:
    return [AskedRequest(**fields) for _ in range(number)]


def test_times_are_those_of_twostroke_simulate() -> None:
    """One request alone: no draw of lengths or arrivals can differ."""
    workload = SimulatedWorkloadOptions(
        workload="random", num_requests=1, input_len=200, output_len=50
    )
    scenario = Scenario(
        deployment=DeploymentOptions(),
        workload=workload,
        scheduler=SchedulerConfig(max_num_batched_tokens=8192, max_num_seqs=64),
        cache=CacheConfig(),
    )
    (expected,) = simulate(scenario).result.requests
    run = answer_question(
        AskedRun(
            requests=[AskedRequest(prompt=expected.prompt_tokens, output=expected.output_tokens)]
        )
    )
    assert run.requests[0].ttft == pytest.approx(expected.ttft)
    assert run.requests[0].tpot == pytest.approx(expected.tpot)


def test_requests_keep_their_numbers_whatever_the_order_of_arrival() -> None:
    late, early = AskedRequest(arrival=1.0, output=2), AskedRequest(arrival=0.0, output=3)
    run = answer_question(AskedRun(requests=[late, early]))
    assert [request.arrival for request in run.requests] == [1.0, 0.0]
    tokens = [
        sum(new for new, who in zip(run.shares.new, run.shares.request) if who == number)
        for number in (0, 1)
    ]
    assert tokens == [2, 3]


def test_a_whole_prompt_makes_a_gap_and_chunks_make_it_short() -> None:
    asked = [*requests(2, prompt=64, output=60), AskedRequest(arrival=0.1, prompt=8000, output=4)]
    whole = answer_question(AskedRun(requests=asked, max_num_batched_tokens=16384))
    pieces = answer_question(AskedRun(requests=asked, max_num_batched_tokens=512))
    assert whole.requests[0].worst_gap > 5 * pieces.requests[0].worst_gap
    assert pieces.requests[2].ttft > whole.requests[2].ttft


def test_static_batching_takes_longer_and_blocks_of_16_hold_more() -> None:
    asked = [AskedRequest(output=output) for output in (100, 10, 10, 10)]
    static = answer_question(AskedRun(requests=asked, max_num_seqs=2, batching="static"))
    continuous = answer_question(AskedRun(requests=asked, max_num_seqs=2))
    assert continuous.seconds < static.seconds
    asked = requests(8, prompt=16, output=100)
    paged = answer_question(AskedRun(requests=asked, kv_tokens=2048, block_size=16))
    reserved = answer_question(AskedRun(requests=asked, kv_tokens=2048, block_size=1024))
    assert max(paged.steps.running) > max(reserved.steps.running)
    assert paged.steps.waste[5] < reserved.steps.waste[5]


def test_equal_beginnings_of_one_group_are_found_and_of_others_not() -> None:
    asked = [
        AskedRequest(arrival=float(at), prompt=100, output=2, prefix=64, group=group)
        for at, group in enumerate((0, 0, 1))
    ]
    run = answer_question(AskedRun(requests=asked))
    assert [request.cached for request in run.requests] == [0, 64, 0]
    run = answer_question(AskedRun(requests=asked, enable_prefix_caching=False))
    assert [request.cached for request in run.requests] == [0, 0, 0]


def test_right_drafts_save_passes() -> None:
    asked = requests(1, prompt=16, output=50)
    plain = answer_question(AskedRun(requests=asked))
    drafted = answer_question(AskedRun(requests=asked, speculative_tokens=4, acceptance=1.0))
    assert len(drafted.steps.begin) < len(plain.steps.begin) / 3
    assert sum(drafted.shares.accepted) > 0


def test_two_replicas_share_the_requests_and_a_model_that_does_not_fit_is_refused() -> None:
    run = answer_question(AskedRun(requests=requests(4, output=4), replicas=2))
    assert {request.replica for request in run.requests} == {0, 1} == set(run.steps.replica)
    with pytest.raises(InsufficientMemoryError):
        answer_question(AskedRun(requests=requests(1), model="llama-3.1-70b", gpu="l4"))
