"""Protects: a report has a column for each device and pool, and cost against each target."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.inspector.browser import needs_browser, opened, violations
from tests.inspector.pages.reports import drawn, fields_of, mailed
from tests.simulator.scenarios import scenario
from twostroke.simulator.deployment.fleet_options import FleetOptions
from twostroke.simulator.reports.fields import run_fields
from twostroke.simulator.simulate import simulate

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = needs_browser
Call = Callable[..., Any]


@pytest.fixture(scope="module")
def call(browser: Browser, recorded: str) -> Iterator[Call]:
    """Call a function of the report's devices with JSON values."""
    with opened(browser, recorded) as page:
        page.wait_for_selector("nav a")
        yield lambda name, *values: page.evaluate(
            "async ([name, values]) =>"
            " (await import('/inspect/pages/report/devices.js'))[name](...values)",
            [name, list(values)],
        )


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_devices_are_columns_and_cost_stands_against_targets(
    browser: Browser, tmp_path: Path, theme: str
) -> None:
    fields = fields_of("rate=5,50", "gpu=h100,l40s,l4", num_requests=60)
    with opened(browser, mailed(tmp_path, fields), color_scheme=theme) as page:
        page.wait_for_selector(".report")
        table = page.locator("table[aria-label='Devices']")
        heads = table.locator("thead th").all_inner_texts()
        assert sorted(heads[1:]) == ["h100-sxm", "l4", "l40s"]
        drawn(page, "Cost against TTFT, 90th percentile", "prefill")
        drawn(page, "Cost against TTFT, 90th percentile", "alarm")
        assert violations(page) == []


def test_a_device_shows_its_cheapest_run_that_meets_the_targets(call: Call) -> None:
    fields = fields_of("rate=5,50", "gpu=h100,l4", num_requests=60)
    table = call("devices", fields)
    for column, gpu in enumerate(table["head"][1:], 1):
        enough = [
            run
            for run in fields
            if run["hardware"]["name"] == gpu
            and run["verdict"] != "overloaded"
            and run["good_share"] >= 0.9
        ]
        cheapest = min(enough, key=lambda run: run["dollars_per_million_tokens"], default=None)
        assert table["rows"][0][column] == (cheapest["label"] if cheapest else "none")
    assert call("devices", fields_of("rate=5,50")) is None


def test_the_front_is_what_none_is_cheaper_and_faster_than(call: Call) -> None:
    fields = fields_of("rate=2,20,80", "gpu=h100,l40s", num_requests=60)
    (found,) = call("costCharts", fields)
    front, *devices, target = found["lines"]
    points = [point for line in devices for point in zip(line["x"], line["y"])]
    assert len(points) == len(fields) and all(line["loose"] for line in devices)
    best = list(zip(front["x"], front["y"]))
    assert best and set(best) < set(points)
    for x, y in best:
        assert not [other for other in points if other[0] < x and other[1] < y]
    assert target["y"] == [20, 20]


def test_pools_stand_side_by_side(browser: Browser, tmp_path: Path, call: Call) -> None:
    apart = replace(
        scenario(num_requests=20, rate=2.0),
        fleet=FleetOptions(prefill="gpu=h100,replicas=2", decode="gpu=l40s"),
    )
    run = run_fields(simulate(apart))
    table = call("pools", run)
    assert table["head"] == ["pool", "prefill", "decode"]
    assert table["rows"][0] == ["Replicas", "2", "1"]
    assert call("pools", fields_of(num_requests=4)[0]) is None
    with opened(browser, mailed(tmp_path, [run]), width=390, height=844) as page:
        page.locator("table[aria-label='Pools']").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert violations(page) == []
