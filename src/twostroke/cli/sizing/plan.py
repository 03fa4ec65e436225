"""``twostroke plan``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from twostroke.cli.flags import flag_section
from twostroke.cli.terminal import print_error, print_note
from twostroke.core.errors import ConfigError
from twostroke.core.files import write_text
from twostroke.planner.options import GoalOptions, PlanOutputOptions, SearchOptions, TrafficOptions
from twostroke.planner.progress import PlanProgress

if TYPE_CHECKING:
    from twostroke.planner.make_plans import Planned


# Exit code where no plan meets the targets.
EXIT_NO_PLAN = 3

TrafficFlags = Annotated[TrafficOptions, flag_section("Traffic", 0)]
GoalFlags = Annotated[GoalOptions, flag_section("Targets", 1)]
SearchFlags = Annotated[SearchOptions, flag_section("Search", 2)]
PlanOutputFlags = Annotated[PlanOutputOptions, flag_section("Output", 3)]


def plan(
    model: str,
    /,
    *,
    traffic: TrafficFlags | None = None,
    goals: GoalFlags | None = None,
    search: SearchFlags | None = None,
    output: PlanOutputFlags | None = None,
    json_: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Plan which hardware serves MODEL to so many users within targets, and what it costs.

    Formulas search thousands of candidates; the best few are simulated with the scheduler that
    serves. Plans go to stdout, progress to stderr. Exit code 3: no plan meets the targets.

    Example: twostroke plan llama-3.1-70b --users 500 --input 1500 --output 300
    --ttft p95=0.5 --tpot p95=0.04

    Args:
        model: A public model by name, a config.json or its folder, or pilot.
        json_: Print JSON instead of tables.
    """
    from twostroke.planner.make_plans import make_plans, nearest_miss
    from twostroke.planner.reports.json_text import plans_json
    from twostroke.planner.reports.tables import print_plans

    with _progress() as bar:
        # Without traffic its options raise what is missing.
        planned = make_plans(
            model,
            traffic or TrafficOptions(),
            goals or GoalOptions(),
            search or SearchOptions(),
            output or PlanOutputOptions(),
            bar,
        )
    write_plan_files(planned, output or PlanOutputOptions())
    for note in planned.notes:
        print_note(note)
    if json_:
        print(plans_json(planned))
    else:
        print_plans(planned, sys.stdout)
    if planned.best is not None:
        return 0
    hint = "relax a target or a limit, or allow more: --gpus, --tp, --weight-dtype, --acceptance"
    print_error(f"no plan meets the targets; {nearest_miss(planned)}", hint)
    return EXIT_NO_PLAN


def write_plan_files(planned: Planned, output: PlanOutputOptions) -> None:
    """Write the page, values and prices that the flags name. Raises ConfigError."""
    from twostroke.planner.engines import gpu_names
    from twostroke.planner.manifests import write_manifests
    from twostroke.planner.prices import prices_text
    from twostroke.planner.reports.page import plans_page

    search = planned.search
    try:
        if output.html is not None:
            write_text(output.html, plans_page(planned))
        if output.manifests is not None and planned.best is not None:
            for path in write_manifests(search, planned.best.plan, output.manifests):
                print_note(f"wrote {path}")
        if output.write_prices is not None:
            sheets = [search.builder.sheet(name) for name in gpu_names(search.builder.search)]
            write_text(output.write_prices, prices_text(sheets, search.prices))
    except OSError as error:
        raise ConfigError(
            f"cannot write {error.filename}: {error.strerror}", hint="give another file or folder"
        ) from error


@contextmanager
def _progress() -> Iterator[PlanProgress]:
    """A bar on stderr while it is a terminal."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=console, disable=not console.is_terminal, refresh_per_second=4
    ) as bars:

        class Shown(PlanProgress):
            def begin(self, what: str, total: int) -> None:
                self.task = bars.add_task(what, total=total)

            def advance(self) -> None:
                bars.advance(self.task)

        yield Shown()
