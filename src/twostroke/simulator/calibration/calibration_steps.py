"""Short steps on the live engine, for a calibration: which ones, and how they are timed.

They cover what the cost model distinguishes: prompts of several lengths, alone and together; chunks
that follow cached tokens, found in the prefix cache or computed before; decoding with few and many
requests over short and long contexts, just after a prompt and later; prompts that come while others
decode, and such as come after a pause. The median of each kind counts: what a step usually takes,
the operating system's share included, and not what it takes once in a while.

A probe of the machine's speed goes before and after each scene. Runs at another speed than the
usual one are made again and do not count: one set of coefficients cannot describe two speeds. But a
machine whose speed never holds for as long as a scene has no usual one. There all runs count, and
every kind's median is made longer by as much as all steps took longer than their medians: what a
step takes on average (``docs/decisions/0046-a-machine-without-a-usual-speed.md``).
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
from typing import NamedTuple

from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.clients.base import GenerationRequest
from twostroke.engine.engine import Engine
from twostroke.observability.events import StepEvent
from twostroke.simulator.calibration.machine_speed import SAME, Probe, Speed, average, usual
from twostroke.simulator.cost.step_shape import SETTLING, StepShape


class Wave(NamedTuple):
    """Requests that come together.

    Attributes:
        known: Tokens of the prompt that the prefix cache has.
        stagger: Output tokens that each request gets more than the one before it, so that batches
            of all sizes occur.
        at: The step of the scene before which they come, or before that as soon as nobody is there.
        pause: Seconds for which nobody is there before they come.
    """

    requests: int
    prompt: int
    output: int
    known: int = 0
    stagger: int = 0
    at: int = 0
    pause: float = 0.0


Scene = tuple[Wave, ...]
PAUSE, LATER = 0.1, 1000
# Those that do not fit are left out. A 350M model on two cores takes about a minute for all of
# them.
SCENES: tuple[Scene, ...] = (
    *((Wave(1, prompt, SETTLING + 8),) for prompt in (16, 48, 128, 300, 512, 1000, 1500)),
    *(
        (Wave(*wave),)
        for wave in ((2, 64, 20), (4, 256, 8), (8, 32, 20), (8, 400, 8), (16, 128, 8))
    ),
    (Wave(24, 40, 4, stagger=1),),
    (Wave(64, 32, 18),),
    (Wave(24, 240, 6, stagger=1),),
    (Wave(1, 2500, 6),),  # above the default budget: a chunk on top of computed tokens
    *(
        (Wave(1, known + new, 4, known=known),)
        for known, new in ((512, 16), (512, 96), (1024, 48), (2048, 160))
    ),
    (Wave(4, 600, 4, known=512),),
    # Prompts that join requests which decode.
    (Wave(2, 64, 24), Wave(1, 32, 4, at=4), Wave(1, 128, 4, at=10), Wave(1, 512, 4, at=16)),
    (
        Wave(8, 100, 24),
        Wave(1, 64, 4, at=4),
        Wave(2, 200, 4, at=10),
        Wave(1, 640, 4, known=512, at=16),
    ),
    (Wave(16, 64, 24), Wave(1, 24, 4, at=4), Wave(1, 256, 4, at=10), Wave(4, 64, 4, at=16)),
    # Prompts that find nobody there, as long as others above.
    *(
        tuple(
            Wave(count, prompt, 8, known, at=place * LATER, pause=PAUSE)
            for place, (count, prompt, known) in enumerate(waves)
        )
        for waves in (
            ((1, 16, 0), (1, 48, 0), (2, 64, 0), (8, 32, 0)),
            ((1, 128, 0), (1, 608, 512), (1, 300, 0), (1, 512, 0)),
        )
    ),
)
LONGEST_KNOWN = 2048
WARM_UP: Scene = (Wave(1, 16, 4),)
# The share of all runs that has to be at the usual speed for there to be one.
HELD = 0.25
# Tokens per request whose steps count as one shape; a context that is a little longer takes as
# long.
SAME_CONTEXT = 16


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A shape and the seconds that a step of it took, scheduling included."""

    shape: StepShape
    seconds: float


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a calibration is fitted to.

    Attributes:
        steps: The usual step of each kind, in the order in which they were first seen; an average
            if no speed held.
        speed: The machine's usual one meanwhile, the average if none held; ``None`` if nobody
            probed.
        runs: How many runs of scenes were made; ``left_out`` of them, which were at another speed.
    """

    steps: list[MeasuredStep]
    speed: Speed | None
    runs: int
    left_out: int


@dataclass(slots=True)
class _Runs:
    """All runs of a scene: their steps, and the machine's speed before and after them."""

    scene: Scene
    steps: list[list[MeasuredStep]] = field(default_factory=list)
    speeds: list[tuple[Speed, ...]] = field(default_factory=list)

    def apart(self, run: int, speed: Speed) -> float:
        return max((found.apart(speed) for found in self.speeds[run]), default=0.0)

    def num_at(self, speed: Speed) -> int:
        return sum(self.apart(run, speed) <= SAME for run in range(len(self.steps)))

    def chosen(self, speed: Speed | None) -> list[int]:
        """Those at this speed; if there is none, the one that is closest to it."""
        every = range(len(self.steps))
        if speed is None:
            return list(every)
        at_speed = [run for run in every if self.apart(run, speed) <= SAME]
        return at_speed or [min(every, key=lambda run: self.apart(run, speed))]


