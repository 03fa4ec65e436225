"""``twostroke lab``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from twostroke.cli.terminal import paint
from twostroke.core.errors import ConfigError
from twostroke.core.files import is_folder, reason, write_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twostroke.lab.experiment import Experiment

BOLD = "1"


def lab(
    *names: str,
    all_: Annotated[bool, Parameter(name="--all", negative="")] = False,
    live: bool = True,
    model: str = "pilot",
    plot: Path | None = None,
    html: Path | None = None,
    json_: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> None:
    """Try what is said of serving: the claims NAME, simulated and measured on this machine.

    Without a name the claims are listed. A live part takes some seconds; simulated parts are the
    same each time.

    Example: twostroke lab decode-ceiling --plot ceiling.svg

    Args:
        names: Claims; several follow each other.
        all_: Try all claims.
        live: Measure on this machine, too.
        model: What live parts run: pilot, a local folder, or a Hugging Face Hub id.
        plot: Write the claim's plot here, as SVG.
        html: Write a page with plots here.
        json_: Print JSON instead of text.
    """
    from twostroke.lab.experiment import experiment_fields, run_experiment
    from twostroke.lab.registry import CLAIMS, find_claims
    from twostroke.lab.reports.terminal import print_claims, print_experiment

    claims = find_claims(names)
    if all_:
        claims = list(CLAIMS)
    if plot is not None and len(claims) != 1:
        raise ConfigError("--plot takes one claim", hint="name one, or give --html for several")
    if not claims:
        if html is not None or json_:
            raise ConfigError("no claim is named", hint="name some, or give --all")
        print_claims(CLAIMS, sys.stdout)
        return
    if plot is not None and plot.suffix.lower() != ".svg":
        hint = f"give {plot.stem}.svg, which browsers show"
        raise ConfigError(f"--plot writes SVG, which {plot.name} does not say", hint=hint)
    _check_folders({"--plot": plot, "--html": html})
    bench = None
    if live:
        from twostroke.lab.live import LiveBench
        from twostroke.startup import load_engine

        bench = LiveBench(model, load_engine)
    experiments = []
    for number, claim in enumerate(claims):
        experiment = run_experiment(claim, bench)
        experiments.append(experiment)
        if not json_:
            print("\n\n" if number else "", end="")
            print_experiment(experiment, lambda text: paint(text, BOLD, sys.stdout), sys.stdout)
            sys.stdout.flush()
    if json_:
        print(json.dumps([experiment_fields(each) for each in experiments], indent=2))
    write_lab_files(experiments, plot, html)


def _check_folders(files: Mapping[str, Path | None]) -> None:
    """Raise ConfigError before anything runs whose result could not be written."""
    for flag, path in files.items():
        if path is not None and not is_folder(path.parent):
            raise ConfigError(
                f"{path.parent} is no folder", hint=f"make it, or give another {flag}"
            )


def write_lab_files(
    experiments: Sequence[Experiment], plot: Path | None, html: Path | None
) -> None:
    """Write the plot of the first experiment, and a page of all. Raises ConfigError."""
    from twostroke.lab.reports.page import experiments_page
    from twostroke.lab.reports.plot import plot_svg
    from twostroke.planner.reports.plots import standalone

    texts = {}
    if plot is not None:
        texts[plot] = standalone(plot_svg(experiments[0].computed.plot))
    if html is not None:
        texts[html] = experiments_page(experiments)
    for path, text in texts.items():
        try:
            write_text(path, text)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"cannot write {path}: {reason(error)}", hint="give another file or folder"
            ) from error
