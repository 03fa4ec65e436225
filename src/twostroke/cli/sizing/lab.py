"""``twostroke lab``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from twostroke.cli.terminal import paint
from twostroke.core.errors import ConfigError
from twostroke.core.files import is_folder, reason, write_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twostroke.lab.claim import FieldClaim
    from twostroke.lab.experiment import Experiment
    from twostroke.lab.live import LiveBench

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
    from twostroke.lab.experiment import experiment_fields
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
    experiments: list[Experiment] = []
    for experiment in _tried(claims, bench):
        if not json_:
            print("\n\n" if experiments else "", end="")
            print_experiment(experiment, lambda text: paint(text, BOLD, sys.stdout), sys.stdout)
            sys.stdout.flush()
        experiments.append(experiment)
    if json_:
        print(json.dumps([experiment_fields(each) for each in experiments], indent=2))
    write_lab_files(experiments, plot, html)


def _tried(claims: Sequence[FieldClaim], bench: LiveBench | None) -> Iterator[Experiment]:
    """Each claim's experiment, once it is over; meanwhile a bar says how far it is."""
    from twostroke.lab.experiment import run_experiment

    for number, claim in enumerate(claims):
        with _progress(claim.name, number, len(claims)):
            experiment = run_experiment(claim, bench)
        yield experiment


@contextmanager
def _progress(name: str, ended: int, total: int) -> Iterator[None]:
    """A bar on stderr while it is a terminal and a claim is tried; text may follow on stdout."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=console, disable=not console.is_terminal, transient=True
    ) as bars:
        bars.add_task(name, completed=ended, total=total)
        yield


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
