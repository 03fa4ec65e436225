"""The traffic that is planned for: how much comes, and statistics of its lengths.

Lengths are those of the workload that is simulated, so that formulas and simulations are of the
same requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import fmean

from twostroke.planner.options import TrafficOptions
from twostroke.simulator.workloads.base import RequestSpec
from twostroke.simulator.workloads.make import make_workload
from twostroke.simulator.workloads.options import SimulatedWorkloadOptions, check_spread
from twostroke.workloads.lengths import LognormalLength

# Requests whose lengths are summed up.
SAMPLE = 4000
# Requests a second of a trace that has no time between its requests.
ONE_A_SECOND = 1.0
# Where nothing else is given: the 95th percentile over the mean; the first that the model takes.
USUAL_TAILS = (2.0, 1.5, 1.2, 1.0)


@dataclass(frozen=True, slots=True)
class Lengths:
    """Statistics of prompts and answers, in tokens.

    Attributes:
        cached: Tokens that all prompts share.
        fresh: Tokens of a prompt beyond them, on average.
        fresh_variance: Variance of them.
        context: Tokens that a decoding request attends to, on average over its steps.
        context_variance: Variance of that between requests.
        per_output: Mean of 1 / tokens of an answer; ``per_output_square``: of its square.
        longest: Tokens of the longest request.
        prompts: All prompts' lengths, ascending. ``outputs`` likewise.
    """

    prompt: float
    cached: int
    fresh: float
    fresh_variance: float
    output: float
    output_variance: float
    per_output: float
    per_output_square: float
    context: float
    context_variance: float
    longest: int
    prompts: tuple[int, ...]
    outputs: tuple[int, ...]

    def prompt_at(self, percent: float) -> int:
        return self.prompts[min(int(percent / 100 * len(self.prompts)), len(self.prompts) - 1)]

    def output_at(self, percent: float) -> int:
        return self.outputs[min(int(percent / 100 * len(self.outputs)), len(self.outputs) - 1)]


@dataclass(frozen=True, slots=True)
class Traffic:
    """What comes to all replicas together, at the busiest time.

    Attributes:
        users: How many, in a closed loop; ``None``: requests come at a rate.
        rate: Requests per second; 0 with users.
        workload: Its kind and lengths; rate and number of requests are set where it is simulated.
        notes: Sentences on what was assumed.
    """

    users: int | None
    think_time: float
    rate: float
    lengths: Lengths
    workload: SimulatedWorkloadOptions
    notes: tuple[str, ...] = ()

    def times(self, factor: float) -> Traffic:
        """Traffic of the same kind, ``factor`` times as much."""
        users = None if self.users is None else max(1, ceil(self.users * factor - 1e-9))
        return replace(self, users=users, rate=self.rate * factor)

    def describe(self) -> str:
        """One line."""
        lengths = self.lengths
        come = (
            f"{self.rate:.4g} requests/s"
            if self.users is None
            else f"{self.users:,} users, {self.think_time:g} s between answer and next request"
            if self.think_time
            else f"{self.users:,} users: as many requests under way at all times"
        )
        shared = f", {lengths.cached:,} of them shared" if lengths.cached else ""
        return (
            f"{come}; prompts of {lengths.prompt:,.0f} tokens (P95 {lengths.prompt_at(95):,}"
            f"{shared}), answers of {lengths.output:,.0f} (P95 {lengths.output_at(95):,})"
        )


def read_traffic(options: TrafficOptions, longest: int = 2**24) -> Traffic:
    """The traffic of these options, growth and peak counted.

    Args:
        longest: Most tokens of one request: a tail that is guessed is short enough for it.

    Raises:
        ConfigError: Lengths cannot be as given, or a trace cannot be read.
    """
    workload, notes = _workload(options, longest)
    made = make_workload(workload)
    if made.note is not None:
        notes = (*notes, made.note)
    specs = list(made.workload.arrivals())
    rate = options.rate or 0.0
    if options.users is None and options.rate is None:
        seconds = specs[-1].arrival - specs[0].arrival
        rate = (len(specs) - 1) / seconds if seconds else ONE_A_SECOND
        if not seconds:
            guess = f"--rate {ONE_A_SECOND:g}, since all of the trace comes at one moment"
            notes = (*notes, f"guessed: {guess}")
    traffic = Traffic(
        options.users, options.think_time, rate, sum_up(specs, options.prefix), workload, notes
    )
    factor = options.peak * (1 + options.growth)
    if factor == 1:
        return traffic
    note = f"all of it {factor:g} times as much as now: --peak {options.peak:g}"
    if options.growth:
        note += f", --growth {options.growth:g}"
    return replace(traffic.times(factor), notes=(*notes, note))


def _workload(
    options: TrafficOptions, longest: int
) -> tuple[SimulatedWorkloadOptions, tuple[str, ...]]:
    if options.trace_path is not None:
        workload = SimulatedWorkloadOptions(workload="trace", trace_path=options.trace_path)
        return workload, (f"lengths and arrivals are those of {options.trace_path}",)
    if options.lengths != "lognormal":
        workload = SimulatedWorkloadOptions(workload=options.lengths, num_requests=SAMPLE)
        return workload, (f"lengths are distributed as those of {options.lengths}",)
    assumed = []
    tails = {}
    for name in ("input", "output"):
        mean: int = getattr(options, name)
        tail: int | None = getattr(options, f"{name}_p95")
        if tail is None:
            tail = _guessed_tail(options, longest, mean)
            assumed.append(f"--{name}-p95 {tail}")
        check_spread(name, mean, tail)
        # What is left of a tail once the shared part is taken off.
        tails[name] = tail - (options.prefix if name == "input" else 0)
    own = options.input - options.prefix
    workload = SimulatedWorkloadOptions(
        workload="random",
        input_len=own,
        input_p95=max(own, min(tails["input"], int(3.8 * own))),
        output_len=options.output,
        output_p95=tails["output"],
        prefix_len=options.prefix,
        num_requests=SAMPLE,
    )
    note = f"guessed, as nothing was given: {', '.join(assumed)}"
    return workload, (note,) if assumed else ()


def _guessed_tail(options: TrafficOptions, longest: int, mean: int) -> int:
    """A tail with which the longest prompt and the longest answer fit together, if one does."""
    for tail in USUAL_TAILS:
        both = (
            LognormalLength.with_p95(each, p95 or tail * each).longest
            for each, p95 in (
                (options.input, options.input_p95),
                (options.output, options.output_p95),
            )
        )
        if sum(both) <= longest:
            return round(tail * mean)
    return mean


def sum_up(specs: Sequence[RequestSpec], cached: int) -> Lengths:
    """Statistics of these requests, of which all begin with ``cached`` equal tokens."""
    fresh = [spec.prompt_tokens - cached for spec in specs]
    outputs = [spec.output_tokens for spec in specs]
    steps = sum(outputs)
    contexts = [spec.prompt_tokens + spec.output_tokens / 2 for spec in specs]
    context = sum(each * output for each, output in zip(contexts, outputs)) / steps
    spread = sum(
        output * ((each - context) ** 2 + output**2 / 12) for each, output in zip(contexts, outputs)
    )
    return Lengths(
        prompt=fmean(spec.prompt_tokens for spec in specs),
        cached=cached,
        fresh=fmean(fresh),
        fresh_variance=_variance(fresh),
        output=fmean(outputs),
        output_variance=_variance(outputs),
        per_output=fmean(1 / output for output in outputs),
        per_output_square=fmean(1 / output**2 for output in outputs),
        context=context,
        context_variance=spread / steps,
        longest=max(spec.total_tokens for spec in specs),
        prompts=tuple(sorted(spec.prompt_tokens for spec in specs)),
        outputs=tuple(sorted(outputs)),
    )


def answers_alone(lengths: Lengths) -> Lengths:
    """What is left where prompts are computed elsewhere: of each its last token."""
    return replace(lengths, cached=round(lengths.prompt) - 1, fresh=1.0, fresh_variance=0.0)


def _variance(values: Sequence[int]) -> float:
    mean = fmean(values)
    return fmean((value - mean) ** 2 for value in values)