def measure(
    engine: Engine,
    rounds: int = 3,
    said: Callable[[int], None] = lambda done: None,
    probe: Probe | None = None,
    wait: Callable[[float], None] = time.sleep,
) -> Measurement:
    """Run the scenes on an engine that nobody else uses, ``rounds`` times; the usual step of each
    kind.

    A scene of which less than half the runs were made at the machine's usual speed is run again, at
    most as many times.

    Args:
        said: Called after every scene with how many are done.
        probe: Says how fast the machine is just now.
        wait: Lets so many seconds pass.

    Raises:
        EngineError: A step failed.
    """
    random = Random(0)
    base = [random.randrange(engine.info.vocab_size) for _ in range(LONGEST_KNOWN)]
    found = [_Runs(scene) for scene in SCENES if _fits(scene, engine)]
    speeds: list[Speed] = []

    def look() -> None:
        if probe is not None:
            speeds.append(Speed(*probe()))

    def run(runs: _Runs) -> None:
        _run(engine, random, base, WARM_UP)  # the probe has driven the weights out of the caches
        if known := max(wave.known for wave in runs.scene):
            _run(
                engine, random, base, (Wave(1, known + 1, 1, known=known),)
            )  # into the prefix cache
        runs.steps.append(_run(engine, random, base, runs.scene, wait))
        look()
        runs.speeds.append(tuple(speeds[-2:]))

    _run(engine, random, base, WARM_UP)  # the first pass pays for allocations
    look()
    for number in range(rounds):
        for index, runs in enumerate(found):
            run(runs)
            said(number * len(SCENES) + index + 1)
    for _ in range(rounds):
        for runs in found:
            if probe is not None and 2 * runs.num_at(usual(speeds)) < rounds:
                run(runs)
    return _sum_up(found, speeds)


def _sum_up(scenes: Sequence[_Runs], speeds: Sequence[Speed]) -> Measurement:
    kinds: defaultdict[StepShape, list[MeasuredStep]] = defaultdict(list)
    speed = usual(speeds) if speeds else None
    runs = sum(len(scene.steps) for scene in scenes)
    held = speed is None or sum(scene.num_at(speed) for scene in scenes) >= HELD * runs
    counted = 0
    for scene in scenes:
        chosen = scene.chosen(speed if held else None)
        counted += len(chosen)
        for number in chosen:
            for step in scene.steps[number]:
                kinds[_kind(step.shape)].append(step)
    steps = [_middle(same) for same in kinds.values()]
    if not held:
        # Not the mean of each kind: neighbours stop a step for 20 to 190 ms now and then, and few
        # runs are of one kind.
        usually = sum(step.seconds * len(same) for step, same in zip(steps, kinds.values()))
        longer = (
            sum(step.seconds for same in kinds.values() for step in same) / usually
            if usually
            else 1.0
        )
        steps = [MeasuredStep(step.shape, step.seconds * longer) for step in steps]
    return Measurement(steps, speed if held else average(speeds), runs, runs - counted)


