"""Protects: the pages Plan and Doctor in a real browser, over a simulation and a live engine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.inspector.browser import needs_browser, opened, violations
from tests.inspector.recorded import recording
from tests.inspector.showing import showing
from tests.server.running import running_server
from tests.server.tiny import tiny_engine

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route

pytestmark = needs_browser
SLOW_MS = 120_000


@pytest.fixture(scope="module")
def simulated() -> Iterator[str]:
    with showing("simulation", recording()) as address:
        yield address


@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (1024, "dark"), (390, "light")])
def test_a_plan_follows_its_sliders(
    browser: Browser, simulated: str, width: int, theme: str
) -> None:
    with opened(browser, f"{simulated}#/plan", width=width, color_scheme=theme) as page:
        page.wait_for_selector(".lead >> text=/replicas? of .* an hour/", timeout=SLOW_MS)
        first = page.locator(".lead").inner_text()
        assert page.locator("table tbody tr").count() >= 1
        assert "Bound by" in page.locator("main").inner_text()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert violations(page) == []
        page.locator("label:has-text('users at once') input").fill("8")
        page.wait_for_function(
            "text => document.querySelector('.lead').innerText !== text",
            arg=first,
            timeout=SLOW_MS,
        )
        hour = [
            float(re.findall(r"\$([\d.,]+)", text)[0].replace(",", ""))
            for text in (first, page.locator(".lead").inner_text())
        ]
        assert hour[1] > hour[0]
        assert "twostroke plan llama-3.1-8b --users 2000" in page.locator("main").inner_text()
        page.locator("label:has-text('TPOT P95') input").fill("0")
        page.locator("label:has-text('TTFT P95') input").fill("0")
        page.select_option(".plan-asked select", "llama-3.1-70b")
        page.wait_for_selector(
            ".lead >> text=/No plan meets the targets|b200|h200/", timeout=SLOW_MS
        )
        assert violations(page) == []


@pytest.mark.parametrize("width", [1440, 390])
def test_a_diagnosis_names_cause_and_flag(browser: Browser, simulated: str, width: int) -> None:
    with opened(browser, f"{simulated}#/doctor", width=width) as page:
        page.wait_for_selector("text=What binds this server")
        assert violations(page) == []
        page.click("text=Look")
        page.wait_for_selector(".lead >> text=What helps: --max-num-seqs", timeout=SLOW_MS)
        shown = page.locator("main").inner_text()
        assert re.search(r"TTFT P95 .* → .*", shown)
        assert "60 were replayed" in shown
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert violations(page) == []


def test_a_replay_that_is_far_off_says_what_to_do(browser: Browser, simulated: str) -> None:
    def far_off(route: Route) -> None:
        """The server's own answer, but for how long the replay took."""
        response = route.fetch(timeout=SLOW_MS)
        answer = response.json()
        answer["replay"]["replayed"] *= 3
        route.fulfill(response=response, json=answer)

    with opened(browser, f"{simulated}#/doctor", width=1024) as page:
        page.route("**/v1/inspect/doctor", far_off)
        page.click("text=Look")
        page.wait_for_selector(".lead >> text=What may help: --max-num-seqs", timeout=SLOW_MS)
        shown = page.locator("main").inner_text()
        assert "Rely on the causes, not on the figures" in shown
        assert "twostroke doctor steps.jsonl" in shown
        assert violations(page) == []


def test_an_empty_server_says_that_no_step_has_run(browser: Browser) -> None:
    with tiny_engine() as engine, running_server(engine) as url:
        context = browser.new_context()  # whose console may tell of the refusal
        page = context.new_page()
        page.goto(f"{url}/inspect/#/doctor")
        page.locator("button >> text=/^Look$/").click()
        page.wait_for_selector("[role=alert] >> text=no step has run yet")
        context.close()
