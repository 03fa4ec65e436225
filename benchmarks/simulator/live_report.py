"""The report on the live engine: simulated figures beside measured ones, in tables and plots."""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import fill
from typing import Any

from benchmarks.environment import ROOT
from benchmarks.simulator.kernels import Pair, median
from benchmarks.simulator.live_record import results_of, simulated
from benchmarks.simulator.live_runs import ATTEMPTS, QUIET
from twostroke.simulator.calibration.machine_speed import SAME
from twostroke.simulator.fleet.result import RequestResult

REPORT = ROOT / "docs" / "validation"
TARGET_MEDIAN, TARGET_TAIL = 0.10, 0.20

Figure = Callable[[Sequence[RequestResult]], float]
INTRODUCTION = """# Validation of the simulator: the live engine on a CPU

Written by `python -m benchmarks.simulator.live`; do not edit. What was measured:

{made}

`twostroke calibrate` measured short steps of each model. The simulator then ran five workloads from
those coefficients alone, and the engine ran the same requests in real time, in a process of its own
without HTTP. No request of a workload had a part in the calibration. 350m is a random checkpoint
(`benchmarks/make_checkpoint.py`). Of the live runs of each workload, at most {repeats}, the mean
counts; "live apart" is how far they differ from each other, the larger over the smaller. An error
is `|simulated / live - 1|`. Other programs took {others} of the CPU time
meanwhile.
"""
STATES = f"""A machine of two virtual cores changes its speed for seconds by itself. A probe of
known work looked before, after and every half second within a run: "slower" is the mean time of its
arithmetic over that in the calibration, "from, to" the tenth and ninetieth percentile within the
run, "memory" the same for a copy. A run of which arithmetic or memory was more than {SAME:.0%} from
the calibration's, or beside which others took more than {QUIET:.0%} of the CPU time, was made
again, up to {ATTEMPTS} times in all; if none was better, all of them count. The choice sees nothing
else. Time that the hypervisor gave to others counts as taken. Where no speed of the machine held,
the calibration is an average in which others have their part: all of {ATTEMPTS} runs are made, and
those count that were as fast on average.
"""
AWAKE = """While no request was there, the cores were kept busy with small products, as in a
calibration: a virtual core that sleeps is moved, and may share a physical one with the other for
seconds from then on. With `--let-sleep` they sleep.
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One workload on one model: live runs and the simulated one."""

    model: str
    workload: str
    live: list[list[RequestResult]]
    simulated: list[RequestResult]

    def pair(self, figure: Figure) -> Pair:
        return Pair(mean([figure(run) for run in self.live]), figure(self.simulated))

    def apart(self, figure: Figure) -> float:
        values = [figure(run) for run in self.live]
        return max(values) / min(values) - 1


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of them do not exceed."""
    return sorted(values)[ceil(share * len(values)) - 1]


def ttfts(results: Sequence[RequestResult]) -> list[float]:
    return [result.ttft for result in results]


def tpots(results: Sequence[RequestResult]) -> list[float]:
    return [result.tpot for result in results if result.output_tokens > 1]


def throughput(results: Sequence[RequestResult]) -> float:
    """Output tokens per second, until the last request has ended."""
    return sum(result.output_tokens for result in results) / max(
        result.finish for result in results
    )


# What is judged, and how it is shown; then the tails, which are shown only.
JUDGED: Mapping[str, tuple[Figure, float, str]] = {
    "TTFT, mean, ms": (lambda results: mean(ttfts(results)), 1e3, "{:.1f}"),
    "TPOT, mean, ms": (lambda results: mean(tpots(results)), 1e3, "{:.2f}"),
    "output tokens/s": (throughput, 1.0, "{:.0f}"),
}
TAILS: Mapping[str, tuple[Figure, float, str]] = {
    "TTFT, median, ms": (lambda results: percentile(ttfts(results), 0.5), 1e3, "{:.1f}"),
    "TTFT, P95, ms": (lambda results: percentile(ttfts(results), 0.95), 1e3, "{:.1f}"),
    "TPOT, P95, ms": (lambda results: percentile(tpots(results), 0.95), 1e3, "{:.2f}"),
}


def write(kept: Mapping[str, Any]) -> Path:
    """Simulate what was measured and write the report. Returns its path."""
    cases = list(compare(kept))
    plots = [draw(cases, "TTFT", ttfts), draw(cases, "TPOT", tpots)]
    path = REPORT / "live.md"
    path.write_text(report(cases, kept, plots), encoding="utf-8")
    return path


def compare(kept: Mapping[str, Any]) -> list[Case]:
    with TemporaryDirectory() as folder:
        return [
            Case(
                model,
                name,
                [results_of(run) for run in runs],
                simulated(measured, name, Path(folder)),
            )
            for model, measured in kept["models"].items()
            for name, runs in measured["workloads"].items()
        ]


def report(cases: Sequence[Case], kept: Mapping[str, Any], plots: Sequence[str]) -> str:
    repeats = max(len(case.live) for case in cases)
    pairs = [case.pair(figure) for case in cases for figure, _, _ in JUDGED.values()]
    cpu_shares = [
        (model, measured.get("others_cpu_share")) for model, measured in kept["models"].items()
    ]
    others_share = (
        ", ".join(f"{share:.0%} ({model})" for model, share in cpu_shares if share is not None)
        or "an unknown share"
    )
    made = "\n".join(
        fill(f"- {model}: {_made(measured)}", 99, subsequent_indent="  ", break_on_hyphens=False)
        for model, measured in kept["models"].items()
    )
    introduction = INTRODUCTION.format(made=made, repeats=repeats, others=others_share)
    lines = [introduction, "## Results", ""]
    lines += [
        "| what | figures | median error | target | | P95 error | target | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines.append(_judged("TTFT, TPOT and throughput of all workloads", pairs))
    for title, (figure, _, _) in JUDGED.items():
        lines.append(_judged(title.removesuffix(", ms"), [case.pair(figure) for case in cases]))
    lines += ["", "P95 of few figures is the largest of them.", ""]
    lines += [
        *_table("By workload", cases, JUDGED),
        *_table("Tails, without a target", cases, TAILS),
    ]
    lines += [
        "## Single requests",
        "",
        "| model | workload | requests | TTFT error | TPOT error |",
        "|---|---|---|---|---|",
    ]
    for case in cases:
        errors = (median(_request_pairs(case, values)) for values in (ttfts, tpots))
        shown = " | ".join(f"{error:.1%}" for error in errors)
        lines.append(f"| {case.model} | {case.workload} | {len(case.simulated)} | {shown} |")
    lines += [
        "",
        "Medians over the requests, each against its own double, the mean of its live runs.",
        "",
    ]
    lines += [*_fits(kept), *_states(kept), "## Plots", "", *plots]
    return "\n".join(lines) + "\n"


def _judged(what: str, pairs: Sequence[Pair]) -> str:
    middle, tail = median(pairs), percentile([pair.error for pair in pairs], 0.95)
    verdicts = [
        "met" if middle <= TARGET_MEDIAN else "**missed**",
        "met" if tail <= TARGET_TAIL else "**missed**",
    ]
    first = f"{middle:.1%} | {TARGET_MEDIAN:.0%} | {verdicts[0]}"
    return f"| {what} | {len(pairs)} | {first} | {tail:.1%} | {TARGET_TAIL:.0%} | {verdicts[1]} |"


def _table(
    title: str, cases: Sequence[Case], figures: Mapping[str, tuple[Figure, float, str]]
) -> list[str]:
    lines = [
        f"## {title}",
        "",
        "| model | workload | what | live | simulated | error | live apart |",
    ]
    lines.append("|---|---|---|---|---|---|---|")
    for case in cases:
        for name, (figure, unit, form) in figures.items():
            pair = case.pair(figure)
            both = " | ".join(
                form.format(unit * value) for value in (pair.measured, pair.estimated)
            )
            signed = f"{pair.estimated / pair.measured - 1:+.1%}"
            apart = f"{case.apart(figure):.1%}"
            lines.append(
                f"| {case.model} | {case.workload} | {name} | {both} | {signed} | {apart} |"
            )
    return [*lines, ""]


def _fits(kept: Mapping[str, Any]) -> list[str]:
    """How well each calibration describes the steps that it was fitted to, by what they do."""
    lines = [
        "## The calibrations themselves",
        "",
        "| model | steps that | kinds | median error | P95 error |",
    ]
    lines.append("|---|---|---|---|---|")
    for model, measured in kept["models"].items():
        groups: dict[str, list[float]] = {}
        for row in csv.DictReader(StringIO(measured["steps"])):
            if row["prefill"]:
                group = "prefill beside decoding" if int(row["decode_requests"]) else "prefill"
                group += " after a pause" if int(row.get("after_idle") or 0) else ""
            else:
                group = (
                    "decode just after prefill" if int(row.get("since_prefill") or 0) else "decode"
                )
            groups.setdefault(group, []).append(
                abs(float(row["estimated"]) / float(row["measured"]) - 1)
            )
        for group, errors in sorted(groups.items()):
            figures = f"{percentile(errors, 0.5):.1%} | {percentile(errors, 0.95):.1%}"
            lines.append(f"| {model} | {group} | {len(errors)} | {figures} |")
    return [*lines, "", "These are fitted, not predicted.", ""]


def _states(kept: Mapping[str, Any]) -> list[str]:
    """What the probe saw in each run that counts."""
    lines = ["## The machine meanwhile", "", STATES]
    if not any(measured.get("let_sleep", True) for measured in kept["models"].values()):
        lines.append(AWAKE)
    lines += [
        "| model | workload | runs made | slower | from, to | memory | others |",
        "|---|---|---|---|---|---|---|",
    ]
    for model, measured in kept["models"].items():
        for name, states in measured.get("states", {}).items():
            for state in states:
                ends = [percentile(state["looks"], share) for share in (0.1, 0.9)]
                shown = (
                    f"{state['slower']:.2f} | {ends[0]:.2f}, {ends[1]:.2f} | {state['memory']:.2f}"
                )
                disturbed = "" if state["disturbed"] <= 1 else ", this one disturbed"
                again = f"{state['attempts']}{disturbed}"
                lines.append(f"| {model} | {name} | {again} | {shown} | {state['others']:.1%} |")
    return [*lines, ""]


def _request_pairs(
    case: Case, values: Callable[[Sequence[RequestResult]], list[float]]
) -> list[Pair]:
    """Each request beside its double: the mean of its live runs."""
    live_values = map(mean, zip(*map(values, case.live)))
    return [Pair(*both) for both in zip(live_values, values(case.simulated)) if both[0] > 0]


def _made(measured: Mapping[str, Any]) -> str:
    """When and how a model was measured."""
    speed = tomllib.loads(measured["efficiencies"]).get("speed", {})
    held = (
        ""
        if speed.get("held", True)
        else "; no speed of the machine held, so the calibration is an average"
    )
    refitted = (
        f"; coefficients fitted again to the same steps: {measured['refitted']}"
        if "refitted" in measured
        else ""
    )
    return f"{measured['made']}{held}{refitted}"


def draw(
    cases: Sequence[Case], name: str, values: Callable[[Sequence[RequestResult]], list[float]]
) -> str:
    """A scatter plot of all requests; returns the line that shows it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 4.6), dpi=90)
    every: list[float] = []
    for number, case in enumerate(cases):
        pairs = _request_pairs(case, values)
        style = "o^"[[each.model for each in cases].index(case.model) > 0]
        axes.plot(
            [pair.measured for pair in pairs],
            [pair.estimated for pair in pairs],
            style,
            color=f"C{number % 5}",
            ms=3,
            alpha=0.6,
            mew=0,
            label=f"{case.model}, {case.workload}",
        )
        every += [pair.measured for pair in pairs]
    ends = [min(every), max(every)]
    axes.plot(ends, ends, "k-", lw=0.7)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="live, s",
        ylabel="simulated, s",
        title=f"{name}, every request",
    )
    axes.legend(fontsize=6, markerscale=1.5, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.tight_layout()
    file = f"live-{name.lower()}.png"
    figure.savefig(REPORT / file)
    pyplot.close(figure)
    return f"![{name} of single requests: simulated against live seconds]({file})"
