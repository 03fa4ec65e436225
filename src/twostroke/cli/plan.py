"""``twostroke plan``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from cyclopts import Group, Parameter

from twostroke.cli.flags import shown_default
from twostroke.cli.terminal import print_note
from twostroke.planner.options import GoalOptions, PlanOutputOptions, SearchOptions, TrafficOptions
from twostroke.planner.progress import PlanProgress


def _section(title: str, order: int) -> Parameter:
    return Parameter(
        name="*",
        group=Group(title, sort_key=order),
        negative_iterable=(),
        show_default=shown_default,
    )


# Exit code where no plan meets the targets.
EXIT_NO_PLAN = 3

TrafficFlags = Annotated[TrafficOptions, _section("Traffic", 0)]
GoalFlags = Annotated[GoalOptions, _section("Targets", 1)]
SearchFlags = Annotated[SearchOptions, _section("Search", 2)]
PlanOutputFlags = Annotated[PlanOutputOptions, _section("Output", 3)]


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
    from twostroke.planner.json_report import plans_json
    from twostroke.planner.make_plans import make_plans
    from twostroke.planner.terminal_report import print_plans

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
    for note in planned.notes:
        print_note(note)
    if json_:
        print(plans_json(planned))
    else:
        print_plans(planned, sys.stdout)
    return 0 if planned.best else EXIT_NO_PLAN


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
