"""Judges kernels of the cost model on measurements; writes docs/validation.

    python -m benchmarks.simulator.validate [--live pilot --live /path/to/350m] [--speed [FOLDER]]

Single-threaded, some minutes. Skips, and says so, where the public measurements are absent.
``--live`` measures the engine anew (see ``benchmarks/simulator/live.py``: ten minutes of a quiet
machine), ``--speed`` the simulator itself (``speed_report.py``: minutes of a quiet core); without
them, those reports are written again from the last measurement.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.environment import ROOT
from benchmarks.simulator import judge, live, speed_report
from benchmarks.simulator.data import DATA, DEVICES, present
from benchmarks.simulator.environment import environment
from benchmarks.simulator.kernels import Result
from benchmarks.simulator.tables import by_model, figures_table

REPORT = ROOT / "docs" / "validation"
INTRODUCTION = """# Validation of the cost model: kernels

Written by `python -m benchmarks.simulator.validate`; do not edit.
{environment}.
Few bits, experts, latent attention: [products.md](products.md). Whole servers:
[servers.md](servers.md). The live engine: [live.md](live.md).

Measured times are public. Kernels of A100 80 GB, H100 SXM, L40S and B200 are as NVIDIA's AI
Configurator project recorded them (Apache-2.0; vLLM's kernels), products on H100 from Microsoft's
Vidur (MIT). None of it is in this repository. An error is `|estimated / measured - 1|`. Every
number below is for rows that the coefficients or tables behind it had no part in; the column "kept
out" has the number of the split, listed under the table.
"""
NOTES = """## How to read it

- **Coefficients** are eight numbers for each device and number format (products, two more for the
  inputs of those in few bits), six for attention, ten for all-reduce:
  `simulator/cost/efficiency_files`. **Tables** interpolate in measurements
  (`simulator/cost/kernel_tables.py`).
- Products are those with at least 512 outputs and inputs. A model's are its query-key-value,
  output, gate-up and down projections on 1, 2, 4 and 8 devices, as far as the measured grid has
  them. Keeping a model out removes every product in which its hidden size occurs, so also those of
  other models of that width.
- L40S has a cache of 96 MB, in which the benchmark's repetitions leave weights and short contexts.
  Such rows are left out there (2.5 times the weights, or the keys and values, below the cache's
  size): no server finds them there.
- One all-reduce of A100 (4 KiB on 8 devices: 14.8 us between neighbours of 5.6 and 6.3) is an
  outlier of the measurement. It is kept; tables take no message to need longer than a larger one,
  so its neighbours do not suffer.
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--live", action="append", default=[], metavar="MODEL", help="measure the live engine anew"
    )
    parser.add_argument(
        "--speed",
        nargs="?",
        type=Path,
        const=speed_report.RESULTS,
        metavar="FOLDER",
        help=(
            "measure the simulator's own speed anew, and keep it here; by default in"
            " benchmarks/results"
        ),
    )
    options = parser.parse_args()
    if present():
        print(write_kernels())
    else:
        print(f"skipped: no measurements at {DATA}", file=sys.stderr)
    for path in (live.update(options.live), speed_report.update(options.speed, environment())):
        if path is not None:
            print(path)
    return 0


def write_kernels() -> Path:
    """Judge kernels, write their report, return its path."""
    REPORT.mkdir(parents=True, exist_ok=True)
    results = []
    for result in judged():
        print(
            f"{result.name}, {result.split}: {result.statistic} {result.value:.1%}", file=sys.stderr
        )
        results.append(result)
    plots = draw(results)
    (REPORT / "kernels.md").write_text(report(results, plots), encoding="utf-8")
    return REPORT / "kernels.md"


def judged() -> Iterator[Result]:
    for device in judge.JUDGED:
        yield from judge.gemm(device)
    yield from judge.gemm("h100-sxm", "fp8")
    for device in judge.JUDGED:
        for operation in ("generation", "context"):
            yield from judge.attention_kernels(device, operation)
    for device in DEVICES:
        yield from judge.all_reduce(device)
    yield from judge.data_sheet_alone()
    yield from judge.other_stack()


def report(results: Sequence[Result], plots: dict[str, str]) -> str:
    lines = [INTRODUCTION.format(environment=environment()), "## Results", ""]
    lines += [*figures_table(results), "", NOTES, *by_model(results)]
    lines += ["## Plots", "", "Estimated against measured seconds.", ""]
    lines += [f"![{name}]({file})" for name, file in plots.items()]
    return "\n".join(lines) + "\n"


def draw(results: Sequence[Result]) -> dict[str, str]:
    """One scatter plot for each group of results; returns caption and file name."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(_group(result), []).append(result)
    files = {}
    for group, members in groups.items():
        figure, axes = pyplot.subplots(figsize=(4.6, 4.2), dpi=90)
        for result in members:
            pairs = result.pairs[:: max(1, len(result.pairs) // 600)]
            label = result.name.split(", ", 1)[1]
            axes.plot(
                [p.measured for p in pairs],
                [p.estimated for p in pairs],
                ".",
                ms=2,
                alpha=0.5,
                label=label,
            )
        ends = [
            min(p.measured for r in members for p in r.pairs),
            max(p.measured for r in members for p in r.pairs),
        ]
        axes.plot(ends, ends, "k-", lw=0.7)
        axes.set(
            xscale="log", yscale="log", xlabel="measured, s", ylabel="estimated, s", title=group
        )
        axes.legend(fontsize=6, markerscale=4)
        figure.tight_layout()
        file = group.lower().replace(" ", "-").replace(",", "") + ".png"
        figure.savefig(REPORT / file)
        pyplot.close(figure)
        files[group] = file
    return files


def _group(result: Result) -> str:
    subject = result.name.split(",")[0]
    return subject + (", data sheet alone" if "data sheet" in result.name else "")


if __name__ == "__main__":
    sys.exit(main())
