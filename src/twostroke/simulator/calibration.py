"""Coefficients of the machine at hand: short steps on the live engine, and what makes the cost model agree with them.

The steps cover what the cost model distinguishes: prompts of several lengths, alone and together, chunks that follow
cached tokens, and decoding with few and many requests over short and long contexts. Each is taken several times; the
fastest counts, since other programs can only slow a step down.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import log
from random import Random
from typing import Any

from twostroke.engine.client import GenerationRequest
from twostroke.engine.engine import Engine
from twostroke.observability.events import StepEvent
from twostroke.sampling_params import SamplingParams
from twostroke.simulator.cost_model import Dtypes, Parallel, RooflineCostModel
from twostroke.simulator.efficiencies import Efficiencies, Interval
from twostroke.simulator.fitting import Space, search
from twostroke.simulator.hardware_sheet import HardwareSheet
from twostroke.simulator.model_sheet import ModelSheet
from twostroke.simulator.step_shape import StepShape

# (requests, prompt tokens, output tokens) of the batches that are run, shortest first; those that do not fit are left
# out. Requests of one batch start together, so its first steps prefill and the others decode.
BATCHES = (
    (1, 16, 8),
    (1, 128, 8),
    (1, 512, 8),
    (1, 1500, 8),
    (2, 64, 8),
    (4, 256, 8),
    (8, 32, 8),
    (8, 400, 8),
    (16, 128, 8),
    (32, 48, 8),
    (32, 300, 8),
    (64, 32, 6),
)
# A fit has to gain this much in mean error before it moves a coefficient from its start by a factor of e.
PULL = 0.002
# Tokens per request whose steps count as one shape; a context that is a little longer takes as long.
SAME_CONTEXT = 16


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A shape and the fewest seconds that a step of it took, scheduling included."""

    shape: StepShape
    seconds: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """Fitted coefficients, and how far the steps are off: measured over estimated, sorted, in ``ratios``."""

    efficiencies: Efficiencies
    ratios: list[float]

    @property
    def median_error(self) -> float:
        errors = sorted(abs(1 / ratio - 1) for ratio in self.ratios)
        return errors[len(errors) // 2]


def measure(engine: Engine, rounds: int = 3, said: Callable[[int], None] = lambda done: None) -> list[MeasuredStep]:
    """Run the batches on an engine that nobody else uses, ``rounds`` times, and keep the fastest step of each shape.

    Args:
        said: Called after every batch with how many are done.

    Raises:
        EngineError: A step failed.
    """
    random = Random(0)
    room = engine.info.num_blocks * engine.info.block_size
    chosen = [
        batch
        for batch in BATCHES
        if batch[1] + batch[2] <= engine.info.max_model_len
        and batch[0] * (batch[1] + batch[2] + engine.info.block_size) <= room
        and batch[0] <= engine.config.scheduler.max_num_seqs
    ]
    fastest: dict[tuple[object, ...], MeasuredStep] = {}
    _run(engine, random, 1, 16, 4)  # the first pass pays for allocations
    for number in range(rounds):
        for index, (requests, prompt, output) in enumerate(chosen):
            for step in _run(engine, random, requests, prompt, output):
                key = _key(step.shape)
                if key not in fastest or step.seconds < fastest[key].seconds:
                    fastest[key] = step
            said(number * len(chosen) + index + 1)
    return list(fastest.values())


def step_shape(event: StepEvent) -> StepShape:
    """What a recorded step computed."""
    decode = [item for item in event.scheduled if item.num_tokens == 1]
    chunks = tuple((item.num_tokens, item.start) for item in event.scheduled if item.num_tokens > 1)
    context = sum(item.start + 1 for item in decode)
    return StepShape(len(decode), context, chunks, sum(item.sampled for item in event.scheduled))


def calibrate(
    steps: Sequence[MeasuredStep],
    hardware: HardwareSheet,
    model: ModelSheet,
    start: Efficiencies,
    *,
    weights: str = "auto",
    rounds: int = 3000,
) -> Calibration:
    """The coefficients near ``start`` under which the cost model is least wrong about measured steps, in the mean.

    Args:
        weights: Format that the engine keeps the weights in.
        rounds: Tries; each asks the cost model for every step.
    """
    space = _space(start, weights, hardware)

    def estimates(values: Mapping[str, float]) -> list[float]:
        made = _with(start, values)
        cost = RooflineCostModel(hardware, model, Parallel(), Dtypes(weights=weights), made)
        return [cost.step(step.shape).seconds for step in steps]

    def loss(values: dict[str, float]) -> float:
        error = sum(abs(log(found / step.seconds)) for found, step in zip(estimates(values), steps)) / len(steps)
        pull = sum(abs(log(value / space[name][0])) for name, value in values.items())
        return error + PULL * pull

    found = search(loss, space, rounds)
    ratios = sorted(step.seconds / estimate for step, estimate in zip(steps, estimates(found)))
    low, high = min(ratios[len(ratios) // 10], 1.0), max(ratios[len(ratios) * 9 // 10], 1.0)
    interval = Interval(decode_low=low, decode_high=high, prefill_low=low, prefill_high=high)
    return Calibration(replace(_with(start, found), interval=interval), ratios)


def as_toml(calibration: Calibration, source: str) -> str:
    """A file for ``load_efficiencies(device, path)``; ``source`` says on what it was measured."""
    found = calibration.efficiencies
    tables: dict[str, dict[str, Any]] = {f"gemm.{name}": asdict(value) for name, value in found.gemm.items()}
    tables["step"] = {"decode": found.step_decode, "prefill": found.step_prefill}
    for name in ("decode", "prefill", "elementwise", "all_reduce", "host", "interval"):
        tables[name] = asdict(getattr(found, name))
    lines = [f'source = "{source}"']
    for name, values in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(float(f"{value:.5g}"))


def _run(engine: Engine, random: Random, requests: int, prompt: int, output: int) -> list[MeasuredStep]:
    params = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True, detokenize=False)
    for index in range(requests):
        tokens = [random.randrange(engine.info.vocab_size) for _ in range(prompt)]
        request_id = f"calibrate-{random.getrandbits(64):x}-{index}"
        engine.submit(GenerationRequest(request_id=request_id, prompt_token_ids=tokens, params=params))
    found = []
    last = events[-1].step if (events := engine.recorder.events()) else -1
    while engine.has_work():
        began = engine.clock()
        outputs = engine.step()
        seconds = engine.clock() - began
        for ended in outputs:
            if ended.error is not None:
                raise ended.error
        event = engine.recorder.events(last)[-1]
        last = event.step
        found.append(MeasuredStep(step_shape(event), seconds))
    return found


def _key(shape: StepShape) -> tuple[object, ...]:
    """Steps that take as long, as far as a measurement can tell."""
    mean = shape.decode_context // max(shape.decode_requests, 1)
    return shape.decode_requests, mean // SAME_CONTEXT, shape.prefill, shape.sampled


# What is fitted: (table, coefficient, lowest, highest). Memory shares above 1 are weights that stay in a cache.
_FITTED = (
    ("gemm", "compute", 0.02, 1.5),
    ("gemm", "memory", 0.05, 6.0),
    ("gemm", "launch", 1e-7, 1e-3),
    ("gemm", "sharpness", 1.0, 10.0),
    ("decode", "memory", 0.005, 6.0),
    ("decode", "launch", 1e-7, 1e-2),
    ("decode", "block", 1e-8, 1e-2),
    ("prefill", "compute", 0.005, 1.5),
    ("prefill", "memory", 0.005, 6.0),
    ("prefill", "launch", 1e-7, 1e-2),
    ("prefill", "block", 1e-9, 1e-2),
    ("elementwise", "memory", 0.005, 6.0),
    ("elementwise", "launch", 1e-7, 1e-3),
    ("host", "step", 1e-6, 1.0),
    ("host", "request", 1e-8, 1e-2),
    ("host", "token", 1e-9, 1e-3),
)


def _space(start: Efficiencies, weights: str, hardware: HardwareSheet) -> Space:
    space = {}
    for table, name, low, high in _FITTED:
        holder = start.gemm["bf16"] if table == "gemm" else getattr(start, table)
        space[f"{table}.{name}"] = (min(max(getattr(holder, name), low), high), low, high, 0.4)
    return space


def _with(start: Efficiencies, values: Mapping[str, float]) -> Efficiencies:
    changed: dict[str, dict[str, float]] = {}
    for key, value in values.items():
        table, name = key.split(".")
        changed.setdefault(table, {})[name] = value
    gemm = {name: replace(found, **changed["gemm"]) for name, found in start.gemm.items()}
    tables = {name: replace(getattr(start, name), **found) for name, found in changed.items() if name != "gemm"}
    return replace(start, gemm=gemm, **tables)
