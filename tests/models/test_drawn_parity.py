"""Logits equal those of transformers on checkpoints whose configurations are drawn at random."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.drawn_families import NUM_DRAWN, drawn_config
from tests.models.parity import TOLERANCE, measure_distances


@pytest.mark.parametrize("number", range(NUM_DRAWN))
def test_drawn_configuration(number: int, tmp_path: Path) -> None:
    assert measure_distances(drawn_config(number), tmp_path).largest() < TOLERANCE
