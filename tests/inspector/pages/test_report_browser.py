"""Protects: a report as a file opens from disk, and shows all that was simulated, as a page too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.inspector.browser import needs_browser, opened, violations
from tests.inspector.pages.reports import drawn, fields_of, mailed
from tests.inspector.recorded import recording
from tests.inspector.showing import page_over
from tests.simulator.scenarios import scenario
from twostroke.inspector.recording import Recording
from twostroke.inspector.report import report_page, report_router
from twostroke.server.inspecting import create_inspecting_app
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.simulator.reports.comparison import COMPARED, notes_of
from twostroke.simulator.reports.earlier import read_report
from twostroke.simulator.reports.fields import WAITS, report_json, run_fields
from twostroke.simulator.scenario import Scenario
from twostroke.simulator.simulate import simulate
from twostroke.simulator.sweep import sweep
from twostroke.simulator.workloads.options import SimulatedWorkloadOptions

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = needs_browser
Fields = dict[str, Any]
Call = Callable[..., Any]


@pytest.fixture(scope="module")
def one_run() -> list[Fields]:
    return [{**run_fields(simulate(scenario(), interval=True)), "notes": ["<b>noted</b>"]}]


@pytest.fixture(scope="module")
def rates() -> list[Fields]:
    return [run_fields(simulate(s, interval=True)) for s in sweep(scenario(), ("rate=5,50",))]


@pytest.fixture(scope="module")
def served(one_run: list[Fields]) -> Iterator[str]:
    """The page over a simulation with a report."""
    source = Recording(recording(), "simulation")
    app = create_inspecting_app(source, report_router(one_run))
    with page_over(app) as address:
        yield address
    source.close()


@pytest.fixture(scope="module")
def call(browser: Browser, served: str) -> Iterator[Call]:
    """Call a function of one of the page's modules with JSON values."""
    with opened(browser, f"{served}#/report") as page:
        page.wait_for_selector(".report")

        def call(function: str, *arguments: object) -> Any:
            return page.evaluate(
                "async ([module, name, values]) => {"
                " const found = (await import(`/inspect/pages/report/${module}.js`))[name];"
                " return typeof found === 'function' ? found(...values) : found; }",
                [*function.split("."), list(arguments)],
            )

        yield call


def chart(charts: Sequence[Fields], title: str) -> Fields:
    """The one chart of that title."""
    (found,) = [item for item in charts if item["title"] == title]
    return found


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_mailed_sweep_shows_lines_over_load_and_distributions(
    browser: Browser, rates: list[Fields], tmp_path: Path, theme: str
) -> None:
    with opened(browser, mailed(tmp_path, rates), color_scheme=theme) as page:
        page.wait_for_selector(".report")
        assert "llama-3.1-8b on 1 x" in page.title()
        for title, colour in (
            ("TTFT against load", "prefill"),
            ("TPOT against load", "decode"),
            ("Latencies by percentile", "prefill"),
            ("Running requests", "decode"),
        ):
            drawn(page, title, colour)
        page.locator("details[open] > summary").last.click()
        page.locator("summary >> text=Timeline: rate=5").first.click()
        drawn(page, "Latencies by percentile", "prefill")
        table = page.locator("table[aria-label='Runs side by side']").inner_text()
        for run in rates:
            assert f"{run['p99_ttft_ms']:.1f}" in table and run["label"] in table
        assert violations(page) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_mailed_run_has_its_numbers_and_notes(
    browser: Browser, one_run: list[Fields], tmp_path: Path, theme: str
) -> None:
    (run,) = one_run
    with opened(browser, mailed(tmp_path, one_run), color_scheme=theme) as page:
        page.wait_for_selector(".report")
        drawn(page, "Requests", "decode")
        drawn(page, "Latencies by percentile", "prefill")
        text = page.locator(".report").inner_text()
        assert "Note: <b>noted</b>." in text
        assert run["description"] in text
        assert f"{run['median_ttft_ms']:.0f} / {run['p99_ttft_ms']:.0f} ms" in text
        for key in ("ttft", "tpot", "itl", "e2el", "queue"):
            assert f"{run[f'p95_{key}_ms']:.2f}" in text
        low, high = (run["interval"][end]["median_e2el_ms"] for end in ("low", "high"))
        assert f"{low:.2f} to {high:.2f}" in text
        page.locator("summary >> text=All settings").click()
        assert "kv_bytes_per_token_and_device" in page.locator(".report").inner_text()
        assert violations(page) == []


def test_a_narrow_report_does_not_scroll_sideways(
    browser: Browser, rates: list[Fields], tmp_path: Path
) -> None:
    with opened(browser, mailed(tmp_path, rates), width=390, height=844) as page:
        page.wait_for_selector(".report")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert violations(page) == []


