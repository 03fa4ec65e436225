"""Results as tables of Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill

from benchmarks.simulator import kernels
from benchmarks.simulator.kernels import Pair, Result


def figures_table(results: Sequence[Result]) -> list[str]:
    """A line for each result, and under the table what each kept out."""
    splits = list(dict.fromkeys(result.split for result in results))
    lines = [
        "| what | kept out | rows | mean | median | P90 | target | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        if not result.pairs:
            continue
        goal, verdict = "", ""
        if result.target is not None:
            goal = f"{result.statistic} {result.target:.0%}"
            verdict = "met" if result.value <= result.target else "**missed**"
        split = splits.index(result.split) + 1
        lines.append(f"| {result.name} | {split} | {_figures(result.pairs)} | {goal} | {verdict} |")
    kept_out = (
        fill(f"{number}. {each}", 100, subsequent_indent="   ")
        for number, each in enumerate(splits, 1)
    )
    return [*lines, "", "Kept out:", "", *kept_out]


def by_model(results: Sequence[Result]) -> list[str]:
    """The parts of each result."""
    lines = ["## By model", ""]
    lines += ["The last column is the median of the ratio: above 1, the estimate is too slow.", ""]
    for result in results:
        if result.parts:
            lines += [f"### {result.name}", ""]
            lines += ["| model | rows | mean | median | P90 | estimated / measured |"]
            lines += ["|---|---|---|---|---|---|"]
            lines += [
                f"| {name} | {_figures(pairs)} | {_bias(pairs):.2f} |"
                for name, pairs in result.parts
            ]
            lines.append("")
    return lines


def _figures(pairs: Sequence[Pair]) -> str:
    errors = sorted(pair.error for pair in pairs)
    tail = errors[len(errors) * 9 // 10]
    return f"{len(pairs)} | {kernels.mean(pairs):.1%} | {kernels.median(pairs):.1%} | {tail:.1%}"


def _bias(pairs: Sequence[Pair]) -> float:
    ratios = sorted(pair.estimated / pair.measured for pair in pairs)
    return ratios[len(ratios) // 2]
