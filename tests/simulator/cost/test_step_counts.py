"""Protects: FLOPs and bytes of the roofline are the model's own, for every kind of layer."""

from __future__ import annotations

from pathlib import Path

import pytest

from twostroke.core.errors import ConfigError
from twostroke.model_spec.public_models import find_model, public_names
from twostroke.questions.model_facts import StepWork
from twostroke.simulator.cost.configuration import Dtypes, Parallel
from twostroke.simulator.cost.cost_model import RooflineCostModel
from twostroke.simulator.cost.efficiencies import load_efficiencies
from twostroke.simulator.cost.hardware_sheet import load_hardware
from twostroke.simulator.cost.shown_costs import (
    facts_of_recording,
    facts_of_simulation,
    measured_ceilings,
    sheet_of_gpu,
    shown_costs,
)
from twostroke.simulator.cost.step_counts import StepCounts
from twostroke.timing.step_shape import StepShape


@pytest.mark.parametrize("name", public_names())
def test_flops_are_those_of_the_description(name: str) -> None:
    model = find_model(name)
    counts = StepCounts(model, Dtypes())
    assert counts.flops(StepShape(1, 100, (), 1)) == pytest.approx(model.decode_flops(100))
    assert counts.flops(StepShape(0, 0, ((100, 0),), 1)) == pytest.approx(model.prefill_flops(100))


def test_bytes_are_weights_once_and_keys_and_values_of_each_request() -> None:
    model = find_model("llama-3.1-8b")
    counts = StepCounts(model, Dtypes())
    # The embedding is looked up, not read.
    read = model.weight_bytes() - 2 * model.vocab_size * model.hidden_size
    one = counts.bytes(StepShape(1, 1000, (), 1))
    assert one == pytest.approx(read + model.kv_bytes(1000), rel=0.002)
    many = counts.bytes(StepShape(64, 64_000, (), 64))
    cached = 63 * model.kv_bytes(1000)
    assert cached < many - one < 1.15 * cached  # the rest passes between the kernels


def test_decode_climbs_from_memory_to_arithmetic_with_the_batch() -> None:
    costs = shown_costs(find_model("llama-3.1-8b"), Dtypes(), "h100")
    made = [costs.cost(StepWork(batch, 64 * batch, (), batch)) for batch in (1, 16, 1024)]
    intensities = [cost.flops / cost.bytes for cost in made]
    assert intensities == sorted(intensities)
    assert intensities[0] == pytest.approx(1, rel=0.05)
    assert [cost.binding for cost in made[:2]] == ["memory", "memory"]
    assert costs.ceilings is not None
    ridge = costs.ceilings.flops / costs.ceilings.bandwidth
    assert intensities[1] < ridge < intensities[2]


def test_without_a_sheet_there_are_counts_and_no_times() -> None:
    facts = facts_of_recording("llama-3.1-8b", None)
    cost = facts.costs.cost(StepWork(1, 100, (), 1))
    assert cost.seconds is None
    assert cost.flops > 1e9
    assert facts.costs.ceilings is None
    assert any("no ceiling" in note for note in facts.notes)


def test_the_estimate_is_the_simulators() -> None:
    model, sheet = find_model("llama-3.1-8b"), load_hardware("h100")
    efficiencies = load_efficiencies(sheet.name, link=sheet.link_kind)
    cost = RooflineCostModel(sheet, model, Parallel(tensor=2), Dtypes(), efficiencies)
    facts = facts_of_simulation("x", cost)
    assert not facts.measured
    shape = StepShape(8, 800, ((64, 32),), 9)
    made = facts.costs.cost(StepWork(8, 800, ((64, 32),), 9))
    assert made.seconds == cost.step(shape).seconds
    assert facts.costs.ceilings is not None
    assert facts.costs.ceilings.flops == 2 * sheet.dense_flops["bf16"]


def test_a_calibration_gives_the_roof_that_it_measured(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[speed]\nflops = 4e11\nbandwidth = 5e9\nheld = true\n")
    facts = facts_of_recording("llama-3.1-8b", "cpu", path)
    assert facts.calibrated is not None
    assert (facts.calibrated.flops, facts.calibrated.bandwidth) == (4e11, 5e9)
    assert "mine.toml" in facts.calibrated.source
    path.write_text("[host]\nstep = 1.0\nrequest = 0.0\ntoken = 0.0\n")
    slow = facts_of_recording("llama-3.1-8b", "cpu", path)
    assert slow.calibrated is None
    work = StepWork(1, 1, (), 1)
    seconds = [each.costs.cost(work).seconds or 0 for each in (slow, facts)]
    assert seconds[0] - seconds[1] == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize("speed", ["1", "{flops = 1e9}", "{flops = 0.0, bandwidth = 1e9}"])
def test_a_speed_that_no_calibration_writes_is_refused(tmp_path: Path, speed: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f"speed = {speed}\n")
    with pytest.raises(ConfigError, match="flops and bandwidth"):
        measured_ceilings(path)


@pytest.mark.parametrize(
    ("name", "sheet"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb-sxm"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("Something else", None),
    ],
)
def test_a_gpu_is_known_by_what_it_calls_itself(name: str, sheet: str | None) -> None:
    assert sheet_of_gpu(name) == sheet
    if sheet is not None:
        assert load_hardware(sheet).name == sheet