def test_no_label_becomes_markup(browser: Browser, tmp_path: Path) -> None:
    (run,) = fields_of(num_requests=4)
    label = 'rate=1</script><script>alert("&amp;")</script><img src=x>'
    fields = [{**run, "label": label}, {**run, "label": "rate=2"}]
    with opened(browser, mailed(tmp_path, fields)) as page:
        page.wait_for_selector(".report")
        assert page.locator(f"summary >> text={label}").count() == 1
        assert page.locator("img").count() == 0


def test_the_pointer_reads_values_a_drag_enlarges_and_a_name_hides_its_line(
    browser: Browser, one_run: list[Fields], tmp_path: Path
) -> None:
    with opened(browser, mailed(tmp_path, one_run)) as page:
        figure = page.locator("figure.chart").first
        drawn(page, "Requests", "decode")
        box = figure.locator("canvas").bounding_box()
        assert box is not None
        middle = box["y"] + box["height"] / 2
        page.mouse.move(box["x"] + box["width"] - 30, middle)
        figure.locator(".moment >> text=seconds").wait_for()
        moment = figure.locator(".moment").inner_text()
        # Charts of the same run show the same moment.
        assert page.locator(".moment").nth(1).inner_text() == moment
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] / 2, middle)
        page.mouse.up()
        figure.locator("text=Show all").click()
        figure.locator("text=Show all").wait_for(state="detached")
        figure.locator("button >> text=running").click()
        assert figure.locator("button[aria-pressed=false]").count() == 1


def test_the_theme_can_be_changed_by_hand(
    browser: Browser, one_run: list[Fields], tmp_path: Path
) -> None:
    with opened(browser, mailed(tmp_path, one_run), color_scheme="light") as page:
        page.locator("header button").click()
        page.wait_for_function("() => document.documentElement.dataset.theme === 'dark'")
        drawn(page, "Requests", "decode")


def test_it_opens_where_the_browser_keeps_nothing_for_it(
    browser: Browser, one_run: list[Fields], tmp_path: Path
) -> None:
    """A mail program shows it in a frame of its own, which may not use the page's storage."""
    path = tmp_path / "mail.html"
    frame = f'<iframe sandbox="allow-scripts" srcdoc="{escape(report_page(one_run))}"></iframe>'
    path.write_text(f"<!doctype html>{frame}", encoding="utf-8")
    with opened(browser, path.as_uri()) as page:
        page.frame_locator("iframe").locator(".report >> text=Latencies by percentile").wait_for()


def test_a_simulation_that_is_shown_has_a_page_of_its_report(
    browser: Browser, served: str, one_run: list[Fields]
) -> None:
    with opened(browser, served) as page:
        page.wait_for_selector("footer")
        page.keyboard.press("g")
        page.keyboard.press("o")
        page.wait_for_selector(".report")
        drawn(page, "Requests", "decode")
        assert one_run[0]["description"] in page.locator(".report").inner_text()
        assert violations(page) == []


def test_a_recording_has_no_report(browser: Browser, recorded: str) -> None:
    with opened(browser, recorded) as page:
        page.wait_for_selector("nav a")
        assert page.locator("nav a >> text=Report").count() == 0


# ---- what its functions make of runs -------------------------------------------------------------


def test_words_and_columns_are_the_terminals(call: Call, rates: list[Fields]) -> None:
    assert call("words.WAITS") == WAITS
    assert call("words.COMPARED") == [list(column) for column in COMPARED]
    rates = [{**run, "notes": notes} for run, notes in zip(rates, (["a", "b"], ["b"]))]
    assert call("words.notesOf", rates) == notes_of(rates) == ["rate=5: a", "b"]


@pytest.mark.parametrize("axes", [(), ("rate=5,50",), ("gpu=h100,l40s",)])
def test_every_chart_has_axes_and_a_legend(call: Call, axes: tuple[str, ...]) -> None:
    fields = fields_of(*axes)
    charts = call("figures.overlaidCharts", fields) + call("figures.timeCharts", fields[0])
    charts += [call("figures.latencyChart", fields[0])]
    charts += call("figures.loadCharts", fields) if axes == ("rate=5,50",) else []
    for each in charts:
        assert each["xLabel"] and each["yLabel"] and each["lines"]
        for line in each["lines"]:
            assert line["name"] and line["colour"]
            assert len(line["x"]) == len(line["y"]) > 1 and line["x"] == sorted(line["x"])


def test_a_timeline_is_that_of_the_run(call: Call, one_run: list[Fields]) -> None:
    timeline = one_run[0]["timeline"]
    charts = call("figures.timeCharts", one_run[0])
    running, waiting = chart(charts, "Requests")["lines"]
    assert (running["name"], waiting["name"]) == ("running", "waiting")
    assert (running["y"], waiting["y"]) == (timeline["running"], timeline["waiting"])
    (kv,) = chart(charts, "KV cache in use by requests")["lines"]
    assert kv["y"] == pytest.approx([100 * share for share in timeline["kv"]])


