"""Protects: a named serving stack's limits hold on a GPU, given ones before them."""

from __future__ import annotations

import pytest

from twostroke.core.config import SchedulerOptions
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.simulator.scenario import Scenario, deploy_scenario


def limits(gpu: str, stack: str | None, max_num_seqs: int | None = None) -> tuple[int, int]:
    options = DeploymentOptions(model="llama-3.2-1b", gpu=gpu, serving_stack=stack)
    scenario = Scenario(deployment=options, scheduler=SchedulerOptions(max_num_seqs=max_num_seqs))
    scheduler = deploy_scenario(scenario)[1].scheduler
    return scheduler.max_num_seqs, scheduler.max_num_batched_tokens


@pytest.mark.parametrize(
    ("gpu", "stack", "expected"),
    [
        ("h100", None, (256, 8192)),
        ("h100", "vllm", (1024, 8192)),
        ("a100-80gb-sxm", "vllm", (256, 2048)),
        ("l40s", "sglang", (2048, 4096)),
        ("h100", "trtllm", (2048, 8192)),
        ("cpu", "vllm", (64, 2048)),
    ],
)
def test_limits_of_a_stack(gpu: str, stack: str | None, expected: tuple[int, int]) -> None:
    assert limits(gpu, stack) == expected


def test_what_is_given_counts() -> None:
    assert limits("h100", "vllm", max_num_seqs=7) == (7, 8192)


def test_half_of_the_requests_run_where_the_states_of_all_do_not_fit() -> None:
    options = DeploymentOptions(model="granite-4.0-h-small", gpu="h100")
    scenario, deployment = deploy_scenario(Scenario(deployment=options))
    seqs = scenario.scheduler.max_num_seqs
    assert seqs is not None and seqs < 256 and 256 % seqs == 0
    assert any(f"it is {seqs}" in note for note in deployment.notes)
    assert deployment.scheduler.max_num_batched_tokens == 8192
