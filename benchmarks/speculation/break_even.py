"""From which acceptance on speculation pays: measured, and by the formula.

    python -m benchmarks.speculation.break_even [MODEL]

``synthetic`` acceptance draws how many drafts are right, so any rate can be had on any weights; its
drafts cost nothing, as quoted ones. One request, a fixed depth ``k``, rates from 0 to 1, in turn
with no drafts. A draft is right with probability ``a``, given that those before it were, so a pass
gives E(a, k) = 1 + a + ... + a^k tokens (Leviathan et al. 2023) in t(1 + k), the time of a pass of
1 + k rows. That is measured by itself, as a pass of 1 + k requests without drafts. So drafts pay
where E(a, k) > t(1 + k) / t(1): the break-even. Making them, in d(k), would add d(k) / t(1).

Writes break_even_MODEL.json, .md and .png.
"""

from __future__ import annotations

import random
import shlex
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import cyclopts

from benchmarks import make_checkpoint
from benchmarks.environment import OtherPrograms, environment, environment_text, write_record
from benchmarks.speculation.rounds import Round, engines, run_round
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.llm_engine import LLMEngine
from twostroke.runtime.hooks.drafts import DraftsAcceptedAtARate
from twostroke.runtime.torch_executor import TorchExecutor
from twostroke.scheduling.speculation import FixedDepth
from twostroke.spec_decode.synthetic import SyntheticAcceptance

RESULTS = Path(__file__).parents[1] / "results"
SYNTHETIC = {"speculative_config": {"method": "synthetic", "adaptive": False}}
PROMPT = 64
TENTHS = tuple(number / 10 for number in range(11))


@dataclass(frozen=True, slots=True)
class Curve:
    """One depth.

    Attributes:
        cost: t(1 + k) / t(1).
        rates: Of acceptance, rising; ``speedups``: measured at each, TPOT without over with.
        measured: Acceptance at which both are equal; ``None`` if they are at none of the rates.
        formula: The same by the formula; ``None`` if no rate is enough.
    """

    depth: int
    cost: float
    rates: list[float]
    speedups: list[float]
    measured: float | None
    formula: float | None


def expected_tokens(rate: float, depth: int) -> float:
    """Of a pass: 1 + a + ... + a^k."""
    return sum(rate**power for power in range(depth + 1))


def break_even_of(cost: float, depth: int) -> float | None:
    """The rate at which a pass that takes ``cost`` times as long gives as many times the tokens."""
    if cost > depth + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if expected_tokens(middle, depth) > cost else (middle, high)
    return high


def crossing(rates: Sequence[float], speedups: Sequence[float]) -> float | None:
    """Where the measured line first reaches 1, between two rates."""
    if speedups[0] >= 1.0:
        return rates[0]
    pairs = list(zip(rates, speedups))
    for (left, below), (right, above) in pairwise(pairs):
        if above >= 1.0:
            return left + (right - left) * (1.0 - below) / (above - below)
    return None


def measure_curves(
    engine: LLMEngine,
    depths: Sequence[int],
    rates: Sequence[float],
    rounds: int,
    output_len: int,
    say: Callable[[str], None],
) -> list[Curve]:
    """Curves of an engine with ``SYNTHETIC`` speculation; every round measures all, in turn."""
    speedups: dict[tuple[int, float], list[float]] = {}
    costs: dict[int, list[float]] = {depth: [] for depth in depths}
    for number in range(rounds + 1):
        plain = _run(engine, number, 1, output_len if number else 8)
        for depth in depths:
            if number:
                wide = _run(engine, number, 1 + depth, output_len)
                costs[depth].append(wide.tpot / plain.tpot)
            for rate in rates if number else (0.5,):
                if number:  # in turn: what the machine does meanwhile meets both sides
                    plain = _run(engine, number, 1, output_len)
                with_drafts = _run(engine, number, 1, output_len, depth, rate)
                if number:
                    speedup = plain.tpot / with_drafts.tpot
                    speedups.setdefault((depth, rate), []).append(speedup)
        say(f"break-even: round {number} of {rounds}")
    curves = []
    for depth in depths:
        medians = [statistics.median(speedups[depth, rate]) for rate in rates]
        cost = statistics.median(costs[depth])
        found = crossing(rates, medians)
        formula = break_even_of(cost, depth)
        curves.append(Curve(depth, cost, list(rates), medians, found, formula))
    return curves


