"""The page of a report: what it shows, and that it is safe and complete in one file."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.simulator.scenarios import runs, scenario
from twostroke.simulator.reports import page as page_files
from twostroke.simulator.reports.charts import bar_chart
from twostroke.simulator.reports.earlier import read_report
from twostroke.simulator.reports.fields import report_json, run_fields
from twostroke.simulator.reports.html import report_html
from twostroke.simulator.results.run import Run
from twostroke.simulator.simulate import simulate
from twostroke.simulator.sweep import sweep


class Page(HTMLParser):
    """A page taken apart: what it would load, its script elements, its ids."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.policy = ""
        self.styles: list[str] = []
        self.scripts: list[str] = []
        self.data: dict[str, Any] = {}
        self._element = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.loads += [values[name] for name in ("src", "href") if name in values]
        self.ids += [values["id"]] if "id" in values else []
        assert not any(name.startswith("on") or name == "style" for name in values)
        if values.get("http-equiv") == "Content-Security-Policy":
            self.policy = values["content"]
        self._element = "data" if values.get("id") == "chart-data" else tag

    def handle_data(self, data: str) -> None:
        if self._element == "data":
            self.data = json.loads(data)
        elif self._element in ("style", "script"):
            (self.styles if self._element == "style" else self.scripts).append(data)
        self._element = ""

    def chart(self, title: str) -> dict[str, Any]:
        """The one chart of that title."""
        (chart,) = [chart for chart in self.data["charts"] if chart["title"] == title]
        assert isinstance(chart, dict)
        return chart


def page_of(done: Sequence[Run]) -> Page:
    return Page(report_html([run_fields(run) for run in done]))


@pytest.mark.parametrize("axes", [(), ("rate=5,50",), ("gpu=h100,l40s",)])
def test_every_chart_has_a_place_axes_and_a_legend(axes: tuple[str, ...]) -> None:
    page = page_of(runs(*axes))
    charts = page.data["charts"]
    assert len(charts) >= 3
    assert [name for name in page.ids if name.startswith("chart-") and name != "chart-data"] == [
        f"chart-{number}" for number in range(len(charts))
    ]
    for chart in charts:
        assert chart["x_label"] and chart["y_label"] and chart["lines"]
        assert all(line["name"] for line in chart["lines"])
        for line in chart["lines"]:
            timeline = page.data["timelines"][line["timeline"]] if "timeline" in line else None
            x, y = (
                (line["x"], line["y"])
                if timeline is None
                else (timeline["time"], timeline[line["column"]])
            )
            assert len(x) == len(y) > 1 and x == sorted(x)


def test_the_page_needs_no_network_and_knows_the_dark() -> None:
    text = report_html([run_fields(run) for run in runs()])
    page = Page(text)
    assert page.loads == []
    assert "@import" not in text and "url(" not in text
    assert "prefers-color-scheme: dark" in text and "@media print" in text


def test_its_policy_allows_its_own_styles_and_scripts_alone() -> None:
    page = page_of(runs())
    assert len(page.scripts) == 2 and len(page.styles) == 1
    rules = dict(rule.strip().split(" ", 1) for rule in page.policy.split(";"))
    assert rules["default-src"] == "'none'"
    for sources, texts in (("style-src", page.styles), ("script-src", page.scripts)):
        digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()) for text in texts]
        assert rules[sources] == " ".join(f"'sha256-{digest.decode()}'" for digest in digests)


def test_no_label_ends_the_script() -> None:
    (done,) = runs(num_requests=4)
    label = 'rate=1</script><script>alert("&amp;")</script>'
    fields = [{**run_fields(done), "label": label}, {**run_fields(done), "label": "rate=2"}]
    page = Page(report_html(fields))
    assert len(page.scripts) == 2
    assert label in [line["name"] for line in page.chart("Running requests")["lines"]]


def test_uplot_comes_with_its_licence() -> None:
    folder = Path(page_files.__file__).parent
    script, _ = page_files.read_scripts()
    assert "uPlot (v1.6" in script.splitlines()[0]
    assert (folder / "uPlot.LICENSE").read_text().startswith("The MIT License")


