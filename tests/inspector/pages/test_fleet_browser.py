"""Protects: the page of a fleet: replicas as rows, routes with their reasons, a page for each."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.engine.process.scripted_process import pid_of
from tests.inspector.browser import needs_browser, opened, violations
from tests.inspector.fleets import REPLICAS, fleet_page, fleet_recording, live_fleet
from tests.inspector.showing import showing
from tests.inspector.test_browser import step_shown, wait_for_step
from tests.server.running import running_server, wait_until
from tests.server.tiny import tiny_engine

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = needs_browser
HOSTILE = "<img src=x onerror=document.title='hacked'>\u202eabc"
STEP = 150


@pytest.fixture(scope="module")
def fleet() -> Iterator[str]:
    with fleet_page(fleet_recording()) as address:
        yield address


def wait_for_rows(page: Page, number: int) -> None:
    page.wait_for_selector(f".fleet-rows li:nth-child({number})")
    assert page.locator(".fleet-rows li").count() == number


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_replicas_are_rows_with_the_figures_of_the_moment(
    browser: Browser, fleet: str, theme: str
) -> None:
    api = fleet.replace("/inspect/", "/v1/inspect")
    strips = httpx.get(f"{api}/fleet/occupancy?columns=480").json()
    facts = httpx.get(f"{api}/fleet").json()
    end = httpx.get(f"{api}/steps?from={STEP}&to={STEP}").json()["steps"]
    moment = end["time"][0] + end["duration"][0]
    column = int((moment - strips["begin"]) / (strips["end"] - strips["begin"]) * 480)
    with opened(browser, f"{fleet}#/fleet?at={STEP}", color_scheme=theme) as page:
        wait_for_rows(page, REPLICAS)
        wait_for_step(page, STEP)
        loads = []
        for number, replica in enumerate(strips["replicas"]):
            shown = page.locator(".fleet-rows li b").nth(number).inner_text()
            assert int(shown) == int(replica["running"][column] + 0.5)
            loads.append(replica["running"][column] + replica["waiting"][column])
        busiest = loads.index(max(loads))
        page.wait_for_selector(f".lead >> text=the busiest, replica {busiest}, has")
        page.wait_for_selector(f".value >> text={facts['imbalance']:.2f}")
        assert violations(page) == []


def test_routes_have_their_reason_and_lead_to_their_request(browser: Browser, fleet: str) -> None:
    with opened(browser, f"{fleet}#/fleet?at={STEP}") as page:
        page.wait_for_selector(".fleet-routes >> text=of the prompt's tokens before")
        page.select_option("#fleet-replica", "2")
        page.wait_for_function(
            "() => [...document.querySelectorAll('.fleet-routes tbody td:nth-child(3)')]"
            ".every(cell => cell.innerText === '2')"
        )
        name = page.locator(".fleet-routes a").first.inner_text()
        page.locator(".fleet-routes a").first.click()
        page.wait_for_selector("ol.stations li")
        assert f"request={name}" in page.url
        assert "/replicas/2/inspect/" in page.url


def test_a_row_leads_to_its_timeline_and_back(browser: Browser, fleet: str) -> None:
    with opened(browser, f"{fleet}#/fleet?at={STEP}") as page:
        wait_for_rows(page, REPLICAS)
        page.wait_for_selector(".fleet-rows a")
        box = page.locator(".fleet-rows canvas").nth(1).bounding_box()
        assert box is not None
        page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.wait_for_selector("text=Who stuttered?")
        assert "/replicas/1/inspect/" in page.url
        page.wait_for_selector("header >> text=replica 1")
        page.keyboard.press("g")
        page.keyboard.press("f")
        wait_for_rows(page, REPLICAS)
        page.wait_for_selector(".fleet-rows li:nth-child(2) >> text=shown")
        assert step_shown(page) > 0


def test_keys_reach_every_replica(browser: Browser, fleet: str) -> None:
    with opened(browser, f"{fleet}#/live?at={STEP}") as page:
        page.wait_for_selector("text=Running")
        page.keyboard.press("g")
        page.keyboard.press("f")
        wait_for_rows(page, REPLICAS)
        page.locator(".fleet-rows a").last.focus()
        page.keyboard.press("Enter")
        page.wait_for_selector("text=Who stuttered?")
        assert f"/replicas/{REPLICAS - 1}/inspect/" in page.url


def test_a_narrow_page_does_not_scroll_sideways(browser: Browser, fleet: str) -> None:
    with opened(browser, f"{fleet}#/fleet?at={STEP}", width=390, height=844) as page:
        wait_for_rows(page, REPLICAS)
        page.wait_for_selector(".fleet-routes a")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert violations(page) == []


def test_playing_moves_the_figures(browser: Browser, fleet: str) -> None:
    with opened(browser, f"{fleet}#/fleet") as page:
        wait_for_rows(page, REPLICAS)
        before = page.locator(".lead").inner_text()
        page.select_option("#speed", "10")
        page.click("footer >> text=Play")
        deadline = time.monotonic() + 20
        while page.locator(".lead").inner_text() == before:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_hostile_names_are_text(browser: Browser, tmp_path: Path) -> None:
    for file in fleet_recording().parent.iterdir():
        shutil.copy(file, tmp_path / file.name)
    path = tmp_path / fleet_recording().name
    head, *lines = path.read_text().splitlines()
    changed = [json.dumps(json.loads(head) | {"router": HOSTILE})]
    for line in lines:
        route = json.loads(line)
        changed.append(json.dumps(route | {"request_id": route["request_id"] + HOSTILE}))
    path.write_text("\n".join(changed) + "\n")
    with (
        fleet_page(path) as address,
        opened(browser, f"{address}#/fleet?at={STEP}") as page,
    ):
        wait_for_rows(page, REPLICAS)
        page.wait_for_selector(".fleet-routes >> text=<img")
        assert page.title() == "twostroke inspector"
        assert page.locator("main img").count() == 0
        assert "\u202e" not in page.locator("main").inner_text()


def test_one_engine_is_one_row_and_says_so(browser: Browser) -> None:
    with showing("recording") as address, opened(browser, f"{address}#/fleet?at=90") as page:
        page.wait_for_selector(".lead >> text=One replica: this run had no router")
        wait_for_rows(page, 1)
        assert violations(page) == []
    with tiny_engine() as engine, running_server(engine) as url:
        body = {"prompt": "the dog", "max_tokens": 9, "ignore_eos": True}
        assert httpx.post(f"{url}/v1/completions", json=body).status_code == 200
        with opened(browser, f"{url}/inspect/#/fleet") as page:
            page.wait_for_selector(".lead >> text=One replica: this server answers")
            wait_for_rows(page, 1)
            assert violations(page) == []
            page.locator(".fleet-rows button").first.click()
            page.wait_for_selector("text=Who stuttered?")


@contextmanager
def asking(url: str, number: int = 4) -> Iterator[set[int]]:
    """So many calls at a time, one after another; all statuses, once it has ended."""
    body = {"prompt": [7] * 6, "max_tokens": 60, "ignore_eos": True}
    stopped, statuses = Event(), set[int]()

    def ask() -> None:
        while not stopped.is_set():
            statuses.add(httpx.post(f"{url}/v1/completions", json=body, timeout=60).status_code)

    with ThreadPoolExecutor() as threads:
        asked = [threads.submit(ask) for _ in range(number)]
        try:
            yield statuses
        finally:
            stopped.set()
        for each in asked:
            each.result()


@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (1024, "dark"), (390, "dark")])
def test_live_engines_are_shown_as_they_are(
    browser: Browser, tmp_path: Path, width: int, theme: str
) -> None:
    """Where requests went, and that an engine is gone, why, and what became of its requests."""
    with (
        live_fleet(tmp_path) as (replicas, url),
        opened(browser, f"{url}/inspect/#/fleet", width, color_scheme=theme) as page,
    ):
        page.wait_for_selector(".lead >> text=2 of 2 engines take requests. All are idle.")
        with asking(url) as statuses:
            page.wait_for_selector(".lead >> text=/The busiest, engine [01], has/")
            pid = pid_of(replicas.engines[1])
            os.kill(pid, signal.SIGSTOP)  # what it has is unfinished from here on
            time.sleep(0.5)  # until what it sent before has been read
            wait_until(lambda: replicas.engines[1].num_unfinished > 0)
            os.kill(pid, signal.SIGKILL)
            page.wait_for_selector(".lead >> text=/Engine 1 is down: .*SIGKILL/")
        assert statuses == {200}
        page.wait_for_selector(".fleet-engines tbody tr:nth-child(2) .held")
        rows = page.locator(".fleet-engines tbody tr")
        assert rows.count() == 2 and page.locator(".fleet-rows li").count() == 2
        cells = [rows.nth(row).locator("td").all_inner_texts() for row in range(2)]
        titles = page.locator(".fleet-engines th").all_inner_texts()
        shown = [dict(zip(titles, row, strict=True)) for row in cells]
        assert shown[0]["state"].strip() == "ready" and "down" in shown[1]["state"]
        assert shown[1]["failed"] == "1" and int(shown[1]["moved out"]) > 0
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert violations(page) == []
        if folder := os.environ.get("TWOSTROKE_TEST_PICTURES"):
            page.screenshot(path=f"{folder}/fleet-live-{width}-{theme}.png")
