"""What fits onto devices, and what a deployment notes."""

from __future__ import annotations

from typing import Any

import pytest

from twostroke.core.config import CacheConfig, SchedulerConfig
from twostroke.core.errors import InsufficientMemoryError
from twostroke.simulator.deployment.deployment import deploy, describe
from twostroke.simulator.deployment.options import DeploymentOptions


def test_what_does_not_fit_says_by_how_much() -> None:
    with pytest.raises(
        InsufficientMemoryError, match=r"66\.\d GB too much.*141\.1 GB are weights"
    ) as caught:
        deploy(DeploymentOptions(model="llama-3.1-70b"), CacheConfig(), SchedulerConfig())
    assert "--tp 4" in str(caught.value.hint)
    with pytest.raises(InsufficientMemoryError, match="--kv-cache-memory") as caught:
        deploy(DeploymentOptions(), CacheConfig(kv_cache_memory=2**37), SchedulerConfig())
    assert "--kv-cache-memory 5" in str(caught.value.hint) and "MiB" in str(caught.value.hint)
    with pytest.raises(InsufficientMemoryError, match="one request") as caught:
        deploy(
            DeploymentOptions(max_model_len=100_000),
            CacheConfig(kv_cache_memory=2**30),
            SchedulerConfig(),
        )
    assert "--max-model-len 8192" in str(caught.value.hint)
    small = deploy(DeploymentOptions(), CacheConfig(kv_cache_memory=2**30), SchedulerConfig())
    assert small.max_model_len == 8192
    assert any("8192" in note for note in small.notes)


def test_notes_say_what_one_might_not_expect() -> None:
    def notes(**options: Any) -> str:
        return " ".join(
            deploy(DeploymentOptions(**options), CacheConfig(), SchedulerConfig()).notes
        )

    assert notes() == ""
    assert "no fp8 arithmetic: products run in bf16" in notes(gpu="a100", weight_dtype="fp8")
    assert "16 talk over the network, 50 GB/s" in notes(tp=16, model="llama-3.1-70b")


def test_a_processor_shares_its_memory_with_others() -> None:
    """As the live engine does: a part of it, and no more than its requests can use."""

    def tokens(share: float, seqs: int = 1000) -> int:
        cache = CacheConfig(cpu_memory_utilization=share)
        info = deploy(
            DeploymentOptions(model="llama-3.2-1b", gpu="cpu"),
            cache,
            SchedulerConfig(max_num_seqs=seqs),
        ).info
        return info.num_blocks * info.block_size

    assert tokens(0.5) == pytest.approx(2 * tokens(0.25), rel=0.01)
    assert tokens(1.0, seqs=1) == 131072


def test_groups_of_devices_are_named() -> None:
    """What the cache holds is that of all; groups in several nodes talk over the network."""
    options = DeploymentOptions(
        model="deepseek-v3", gpu="h200", data_parallel_size=16, enable_expert_parallel=True
    )
    made = deploy(options, CacheConfig(), SchedulerConfig())
    assert "tokens in all 16 groups" in describe(made, options)
    assert any("groups of the 16 talk over the network" in note for note in made.notes)
