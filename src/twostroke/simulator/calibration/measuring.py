"""Times short steps on the live engine, for a calibration.

The median of each kind of step counts: what a step usually takes, the operating system's share
included, and not what it takes once in a while.

A probe of the machine's speed runs before and after each scene. Scenes that ran at another speed
than the usual one are run again and do not count: one set of coefficients cannot describe two
speeds. If the speed never holds for as long as a scene, there is no usual speed. Then all runs
count, and every median is scaled up by the ratio of all steps to their medians: to what a step
takes on average (``docs/decisions/0033-times-from-sheets-and-calibration.md``).
"""

from __future__ import annotations

import csv
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from io import StringIO
from random import Random
from statistics import median

from twostroke.core.generation_request import GenerationRequest
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.answer import raise_output_error
from twostroke.engine.llm_engine import LLMEngine
from twostroke.observability.events import StepEvent
from twostroke.simulator.calibration.machine_speed import SAME, Probe, Speed, average, usual
from twostroke.simulator.calibration.scenes import (
    MAX_CACHED,
    SCENES,
    WARM_UP,
    Scene,
    Wave,
    fits,
)
from twostroke.timing.step_shape import SETTLING, StepShape

# Share of all runs that must be at the usual speed; with fewer there is no usual speed.
MIN_USUAL_SHARE = 0.25
# Contexts that differ by fewer tokens per request count as one shape.
CONTEXT_STEP = 16


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A shape and the seconds that a step of it took, scheduling included."""

    shape: StepShape
    seconds: float


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a calibration is fitted to.

    Attributes:
        steps: The usual step of each kind, in the order of their first runs; an average if there
            is no usual speed.
        speed: The machine's usual speed meanwhile, or the average; ``None`` without a probe.
        runs: How many runs of scenes were made.
        left_out: Runs that do not count, because they were at another speed.
    """

    steps: list[MeasuredStep]
    speed: Speed | None
    runs: int
    left_out: int


@dataclass(slots=True)
class _SceneRuns:
    """All runs of a scene: their steps, and the machine's speed before and after them."""

    scene: Scene
    steps: list[list[MeasuredStep]] = field(default_factory=list)
    speeds: list[tuple[Speed, ...]] = field(default_factory=list)

    def apart(self, run: int, speed: Speed) -> float:
        return max((probed.apart(speed) for probed in self.speeds[run]), default=0.0)

    def num_at(self, speed: Speed) -> int:
        return sum(self.apart(run, speed) <= SAME for run in range(len(self.steps)))

    def runs_at(self, speed: Speed | None) -> list[int]:
        """Indices of the runs at this speed; if there are none, of the closest one."""
        indices = range(len(self.steps))
        if speed is None:
            return list(indices)
        at_speed = [run for run in indices if self.apart(run, speed) <= SAME]
        return at_speed or [min(indices, key=lambda run: self.apart(run, speed))]


def measure(
    engine: LLMEngine,
    rounds: int = 3,
    progress: Callable[[int], None] = lambda num_done: None,
    probe: Probe | None = None,
    wait: Callable[[float], None] = time.sleep,
) -> Measurement:
    """Run the scenes ``rounds`` times on an engine without other requests, and time their steps.

    A scene is run again if less than half of its runs were at the machine's usual speed, at most
    ``rounds`` times more.

    Args:
        progress: Called after every scene with the number of scenes done.
        probe: Measures how fast the machine is at the moment.
        wait: Waits for this many seconds.

    Raises:
        EngineError: A step failed.
    """
    random = Random(0)
    engine.loop.runs_ahead = False  # what is timed is one step after the other
    base = [random.randrange(engine.info.vocab_size) for _ in range(MAX_CACHED)]
    scenes = [_SceneRuns(scene) for scene in SCENES if fits(scene, engine)]
    speeds: list[Speed] = []

    def probe_speed() -> None:
        if probe is not None:
            speeds.append(Speed(*probe()))

    def run(runs: _SceneRuns) -> None:
        _run(engine, random, base, WARM_UP)  # the probe has driven the weights out of the caches
        if cached := max(wave.cached for wave in runs.scene):
            fill_cache = (Wave(1, cached + 1, 1, cached=cached),)
            _run(engine, random, base, fill_cache)
        runs.steps.append(_run(engine, random, base, runs.scene, wait))
        probe_speed()
        runs.speeds.append(tuple(speeds[-2:]))

    _run(engine, random, base, WARM_UP)  # the first pass pays for allocations
    probe_speed()
    for number in range(rounds):
        for index, runs in enumerate(scenes):
            run(runs)
            progress(number * len(SCENES) + index + 1)
    for _ in range(rounds):
        for runs in scenes:
            if probe is not None and 2 * runs.num_at(usual(speeds)) < rounds:
                run(runs)
    return _sum_up(scenes, speeds)


