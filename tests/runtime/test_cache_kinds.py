"""Protects: layers that keep different things give what the whole sequence would, in one cache."""

from __future__ import annotations

from random import Random

import pytest
import torch

from tests.runtime.mixed_models import (
    BLOCK,
    LatentBranch,
    check_random_requests,
    engine_of,
    mixed_spec,
    random_model,
)
from twostroke.core.config import KVCacheDtype, SchedulerConfig
from twostroke.core.errors import ConfigError
from twostroke.model_spec.layer_groups import group_layers
from twostroke.models.decoder import Decoder
from twostroke.runtime.torch_executor import TorchExecutor


@pytest.fixture(scope="module")
def model() -> Decoder:
    return random_model(mixed_spec())


@pytest.mark.parametrize(
    ("num_blocks", "num_slots", "caching"), [(250, 32, True), (250, 32, False), (62, 7, True)]
)
def test_every_output_equals_the_reference_without_a_cache(
    model: Decoder, num_blocks: int, num_slots: int, caching: bool
) -> None:
    """Chunks, company, shared prefixes, turns, preemptions."""
    engine = engine_of(
        model,
        num_blocks=num_blocks,
        num_slots=num_slots,
        caching=caching,
        scheduler=SchedulerConfig(max_num_batched_tokens=11, max_num_seqs=4),
    )
    check_random_requests(engine, model, Random(num_slots + caching))
    if caching and num_slots > 7:
        assert engine.scheduler.kv.prefix_hits > 0
    if num_blocks == 62:
        assert engine.scheduler.batch.num_preemptions > 0