def test_several_runs_share_charts_over_time(call: Call) -> None:
    fields = fields_of("gpu=h100,l40s")
    lines = chart(call("figures.overlaidCharts", fields), "Waiting requests")["lines"]
    assert [line["name"] for line in lines] == ["gpu=h100", "gpu=l40s"]
    assert [line["y"] for line in lines] == [run["timeline"]["waiting"] for run in fields]
    assert lines[0]["colour"] != lines[1]["colour"]


def test_an_earlier_sweep_is_a_line_of_its_own(call: Call, tmp_path: Path) -> None:
    """Two sweeps over the same rates must not become one line that goes to and fro."""
    (tmp_path / "before.json").write_text(report_json(fields_of("rate=5,50")))
    fields = [*read_report(tmp_path / "before.json"), *fields_of("rate=5,20,50")]
    lines = chart(call("figures.loadCharts", fields), "TTFT against load")["lines"]
    assert {line["name"]: line["x"] for line in lines} == {
        "before median": [5, 50],
        "before p99": [5, 50],
        "median": [5, 20, 50],
        "p99": [5, 20, 50],
    }


def test_in_a_closed_loop_the_load_is_its_concurrency(call: Call) -> None:
    fields = fields_of("concurrency=2,8,16", rate=None, arrivals="closed")
    found = chart(call("figures.loadCharts", fields), "TTFT against load")
    assert [line["x"] for line in found["lines"]] == [[2, 8, 16]] * 2
    assert "clients" in found["xLabel"]


def test_runs_without_a_load_are_bars(call: Call) -> None:
    fields = fields_of("gpu=h100,l40s")
    assert call("figures.loadOf", fields) is None
    cost = chart(call("figures.comparedBars", fields), "Cost of a million tokens")
    assert cost["bars"] == [[r["label"], r["dollars_per_million_tokens"]] for r in fields]


def test_a_page_of_several_runs_names_what_they_share_and_spreads_wide_values(call: Call) -> None:
    """No single run's device or rate in the heading; percentiles of a device in one colour."""
    fields = fields_of("rate=2,200", "gpu=h100,l4", num_requests=60)
    heading = call("words.titleOf", fields)
    assert "H100" in heading and "L4" in heading
    assert not any("at 200 requests/s" in line for line in call("words.introductionOf", fields))
    charts = call("figures.loadCharts", fields)
    found = chart(charts, "TTFT against load")
    assert [(line["name"], line["colour"], line["dashed"]) for line in found["lines"]] == [
        ("gpu=h100 median", "prefill", False),
        ("gpu=h100 p99", "prefill", True),
        ("gpu=l4 median", "decode", False),
        ("gpu=l4 p99", "decode", True),
    ]
    assert found["log"] is True
    assert chart(charts, "TPOT against load")["log"] is False


def test_bands_are_the_ends_of_the_interval(call: Call, rates: list[Fields]) -> None:
    line = chart(call("figures.loadCharts", rates), "TPOT against load")["lines"][0]
    for end in ("low", "high"):
        assert line[end] == [run["interval"][end]["median_tpot_ms"] for run in rates]


def test_a_distribution_is_that_of_the_run(call: Call, one_run: list[Fields]) -> None:
    lines = call("figures.latencyChart", one_run[0])["lines"]
    assert [line["name"] for line in lines] == ["TTFT", "TPOT", "End to end"]
    assert lines[0]["x"] == [50, 90, 95, 99]
    names = ("median", "p90", "p95", "p99")
    assert lines[0]["y"] == [one_run[0][f"{name}_ttft_ms"] for name in names]


def test_the_heading_names_a_few_values_and_counts_many(call: Call) -> None:
    for axes, words in (("tp=1,2", "1 and 2 x NVIDIA"), ("tp=1,2,4,8", "4 values of tp x NVIDIA")):
        assert words in call("words.titleOf", fields_of(axes, num_requests=4))


def test_a_model_without_attention_has_no_figures_of_a_cache(
    browser: Browser, tmp_path: Path
) -> None:
    run = simulate(
        Scenario(
            deployment=DeploymentOptions(model="mamba-codestral-7b", gpu="h100"),
            workload=SimulatedWorkloadOptions(num_requests=6, output_len=20),
        )
    )
    with opened(browser, mailed(tmp_path, [run_fields(run)])) as page:
        page.wait_for_selector(".report")
        text = page.locator(".report").inner_text()
        assert "Tokens computed" in text
        assert "KV cache in use" not in text and "KV cache mean" not in text


def test_an_empty_run_is_reported_too(browser: Browser, tmp_path: Path) -> None:
    """Ctrl-C before anything has ended, or nothing that fits."""
    run = simulate(scenario(workload="random", input_len=200_000, rate=None))
    with opened(browser, mailed(tmp_path, [run_fields(run)])) as page:
        page.wait_for_selector("text=Latencies")
