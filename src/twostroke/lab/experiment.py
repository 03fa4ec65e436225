"""An experiment: a claim computed and, where wanted, observed on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from twostroke.lab.claim import Computed, FieldClaim, Observed
from twostroke.lab.live import LiveBench


@dataclass(frozen=True, slots=True)
class Experiment:
    """What came out. ``model``: what the live part ran, empty without one."""

    claim: FieldClaim
    computed: Computed
    observed: Observed | None
    model: str = ""


def run_experiment(claim: FieldClaim, bench: LiveBench | None) -> Experiment:
    """Compute a claim, and observe it where there is a bench.

    Raises:
        TwostrokeError: The live model cannot be loaded.
    """
    computed = claim.compute()
    if bench is None:
        return Experiment(claim, computed, None)
    return Experiment(claim, computed, claim.observe(bench), bench.model)


def experiment_fields(experiment: Experiment) -> dict[str, Any]:
    """The experiment as plain values; times in seconds."""
    claim, computed, observed = experiment.claim, experiment.computed, experiment.observed
    fields: dict[str, Any] = {
        "name": claim.name,
        "claim": claim.text,
        "source": claim.source,
        "verdict": computed.verdict.name,
        "because": computed.verdict.text,
        "simulated": {
            "on": computed.on,
            "facts": dict(computed.facts),
            "figures": dict(computed.figures),
        },
    }
    if observed is not None:
        fields["live"] = {
            "model": experiment.model,
            "facts": dict(observed.facts),
            "figures": dict(observed.figures),
            "text": observed.text,
        }
    return fields