def _middle(same: Sequence[MeasuredStep]) -> MeasuredStep:
    ordered = sorted(same, key=lambda step: step.seconds)
    return MeasuredStep(ordered[len(same) // 2].shape, median(step.seconds for step in same))


def step_shape(event: StepEvent) -> StepShape:
    """What a recorded step computed."""
    decode = [item for item in event.scheduled if item.num_tokens == 1]
    chunks = tuple((item.num_tokens, item.start) for item in event.scheduled if item.num_tokens > 1)
    context = sum(item.start + 1 for item in decode)
    return StepShape(len(decode), context, chunks, sum(item.sampled for item in event.scheduled))


def steps_csv(steps: Sequence[MeasuredStep], estimates: Sequence[float]) -> str:
    """A CSV with one row for each kind of step: what it computed, measured and estimated
    seconds.
    """
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
    found = []
    for row in csv.DictReader(StringIO(text)):
        chunks = [chunk.partition("+") for chunk in row["prefill"].split()]
        prefill = tuple((int(new), int(before)) for new, _, before in chunks)
        requests, context, sampled = (
            int(row[name]) for name in ("decode_requests", "decode_context", "sampled")
        )
        # The last two are not in files of before they were told apart.
        since, idle = (int(row.get(name) or 0) for name in ("since_prefill", "after_idle"))
        shape = StepShape(requests, context, prefill, sampled, since, bool(idle))
        found.append(MeasuredStep(shape, float(row["measured"])))
    return found


def _fits(scene: Scene, engine: Engine) -> bool:
    info = engine.info
    longest = [wave.prompt + wave.output + wave.stagger * (wave.requests - 1) for wave in scene]
    needed = sum(wave.requests * (tokens + info.block_size) for wave, tokens in zip(scene, longest))
    return (
        max(longest) <= info.max_model_len
        and needed <= info.num_blocks * info.block_size
        and sum(wave.requests for wave in scene) <= engine.config.scheduler.max_num_seqs
    )


def _run(
    engine: Engine,
    random: Random,
    base: Sequence[int],
    scene: Scene,
    wait: Callable[[float], None] = time.sleep,
) -> list[MeasuredStep]:
    """Steps of a scene in their order. What taking in a request costs belongs to the step before
    which it comes.
    """
    waves = sorted(scene, key=lambda wave: wave.at)
    found: list[MeasuredStep] = []
    last = events[-1].step if (events := engine.recorder.events()) else -1
    since = 0
    while waves or engine.has_work():
        coming: list[GenerationRequest] = []
        pause = 0.0
        while waves and (waves[0].at <= len(found) or not (coming or engine.has_work())):
            pause = 0.0 if engine.has_work() else waves[0].pause
            coming += _requests(engine, random, base, waves.pop(0))
        if pause:
            wait(pause)
        began = engine.clock()
        for request in coming:
            engine.submit(request)
        outputs = engine.step()
        seconds = engine.clock() - began
        for ended in outputs:
            if ended.error is not None:
                raise ended.error
        event = engine.recorder.events(last)[-1]
        last = event.step
        shape = step_shape(event)
        since = 0 if shape.prefill else since
        found.append(
            MeasuredStep(shape._replace(since_prefill=since, after_idle=pause > 0), seconds)
        )
        since = 1 if shape.prefill else (since + 1) % (SETTLING + 1) if since else 0
    return found


def _requests(
    engine: Engine, random: Random, base: Sequence[int], wave: Wave
) -> list[GenerationRequest]:
    found = []
    for index in range(wave.requests):
        output = wave.output + index * wave.stagger
        params = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True, detokenize=False)
        own = [random.randrange(engine.info.vocab_size) for _ in range(wave.prompt - wave.known)]
        request_id = f"calibrate-{random.getrandbits(64):x}"
        prompt = [*base[: wave.known], *own]
        found.append(
            GenerationRequest(request_id=request_id, prompt_token_ids=prompt, params=params)
        )
    return found


def _kind(shape: StepShape) -> StepShape:
    """Equal for steps that take as long, as far as a measurement can tell."""
    mean = shape.decode_context // max(shape.decode_requests, 1)
    return shape._replace(decode_context=mean // SAME_CONTEXT)