def test_a_timeline_is_that_of_the_run() -> None:
    (done,) = runs()
    page = page_of([done])
    timeline = run_fields(done)["timeline"]
    kept = page.data["timelines"][0]
    assert kept["waiting"] == pytest.approx(timeline["waiting"])
    assert kept["kv"] == pytest.approx([100 * share for share in timeline["kv"]], rel=1e-5)
    names = [line["name"] for line in page.chart("Requests")["lines"]]
    assert names == ["running", "waiting"]


def test_several_runs_share_charts_over_time() -> None:
    page = page_of(runs("gpu=h100,l40s"))
    lines = page.chart("Waiting requests")["lines"]
    assert [line["name"] for line in lines] == ["gpu=h100", "gpu=l40s"]
    assert [line["timeline"] for line in lines] == [0, 1]
    assert lines[0]["colour"] != lines[1]["colour"]


def test_an_earlier_sweep_is_a_line_of_its_own(tmp_path: Path) -> None:
    """Two sweeps over the same rates must not become one line that goes to and fro."""
    (tmp_path / "before.json").write_text(
        report_json([run_fields(run) for run in runs("rate=5,50")])
    )
    now = [run_fields(run) for run in runs("rate=5,20,50")]
    page = Page(report_html([*read_report(tmp_path / "before.json"), *now]))
    lines = {line["name"]: line["x"] for line in page.chart("TTFT against load")["lines"]}
    assert lines == {
        "before median": [5, 50],
        "before p99": [5, 50],
        "median": [5, 20, 50],
        "p99": [5, 20, 50],
    }


def test_in_a_closed_loop_the_load_is_its_concurrency() -> None:
    chart = page_of(runs("concurrency=2,8,16", rate=None, arrivals="closed")).chart(
        "TTFT against load"
    )
    assert [line["x"] for line in chart["lines"]] == [[2, 8, 16]] * 2
    assert "clients" in chart["x_label"]


def test_a_page_of_several_runs_names_what_they_share_and_spreads_wide_values() -> None:
    """No single run's device or rate in the heading; percentiles of a device in one colour."""
    done = [run_fields(run) for run in runs("rate=2,200", "gpu=h100,l4", num_requests=60)]
    text = report_html(done)
    heading = text[text.index("<h1>") : text.index("</h1>")]
    assert "H100" in heading and "L4" in heading and "at 200 requests/s" not in text
    page = Page(text)
    chart = page.chart("TTFT against load")
    assert [(line["name"], line["colour"], line["dashed"]) for line in chart["lines"]] == [
        ("gpu=h100 median", "c0", False),
        ("gpu=h100 p99", "c0", True),
        ("gpu=l4 median", "c1", False),
        ("gpu=l4 p99", "c1", True),
    ]
    assert chart["log"] is True
    assert page.chart("TPOT against load")["log"] is False


def test_bands_are_the_ends_of_the_interval() -> None:
    done = [simulate(varied, interval=True) for varied in sweep(scenario(), ("rate=5,50",))]
    line = page_of(done).chart("TPOT against load")["lines"][0]
    for end in ("low", "high"):
        medians = [1000 * run.interval[end].latencies["tpot"].percentiles[50] for run in done]
        assert line[end] == pytest.approx(medians, rel=1e-5)


def test_bars_are_as_long_as_their_values() -> None:
    text = bar_chart("Cost", "$", [("a", 0.5), ("b", 2.0), ("c", None)])
    assert re.findall(r'value="([\d.]+)"', text) == ["0.25", "1"]
    assert "$0.500" in text and "$2.000" in text and ">c<" not in text


def test_the_heading_names_a_few_values_and_counts_many() -> None:
    for axes, words in (("tp=1,2", "1 and 2 x NVIDIA"), ("tp=1,2,4,8", "4 values of tp x NVIDIA")):
        text = report_html([run_fields(run) for run in runs(axes, num_requests=4)])
        assert words in text[text.index("<h1>") : text.index("</h1>")]
