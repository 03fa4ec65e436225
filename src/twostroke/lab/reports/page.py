"""``--html``: experiments as one page with plots, which needs no network and no script."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from twostroke.lab.claim import Fact
from twostroke.lab.experiment import Experiment
from twostroke.lab.reports.plot import plot_svg
from twostroke.planner.reports.style import STYLE

TITLE = "What is said of serving, tried"
# Names of facts wrap on a phone, so that values beside them are in sight.
FACT_STYLE = """td { text-align: left } td:first-child { white-space: nowrap }
@media (max-width: 40rem) { td:first-child { white-space: normal; min-width: 7rem } }
"""


def experiments_page(experiments: Sequence[Experiment]) -> str:
    """The page."""
    body = "\n".join(_section(experiment) for experiment in experiments)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{TITLE}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}{FACT_STYLE}</style>'
        f"<h1>{TITLE}</h1>\n{body}</html>\n"
    )


def _section(experiment: Experiment) -> str:
    claim, computed, observed = experiment.claim, experiment.computed, experiment.observed
    name, text = computed.verdict
    parts = [
        f'<h2 id="{escape(claim.name)}">{escape(claim.text)}</h2>',
        f"<p class=muted>{escape(claim.name)}. Source: {escape(claim.source)}.</p>",
        f"<p><b>Verdict: {escape(name)}.</b> {escape(text)}</p>",
        f'<div class="wide">{plot_svg(computed.plot)}</div>',
        f"<p>Simulated: {escape(computed.on)}</p>",
        _table(computed.facts),
    ]
    if observed is not None:
        parts.append(f"<p>Measured here, with {escape(experiment.model)}</p>")
        parts.append(_table(observed.facts))
        parts.append(f"<p>{escape(observed.text)}</p>")
    return "\n".join(parts)


def _table(facts: Sequence[Fact]) -> str:
    rows = (f"<tr><td>{escape(what)}</td><td>{escape(value)}</td></tr>" for what, value in facts)
    return f'<div class="wide"><table>{"".join(rows)}</table></div>'
