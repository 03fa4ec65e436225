"""Protects: recurrent layers give what the whole sequence would, wherever a request starts from."""

from __future__ import annotations

import pytest

from tests.runtime.mixed_models import (
    BLOCK,
    ask,
    engine_of,
    hybrid_spec,
    random_model,
    run,
)
from twostroke.models.decoder import Decoder


@pytest.fixture(scope="module")
def model() -> Decoder:
    return random_model(hybrid_spec())


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
