"""The answer to a scenario: what the fleet did, and its summary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from twostroke.simulator.deployment.deployment import Deployment
from twostroke.simulator.fleet.result import FleetResult
from twostroke.simulator.results.columns import Columns, to_columns
from twostroke.simulator.results.summary import Summary
from twostroke.simulator.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Run:
    """A scenario and its results.

    Attributes:
        notes: Sentences on what is not as the scenario's names suggest.
        interval: Summaries of the same scenario with each end (``low``, ``high``) of the cost
            model's interval taken for the truth; empty if that was not asked for.
    """

    scenario: Scenario
    deployment: Deployment
    result: FleetResult
    columns: Columns
    summary: Summary
    notes: tuple[str, ...] = ()
    interval: Mapping[str, Summary] = field(default_factory=dict)

    def without_steps(self) -> Run:
        """The run less its steps: those of many long runs would fill the memory."""
        return replace(self, result=replace(self.result, logs=[]), columns=to_columns([]))
