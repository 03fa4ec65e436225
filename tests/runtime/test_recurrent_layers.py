"""Protects: recurrent layers give what the whole sequence would, wherever a request starts from."""

from __future__ import annotations

from random import Random

import pytest

from tests.runtime.mixed_models import (
    BLOCK,
    ask,
    check_random_requests,
    engine_of,
    hybrid_spec,
    random_model,
    run,
)
from twostroke.core.config import SchedulerConfig
from twostroke.models.decoder import Decoder


@pytest.fixture(scope="module")
def model() -> Decoder:
    return random_model(hybrid_spec())


@pytest.mark.parametrize(
    ("num_blocks", "num_slots", "caching"), [(64, 32, True), (64, 32, False), (12, 7, True)]
)
def test_every_output_equals_the_reference_without_a_cache(
    model: Decoder, num_blocks: int, num_slots: int, caching: bool
) -> None:
    """Chunks, company, shared prefixes, turns, preemptions, with slots to spare or not."""
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
    if num_blocks == 12:
        assert engine.scheduler.batch.num_preemptions > 0


def test_a_conversation_goes_on_from_its_last_block(model: Decoder) -> None:
    engine = engine_of(model)
    text = list(range(3, 3 + 2 * BLOCK + 1))
    for turn in range(4):
        engine.submit(ask(str(turn), text, 7))
        hits = engine.scheduler.kv.prefix_hits
        (answer,) = run(engine).values()
        found = engine.scheduler.kv.prefix_hits - hits
        assert found == 0 if turn == 0 else found == (len(text) - 3) // BLOCK * BLOCK
        text = [*text, *answer, 9, 11]
