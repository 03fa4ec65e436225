"""Protects: an experiment reads the same on a terminal, on a page and as values."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from io import StringIO

import pytest

from twostroke.lab.claim import Bars, Computed, Curves, Fact, FieldClaim, Observed, Verdict
from twostroke.lab.experiment import Experiment, experiment_fields
from twostroke.lab.live import LiveBench
from twostroke.lab.reports.page import experiments_page
from twostroke.lab.reports.plot import plot_svg, plot_text
from twostroke.lab.reports.terminal import print_claims, print_experiment
from twostroke.planner.reports.plots import standalone

BARS = Bars(values=[("one", 10.0), ("two <b>", 5.0), ("none", 0.0)], title="tokens/s")
CURVES = Curves(
    curves={"a": [(1, 2.0), (20000, 4.0)], "b": [(1, 1.0), (20000, 9.0)]},
    x_title="tokens",
    y_title="ms",
    limit=2.0,
)


def experiment(plot: Bars | Curves = BARS) -> Experiment:
    computed = Computed(
        on="a model on a <device>",
        facts=(Fact("measured", "1 & 2"), Fact("a name that is longer", "3")),
        verdict=Verdict("wrong as stated", "It is <less>."),
        plot=plot,
        figures={"one": 1.0},
    )
    observed = Observed(facts=(Fact("here", "4"),), text="So it is.", figures={"four": 4.0})

    def observe(bench: LiveBench) -> Observed:
        return observed

    claim = FieldClaim(
        name="a-claim",
        text="It is more.",
        source="a book",
        compute=lambda: computed,
        observe=observe,
    )
    return Experiment(claim, computed, observed, "pilot")


def test_bars_of_letters_are_in_proportion() -> None:
    title, first, second, none = plot_text(BARS)
    assert title == "tokens/s"
    assert first.count("█") == 2 * second.count("█") and not none.count("█")
    assert first.split("█")[0].index("one") + 3 == second.index(" █")


def test_curves_share_one_scale() -> None:
    lines = list(plot_text(CURVES))
    assert lines[0] == "a: ms, by tokens" and lines[3] == "b: ms, by tokens"
    assert lines[5].count("█") == 9 * lines[4].count("█")
    assert lines[2].split()[0] == "20,000"


@pytest.mark.parametrize("plot", [BARS, CURVES])
def test_a_plot_is_a_file_that_follows_the_screen(plot: Bars | Curves) -> None:
    text = standalone(plot_svg(plot))
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "prefers-color-scheme: dark" in text and "var(--bg)" in text


def test_what_is_claimed_is_a_line_that_cuts_nothing() -> None:
    svg = plot_svg(CURVES)
    assert ">claimed<" in svg
    # The highest of 9 is below the top of an axis that ends at 10.
    assert svg.count("<polyline") == 2 and "var(--two)" in svg


def test_the_terminal_has_verdict_and_figures() -> None:
    stream = StringIO()
    print_experiment(experiment(), lambda text: f"*{text}*", stream)
    text = stream.getvalue()
    assert "*Verdict: wrong as stated.*\nIt is <less>.\n" in text
    assert "  measured               1 & 2\n  a name that is longer  3\n" in text
    assert "Measured here, with pilot\n  here  4\n  So it is.\n" in text
    assert max(map(len, text.splitlines())) <= 92


def test_the_list_names_claims() -> None:
    stream = StringIO()
    print_claims([experiment().claim], stream)
    assert stream.getvalue() == "a-claim  It is more.\n"


def test_the_page_escapes_and_has_the_plot() -> None:
    page = experiments_page([experiment(), experiment(CURVES)])
    # Plots scroll where a phone would make their letters too small.
    assert page.count("<svg") == page.count('<div class="wide"><svg') == 2
    assert "It is &lt;less&gt;." in page
    assert "<b>Verdict: wrong as stated.</b>" in page and "<device>" not in page


def test_values_have_every_figure() -> None:
    fields = experiment_fields(experiment())
    assert fields["verdict"] == "wrong as stated"
    assert fields["simulated"]["figures"] == {"one": 1.0}
    assert fields["live"] == {
        "model": "pilot",
        "facts": {"here": "4"},
        "figures": {"four": 4.0},
        "text": "So it is.",
    }
