"""Calibration: shapes of real steps, fitted coefficients, and the file that the simulator reads."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes import FakeExecutor
from tests.model_spec import configs
from twostroke.core.errors import ConfigError
from twostroke.core.step import StepPlan, StepResult
from twostroke.engine.llm_engine import LLMEngine
from twostroke.model_spec.reader import parse_model
from twostroke.simulator.calibration.calibrate import fit_coefficients
from twostroke.simulator.calibration.efficiencies_file import as_toml
from twostroke.simulator.calibration.machine_speed import Speed, usual
from twostroke.simulator.calibration.measuring import (
    MeasuredStep,
    measure,
    measured_steps,
    steps_csv,
)
from twostroke.simulator.calibration.options import CalibrationOptions
from twostroke.simulator.calibration.scenes import PAUSE
from twostroke.simulator.cost.configuration import Dtypes, Parallel
from twostroke.simulator.cost.cost_model import RooflineCostModel
from twostroke.simulator.cost.efficiencies import load_efficiencies
from twostroke.simulator.cost.hardware_sheet import load_hardware
from twostroke.simulator.fleet.clock import VirtualClock
from twostroke.timing.step_shape import SETTLING, StepShape

CPU = load_hardware("cpu")
START = load_efficiencies("cpu")
SMALL = {
    **configs.LLAMA_8B,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "head_dim": 64,
}
MODEL = parse_model(
    {**SMALL, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 8192}
)


def shapes() -> list[StepShape]:
    decode = [
        StepShape(n, n * context, (), n) for n in (1, 4, 16, 64) for context in (40, 400, 1500)
    ]
    prefill = [
        StepShape(0, 0, ((n, cached),), 1) for n in (16, 64, 256, 1024) for cached in (0, 512)
    ]
    return decode + prefill + [StepShape(8, 8 * 200, ((128, 0),), 9)]


def no_wait(seconds: float) -> None:
    """For tests in which a pause does not matter."""


def _without_last_column(text: str) -> str:
    return "\n".join(line.rpartition(",")[0] for line in text.splitlines())


def test_steps_of_the_engine_are_measured_as_what_they_computed() -> None:
    engine = LLMEngine(FakeExecutor(num_blocks=600))
    steps = measure(engine, rounds=1, wait=no_wait).steps
    engine.close()
    measured = [step.shape for step in steps]
    assert StepShape(0, 0, ((16, 0),), 1) in measured  # the shortest prompt, alone
    assert any(shape.decode_requests == 8 and not shape.prefill for shape in measured)
    assert any(len(shape.prefill) == 8 for shape in measured)
    assert len({shape._replace(sampled=0) for shape in measured}) == len(measured)
    assert {shape.since_prefill for shape in measured} == set(range(SETTLING + 1))
    assert not any(shape.since_prefill for shape in measured if shape.prefill)
    assert all(step.seconds > 0 for step in steps)
    lone = [shape for shape in measured if shape.decode_requests == 1 and not shape.prefill]
    assert (
        17 <= min(shape.decode_context for shape in lone) < 32
    )  # steps of nearly the same context are one kind


def test_pauses_are_waited_for_and_not_counted() -> None:
    """A prompt on an idle engine is a kind of step of its own, timed without the wait."""
    clock = VirtualClock()
    engine = LLMEngine(FakeExecutor(num_blocks=600), clock=clock)
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        clock.advance(seconds)

    steps = measure(engine, rounds=1, wait=wait).steps
    engine.close()
    idle = [step for step in steps if step.shape.after_idle]
    assert {step.shape.prefill for step in idle} >= {((16, 0),), ((48, 0),), ((64, 0),) * 2}
    assert waited == [PAUSE] * len(waited) and len(waited) == len(idle)
    assert all(step.shape.prefill for step in idle)
    assert {step.seconds for step in steps} == {0.0}


def test_a_fit_finds_what_a_pause_costs() -> None:
    truth = replace(START, host=replace(START.host, wake=0.02))
    real = RooflineCostModel(CPU, MODEL, Parallel(), Dtypes(), truth)
    alone = [StepShape(0, 0, ((tokens, 0),), 1, after_idle=True) for tokens in (20, 90, 400)]
    steps = [MeasuredStep(shape, real.step(shape).seconds) for shape in (*shapes(), *alone)]
    fitted = fit_coefficients(steps, CPU, MODEL, START, starts=2)
    assert fitted.efficiencies.host.wake == pytest.approx(0.02, rel=0.2)


def test_the_steps_cover_what_a_server_meets() -> None:
    """Prompts beside decoding, chunks after cached tokens, batches of all sizes."""
    engine = LLMEngine(FakeExecutor(num_blocks=4000, block_size=16, max_model_len=2600))
    steps = measure(engine, rounds=1, wait=no_wait).steps
    engine.close()
    shapes = [step.shape for step in steps]
    assert any(shape.decode_requests >= 8 and shape.prefill for shape in shapes)
    assert {before for shape in shapes for _, before in shape.prefill} >= {0, 512, 1024, 2048}
    assert {shape.decode_requests for shape in shapes if not shape.prefill} >= set(range(1, 25))
    text = steps_csv(steps, [1.0] * len(steps))
    assert len(text.splitlines()) == len(steps) + 1
    read = measured_steps(text)
    assert [step.shape for step in read] == shapes
    once = _without_last_column(text)
    assert {step.shape.after_idle for step in measured_steps(once)} == {False}
    assert {step.shape.since_prefill for step in measured_steps(_without_last_column(once))} == {0}
    assert [step.seconds for step in read] == pytest.approx(
        [step.seconds for step in steps], rel=1e-5
    )


def test_runs_at_another_speed_are_made_again_and_do_not_count() -> None:
    """Coefficients describe one speed: the usual one."""
    engine = LLMEngine(FakeExecutor(num_blocks=600))
    calls = 0

    def probe() -> tuple[float, float]:
        nonlocal calls
        calls += 1
        return (1e12 if calls > 3 else 6e11), 1e10

    measured = measure(engine, rounds=1, probe=probe, wait=no_wait)
    engine.close()
    assert measured.speed == Speed(1e12, 1e10)
    assert measured.left_out == 3  # two at the other speed, and the one in which it changed
    assert calls == 1 + measured.runs
    assert StepShape(0, 0, ((16, 0),), 1) in [
        step.shape for step in measured.steps
    ]  # of the first scene, made again


def test_a_scene_that_never_ran_at_the_usual_speed_still_counts() -> None:
    """Otherwise a kind of step could be missing."""
    engine = LLMEngine(FakeExecutor(num_blocks=600))
    scenes = measure(engine, rounds=1, wait=no_wait).runs
    calls = 0

    def probe() -> tuple[float, float]:
        nonlocal calls
        calls += 1
        return (6e11 if calls == 1 or calls > 1 + scenes else 1e12), 1e10

    measured = measure(engine, rounds=1, probe=probe, wait=no_wait)
    engine.close()
    kinds = {step.shape.prefill for step in measured.steps}
    assert ((16, 0),) in kinds and (measured.runs, measured.left_out) == (scenes + 1, 1)


class Unsteady(FakeExecutor):
    """A step takes one second or three, in turn from scene to scene and from round to round."""

    def __init__(self, clock: VirtualClock, scenes: int) -> None:
        super().__init__(num_blocks=600)
        self.clock = clock
        self.seconds = 1.0
        self.scenes = scenes
        self.probes = 0

    def execute(self, plan: StepPlan) -> StepResult:
        self.clock.advance(self.seconds)
        return super().execute(plan)

    def probe(self) -> tuple[float, float]:
        self.seconds = 3.0 if sum(divmod(self.probes, self.scenes)) % 2 else 1.0
        self.probes += 1
        return 1e12 / self.seconds, 1e10


def test_where_no_speed_holds_an_average_of_all_runs_counts() -> None:
    """A median of the few runs between equal probes would be one speed or the other, by chance."""
    engine = LLMEngine(FakeExecutor(num_blocks=600))
    scenes = measure(engine, rounds=1, wait=no_wait).runs
    engine.close()
    clock = VirtualClock()
    executor = Unsteady(clock, scenes)
    engine = LLMEngine(executor, clock=clock)
    measured = measure(engine, rounds=2, probe=executor.probe, wait=no_wait)
    engine.close()
    assert measured.left_out == 0
    assert {step.seconds for step in measured.steps if step.shape.prefill == ((16, 0),)} == {2.0}
    assert measured.speed is not None and not measured.speed.held
    assert measured.speed.flops == pytest.approx(5e11, rel=0.05)  # some two seconds on average


def test_speeds() -> None:
    one, other = Speed(1e12, 2e10), Speed(1.05e12, 1e10)
    assert one.apart(other) == other.apart(one) == pytest.approx(1.0)
    assert not one.agrees(other) and one.agrees(Speed(1.05e12, 2e10))
    assert usual([one, other, one]) == one


def test_a_fit_finds_times_that_other_coefficients_made() -> None:
    """Half the memory rate and a slower host: the times agree, even if the coefficients do not."""
    gemm = {name: replace(value, memory=0.3, compute=0.5) for name, value in START.gemm.items()}
    truth = replace(START, gemm=gemm, host=replace(START.host, step=0.004, request=1e-4))
    real = RooflineCostModel(CPU, MODEL, Parallel(), Dtypes(), truth)
    steps = [MeasuredStep(shape, real.step(shape).seconds) for shape in shapes()]
    before = RooflineCostModel(CPU, MODEL, Parallel(), Dtypes(), START)
    assert max(step.seconds / before.step(step.shape).seconds for step in steps) > 1.5
    fitted = fit_coefficients(steps, CPU, MODEL, START, starts=2)
    assert fitted.median_error < 0.04
    other = StepShape(32, 32 * 700, (), 32)
    after = RooflineCostModel(CPU, MODEL, Parallel(), Dtypes(), fitted.efficiencies)
    assert after.step(other).seconds == pytest.approx(real.step(other).seconds, rel=0.15)
    assert fitted.ratios == sorted(fitted.ratios)


def test_what_costs_nothing_at_the_start_is_not_fitted() -> None:
    """A GPU has no pauses to pay for; a start of 0 has no logarithm either."""
    steps = [MeasuredStep(shape, 0.01) for shape in shapes()]
    start = replace(START, host=replace(START.host, wake=0.0, settle=0.0))
    fitted = fit_coefficients(steps, CPU, MODEL, start, starts=1).efficiencies
    assert (fitted.host.wake, fitted.host.settle, fitted.prefill.block) == (0.0, 0.0, 0.0)
    assert fitted.host.step != START.host.step


def test_nothing_can_be_fitted_to_nothing() -> None:
    with pytest.raises(ConfigError, match="no steps were measured"):
        fit_coefficients([], CPU, MODEL, START)
    with pytest.raises(ConfigError, match="took no time"):
        fit_coefficients([MeasuredStep(shapes()[0], 0.0)], CPU, MODEL, START)


def test_the_file_is_read_back(tmp_path: Path) -> None:
    steps = [MeasuredStep(shape, 0.01) for shape in shapes()]
    fitted = fit_coefficients(steps, CPU, MODEL, START, starts=1)
    file = tmp_path / "own.toml"
    file.write_text(as_toml(fitted, "a test", Speed(8e11, 2e10, held=False)))
    assert Speed(**tomllib.loads(file.read_text())["speed"]) == Speed(8e11, 2e10, held=False)
    read = load_efficiencies("cpu", file)
    assert read.origins["host"] == "a test"
    assert read.host.step == pytest.approx(fitted.efficiencies.host.step, rel=1e-4)
    assert read.gemm["bf16"].memory == pytest.approx(
        fitted.efficiencies.gemm["bf16"].memory, rel=1e-4
    )
    assert read.interval.decode_low <= 1 <= read.interval.decode_high


def test_options() -> None:
    assert CalibrationOptions.weight_format("auto", "fp32") == "fp32"
    assert CalibrationOptions.weight_format("bfloat16", "fp32") == "bf16"
    assert CalibrationOptions.weight_format("auto", "bf16", "int8") == "int8"
    with pytest.raises(ConfigError, match="--rounds must be at least 1"):
        CalibrationOptions(rounds=0)