def _run(
    engine: LLMEngine,
    number: int,
    count: int,
    output_len: int,
    depth: int = 0,
    rate: float = 0.0,
) -> Round:
    executor = engine.executor
    assert isinstance(executor, TorchExecutor)
    rates = [hook for hook in executor.hooks if isinstance(hook, DraftsAcceptedAtARate)]
    for hook in rates:
        executor.hooks.remove(hook)
    executor.hooks.append(DraftsAcceptedAtARate(SyntheticAcceptance(rate, seed=number)))
    engine.scheduler.depth = FixedDepth(depth)
    draw = random.Random(f"{number} {count}")
    prompts = [draw.choices(range(engine.info.vocab_size), k=PROMPT) for _ in range(count)]
    params = SamplingParams(
        temperature=0, max_tokens=output_len, ignore_eos=True, detokenize=False, seed=number
    )
    return run_round(engine, prompts, [params] * count)


def shown(rate: float | None) -> str:
    """A rate of acceptance in words."""
    return "never" if rate is None else f"{rate:.0%}"


def main(
    model: str = "350m",
    *,
    depths: tuple[int, ...] = (1, 2, 4, 8),
    rates: tuple[float, ...] = TENTHS,
    rounds: int = 3,
    output_len: int = 64,
    out: Path = RESULTS,
) -> None:
    """Measure, record and draw.

    Args:
        model: `350m` or `10m`, a random checkpoint made for the run; or a folder, or `pilot`.
        depths: How many tokens are guessed.
        rounds: How often each is measured; medians count.
        output_len: Tokens of an answer.
        out: Folder for the record.
    """

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    other_programs = OtherPrograms()
    with ExitStack() as stack:
        folder = model
        if model in make_checkpoint.SIZES:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="twostroke-even-"))
            with redirect_stdout(sys.stderr):
                make_checkpoint.main(model, folder)
        loaded = stack.enter_context(
            engines(folder, {"one": SYNTHETIC}, kv_cache_memory=2**28, max_model_len=1024)
        )
        curves = measure_curves(loaded["one"], depths, rates, rounds, output_len, say)
    where = environment(
        shlex.join(["python", "-m", "benchmarks.speculation.break_even", *sys.argv[1:]]),
        other_programs.share(),
    )
    _write(curves, Path(model).name, rounds, where, out)


def _write(
    curves: Sequence[Curve], model: str, rounds: int, where: dict[str, Any], out: Path
) -> None:
    rates = curves[0].rates
    head = " | ".join(f"{rate:.0%}" for rate in rates)
    rows = [
        f"| depth | t(1+k) / t(1) | break-even, measured | by the formula | {head} |",
        "|---:|---:|---:|---:|" + "---:|" * len(rates),
    ]
    for curve in curves:
        speedups = " | ".join(f"{speedup:.2f}x" for speedup in curve.speedups)
        rows.append(
            f"| {curve.depth} | {curve.cost:.2f} | {shown(curve.measured)} |"
            f" {shown(curve.formula)} | {speedups} |"
        )
    text = (
        f"{environment_text(where)}- model {model}, one request; medians of {rounds} rounds in"
        " turn; drafts cost nothing to make\n- columns on the right: speed-up by acceptance\n\n"
        + "\n".join(rows)
    )
    path = out / f"break_even_{model}"
    record = {"environment": where, "curves": [asdict(curve) for curve in curves]}
    write_record(path, "From which acceptance on speculation pays", text, record)
    _draw(curves, model, path.with_suffix(".png"))
    print(text)


def _draw(curves: Sequence[Curve], model: str, path: Path) -> None:
    """Speed-up over acceptance, a colour for each depth: points measured, lines by the formula."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(5.6, 4.0))
    for number, curve in enumerate(curves):
        fine = [step / 100 for step in range(101)]
        line = [expected_tokens(rate, curve.depth) / curve.cost for rate in fine]
        axis.plot(fine, line, color=f"C{number}", label=f"depth {curve.depth}")
        axis.plot(curve.rates, curve.speedups, "o", color=f"C{number}", markersize=4)
    axis.axhline(1.0, color="gray", linewidth=0.8)
    axis.axvline(0.5, color="gray", linewidth=0.8, linestyle=":")
    axis.set_xlabel("acceptance of a draft, if those before it were right")
    axis.set_ylabel("TPOT without / with")
    axis.set_title(f"{model}: measured (points) and by the formula (lines)", fontsize=9)
    axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


if __name__ == "__main__":
    cyclopts.run(main)
