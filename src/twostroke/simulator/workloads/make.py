"""From options to a workload: a pure function of the options, and of a trace's file."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

import msgspec

from twostroke.simulator.workloads.arrivals import ClosedLoop, burst_times, gamma_times, stretch
from twostroke.simulator.workloads.base import OpenLoop, RequestSpec, Workload
from twostroke.simulator.workloads.options import SimulatedWorkloadOptions
from twostroke.simulator.workloads.sessions import SYSTEM_PROMPT, Sessions, SessionTurn
from twostroke.simulator.workloads.traces import find_trace, missing_trace, read_specs
from twostroke.workloads.lengths import SHAREGPT_INPUT, SHAREGPT_OUTPUT, LognormalLength

DEFAULT_REQUESTS = 1000
Draw = Callable[[Random], int]


@dataclass(frozen=True, slots=True)
class TraceStatistics:
    """Stands in for a trace whose file is missing: lengths, and requests per second."""

    prompt: LognormalLength
    output: LognormalLength
    rate: float


# Mean, standard deviation of the logarithm and largest of the lengths in the Azure traces of 2023
# (Patel et al., Splitwise, ISCA 2024; https://github.com/Azure/AzurePublicDataset, CC-BY), and
# their mean rates.
AZURE_STATISTICS = {
    "azure-conv": TraceStatistics(
        LognormalLength(1155, 0.985, 14050), LognormalLength(211, 0.859, 1000), 5.53
    ),
    "azure-code": TraceStatistics(
        LognormalLength(2048, 1.36, 7437), LognormalLength(28, 0.847, 1899), 2.57
    ),
}


@dataclass(frozen=True, slots=True)
class MadeWorkload:
    """A workload; ``note`` is a sentence on how it differs from what its name says."""

    workload: Workload
    note: str | None = None


def make_workload(options: SimulatedWorkloadOptions) -> MadeWorkload:
    """Make the workload anew; each simulation needs its own.

    Raises:
        ConfigError: A trace cannot be found or read.
    """
    if options.is_trace:
        return _from_trace(options)
    if options.workload == "sessions":
        return MadeWorkload(_sessions(options))
    count = options.num_requests or DEFAULT_REQUESTS
    if options.workload == "sharegpt-like":
        specs = _drawn(options, count, SHAREGPT_INPUT.draw, SHAREGPT_OUTPUT.draw)
    else:
        specs = _drawn(
            options,
            count,
            _around(options, options.input_len, options.input_p95),
            _around(options, options.output_len, options.output_p95),
        )
    return MadeWorkload(_timed(options, specs, options.rate))


def _from_trace(options: SimulatedWorkloadOptions) -> MadeWorkload:
    path = find_trace(options.workload, options.trace_path)
    if path is not None:
        specs = read_specs(path, options.num_requests)
        return MadeWorkload(_timed(options, specs, options.rate))
    statistics = AZURE_STATISTICS.get(options.workload)
    if statistics is None:
        raise missing_trace(options.workload)
    count = options.num_requests or DEFAULT_REQUESTS
    specs = _drawn(options, count, statistics.prompt.draw, statistics.output.draw)
    note = (
        f"no file of {options.workload} at hand: lengths are drawn from distributions fitted to it,"
        " and arrivals are Poisson (--trace-path takes the file)"
    )
    arrivals = "poisson" if options.arrivals == "recorded" else options.arrivals
    rate = None if arrivals == "closed" else options.rate or statistics.rate
    return MadeWorkload(_timed(replace(options, arrivals=arrivals, rate=rate), specs, rate), note)


def _timed(
    options: SimulatedWorkloadOptions, specs: Sequence[RequestSpec], rate: float | None
) -> Workload:
    """``specs`` with the arrivals, priorities and tenants of the options."""
    if options.priorities > 1 or options.tenants > 1:
        drawn = zip(specs, _priorities(options, len(specs)), _tenants(options, len(specs)))
        specs = [
            msgspec.structs.replace(spec, priority=priority, tenant=tenant)
            for spec, priority, tenant in drawn
        ]
    if options.arrivals == "closed":
        return ClosedLoop(specs, options.concurrency, options.think_time, options.seed)
    recorded = [spec.arrival for spec in specs]
    is_recording = recorded[-1] > 0
    if (
        options.arrivals == "recorded"
        or (options.arrivals == "auto" and is_recording)
        or rate is None
    ):
        times = recorded if rate is None else stretch(recorded, rate)
    elif options.arrivals == "burst":
        times = burst_times(len(specs), rate, options.burst_size)
    else:
        shape = options.burstiness if options.arrivals in ("gamma", "auto") else 1.0
        times = gamma_times(len(specs), rate, shape, Random(f"{options.seed} gaps"))
    return OpenLoop(
        [msgspec.structs.replace(spec, arrival=time) for spec, time in zip(specs, times)]
    )


def _drawn(
    options: SimulatedWorkloadOptions, count: int, prompt: Draw, output: Draw
) -> list[RequestSpec]:
    # A separate generator, so that another rate leaves the lengths as they are.
    random = Random(f"{options.seed} lengths")
    prefix = options.prefix_len
    segments = ((SYSTEM_PROMPT, prefix),) if prefix else ()
    return [
        RequestSpec(number, 0.0, prefix + prompt(random), output(random), segments)
        for number in range(count)
    ]


def _around(options: SimulatedWorkloadOptions, length: int, p95: int | None) -> Draw:
    if p95 is not None:
        return LognormalLength.with_p95(length, p95).draw
    ratio = options.range_ratio
    shortest = max(math.floor(length * (1 - ratio)), 1)
    longest = math.ceil(length * (1 + ratio))
    return lambda random: random.randint(shortest, longest)


def _sessions(options: SimulatedWorkloadOptions) -> Sessions:
    """``rate`` counts requests, so sessions begin at a rate of ``rate / turns``."""
    random = Random(f"{options.seed} lengths")
    question = _around(options, options.input_len, options.input_p95)
    answer = _around(options, options.output_len, options.output_p95)
    count = -(-(options.num_requests or DEFAULT_REQUESTS) // options.turns)
    turns = [
        [SessionTurn(question(random), answer(random)) for _ in range(options.turns)]
        for _ in range(count)
    ]
    if options.rate is None:
        starts = [0.0] * count
    elif options.arrivals == "burst":
        starts = burst_times(count, options.rate / options.turns, options.burst_size)
    else:
        shape = options.burstiness if options.arrivals in ("gamma", "auto") else 1.0
        starts = gamma_times(
            count, options.rate / options.turns, shape, Random(f"{options.seed} gaps")
        )
    return Sessions(
        turns,
        starts,
        options.prefix_len,
        options.think_time,
        options.seed,
        _priorities(options, count),
        _tenants(options, count),
    )


def _tenants(options: SimulatedWorkloadOptions, count: int) -> list[int]:
    random = Random(f"{options.seed} tenants")
    return random.choices(
        range(options.tenants), [1 / (1 + tenant) for tenant in range(options.tenants)], k=count
    )


def _priorities(options: SimulatedWorkloadOptions, count: int) -> list[int]:
    random = Random(f"{options.seed} priorities")
    return [random.randrange(options.priorities) for _ in range(count)]