def _sum_up(scenes: Sequence[_SceneRuns], speeds: Sequence[Speed]) -> Measurement:
    kinds: defaultdict[StepShape, list[MeasuredStep]] = defaultdict(list)
    speed = usual(speeds) if speeds else None
    runs = sum(len(scene.steps) for scene in scenes)
    held = speed is None or sum(scene.num_at(speed) for scene in scenes) >= MIN_USUAL_SHARE * runs
    counted = 0
    for scene in scenes:
        indices = scene.runs_at(speed if held else None)
        counted += len(indices)
        for number in indices:
            for step in scene.steps[number]:
                kinds[_kind(step.shape)].append(step)
    steps = [_median_step(same) for same in kinds.values()]
    if not held:
        # Not the mean of each kind: other programs stop a step for 20 to 190 ms now and then, and
        # there are few steps of one kind.
        usually = sum(step.seconds * len(same) for step, same in zip(steps, kinds.values()))
        longer = (
            sum(step.seconds for same in kinds.values() for step in same) / usually
            if usually
            else 1.0
        )
        steps = [MeasuredStep(step.shape, step.seconds * longer) for step in steps]
    return Measurement(steps, speed if held else average(speeds), runs, runs - counted)


def _median_step(same: Sequence[MeasuredStep]) -> MeasuredStep:
    ordered = sorted(same, key=lambda step: step.seconds)
    return MeasuredStep(ordered[len(same) // 2].shape, median(step.seconds for step in same))


def recorded_shape(event: StepEvent) -> StepShape:
    """What a recorded step computed."""
    decode = [item for item in event.scheduled if item.num_tokens == 1]
    chunks = tuple((item.num_tokens, item.start) for item in event.scheduled if item.num_tokens > 1)
    context = sum(item.start + 1 for item in decode)
    return StepShape(len(decode), context, chunks, sum(item.sampled for item in event.scheduled))


def steps_csv(steps: Sequence[MeasuredStep], estimates: Sequence[float]) -> str:
    """A CSV with a row for each kind of step: its shape, measured and estimated seconds."""
    file = StringIO(newline="")
    rows = csv.writer(file, lineterminator="\n")
    names = ("decode_requests", "decode_context", "prefill", "sampled", "measured", "estimated")
    rows.writerow((*names, "since_prefill", "after_idle"))
    for step, estimate in zip(steps, estimates):
        shape = step.shape
        chunks = " ".join(f"{new}+{before}" for new, before in shape.prefill)
        numbers = (f"{step.seconds:.6g}", f"{estimate:.6g}")
        sizes = shape.decode_requests, shape.decode_context, chunks, shape.sampled
        rows.writerow((*sizes, *numbers, shape.since_prefill, int(shape.after_idle)))
    return file.getvalue()


def measured_steps(text: str) -> list[MeasuredStep]:
    """The steps of a CSV as ``steps_csv`` makes it."""
    steps = []
    for row in csv.DictReader(StringIO(text)):
        chunks = [chunk.partition("+") for chunk in row["prefill"].split()]
        prefill = tuple((int(new), int(before)) for new, _, before in chunks)
        requests, context, sampled = (
            int(row[name]) for name in ("decode_requests", "decode_context", "sampled")
        )
        # Files of earlier versions lack the last two columns.
        since, idle = (int(row.get(name) or 0) for name in ("since_prefill", "after_idle"))
        shape = StepShape(requests, context, prefill, sampled, since, bool(idle))
        steps.append(MeasuredStep(shape, float(row["measured"])))
    return steps


def _run(
    engine: LLMEngine,
    random: Random,
    base: Sequence[int],
    scene: Scene,
    wait: Callable[[float], None] = time.sleep,
) -> list[MeasuredStep]:
    """The steps of a scene, in order; adding a request counts to the step that follows."""
    waves = sorted(scene, key=lambda wave: wave.before_step)
    steps: list[MeasuredStep] = []
    last = events[-1].step if (events := engine.recorder.events()) else -1
    since = 0
    while waves or engine.has_work():
        arriving: list[GenerationRequest] = []
        pause = 0.0
        while waves and (waves[0].before_step <= len(steps) or not (arriving or engine.has_work())):
            pause = 0.0 if engine.has_work() else waves[0].pause
            arriving += _requests(engine, random, base, waves.pop(0))
        if pause:
            wait(pause)
        began = engine.clock()
        for request in arriving:
            engine.submit(request)
        outputs = engine.step()
        seconds = engine.clock() - began
        for output in outputs:
            raise_output_error(output)
        event = engine.recorder.events(last)[-1]
        last = event.step
        shape = recorded_shape(event)
        since = 0 if shape.prefill else since
        steps.append(
            MeasuredStep(shape._replace(since_prefill=since, after_idle=pause > 0), seconds)
        )
        since = 1 if shape.prefill else (since + 1) % (SETTLING + 1) if since else 0
    return steps


def _requests(
    engine: LLMEngine, random: Random, base: Sequence[int], wave: Wave
) -> list[GenerationRequest]:
    requests = []
    for index in range(wave.requests):
        output = wave.output + index * wave.stagger
        params = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True, detokenize=False)
        num_new = wave.prompt - wave.cached
        new_tokens = [random.randrange(engine.info.vocab_size) for _ in range(num_new)]
        request_id = f"calibrate-{random.getrandbits(64):x}"
        prompt = [*base[: wave.cached], *new_tokens]
        requests.append(
            GenerationRequest(request_id=request_id, prompt_token_ids=prompt, params=params)
        )
    return requests


def _kind(shape: StepShape) -> StepShape:
    """The shape with its context rounded: equal for steps that take equally long."""
    mean = shape.decode_context // max(shape.decode_requests, 1)
    return shape._replace(decode_context=mean // CONTEXT_STEP)
