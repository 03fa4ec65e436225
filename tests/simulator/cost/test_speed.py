"""Protects: a step of any public model is estimated fast enough for thousands of candidates."""

from __future__ import annotations

import time
from statistics import median

import pytest

from twostroke.model_spec.public_models import find_model, public_names
from twostroke.simulator.cost.configuration import Dtypes, Parallel
from twostroke.simulator.cost.cost_model import RooflineCostModel
from twostroke.simulator.cost.efficiencies import load_efficiencies
from twostroke.simulator.cost.hardware_sheet import load_hardware
from twostroke.timing.step_shape import StepShape

# Of a step whose number of tokens none before had; the slowest took 50 us.
MOST_SECONDS = 100e-6


@pytest.mark.parametrize("name", public_names())
def test_a_step_that_none_was_like_is_fast(name: str) -> None:
    sheet = load_hardware("h100")
    efficiencies = load_efficiencies(sheet.name, link=sheet.link_kind)
    cost = RooflineCostModel(sheet, find_model(name), Parallel(), Dtypes(), efficiencies)
    cost.step(StepShape(1, 10, (), 1))
    seconds = []
    for requests in range(2, 100):
        began = time.perf_counter()
        cost.step(StepShape(requests, 1000 * requests, ((3 * requests, 0),), requests))
        seconds.append(time.perf_counter() - began)
    assert median(seconds) < MOST_SECONDS
