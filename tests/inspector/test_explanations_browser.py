"""Protects: what the page says of a stutter stays true wherever the reader has been meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.inspector.browser import needs_browser, opened
from tests.server.running import running_server, wait_until
from tests.server.tiny import tiny_engine
from twostroke.core.config import ObservabilityConfig

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = needs_browser
OPEN = "details.how[open]"


@pytest.fixture(scope="module")
def stuttered() -> Iterator[str]:
    """A server where a long prompt came while another request was answered; it is idle now."""
    seen = ObservabilityConfig(step_events=50_000)
    with tiny_engine(observability=seen) as engine, running_server(engine) as url:

        def ask(prompt: str, max_tokens: int) -> None:
            body = {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True}
            httpx.post(f"{url}/v1/completions", json=body, timeout=60).raise_for_status()

        victim = threading.Thread(target=ask, args=("the quick", 230))
        victim.start()
        end = time.monotonic() + 20
        while httpx.get(f"{url}/v1/inspect").json()["last_step"] < 40:
            assert time.monotonic() < end
            time.sleep(0.005)
        ask("fox " * 50, 4)
        victim.join()
        for _ in range(6):  # more steps than one frame of the feed has
            ask("the quick", 230)
        yield f"{url}/inspect/"


def ended(page: Page) -> str:
    return page.locator("section:has(h2:text('Ended lately')) tbody").inner_text()


def test_gaps_stay_known_after_a_look_at_the_past(browser: Browser, stuttered: str) -> None:
    """Steps missed meanwhile came merged: the gaps in them were lost, and others were blamed."""
    with opened(browser, stuttered) as page:
        page.wait_for_selector("text=Ended lately")
        before = ended(page)
        page.goto(f"{stuttered}#/live?at=20")
        page.wait_for_selector("header >> text=paused")
        page.wait_for_selector("footer >> text=step 20")
        page.click("text=To now")
        page.wait_for_selector("header >> text=live")
        page.wait_for_selector("text=Ended lately")
        assert ended(page) == before


def test_a_click_anywhere_in_a_row_leads_to_its_request(browser: Browser, stuttered: str) -> None:
    with opened(browser, stuttered) as page:
        row = page.locator("section:has(h2:text('Ended lately')) tbody tr").last
        name = row.locator("td").first.inner_text()
        row.locator("td").last.click()
        page.wait_for_selector(f"aside >> text=Request {name}")


def _lies_within(page: Page, width: int) -> bool:
    box = page.locator(f"{OPEN} p").bounding_box()
    return box is not None and box["x"] >= 0 and box["x"] + box["width"] <= width


@pytest.mark.parametrize("width", [390, 1280])
def test_one_explanation_at_a_time_within_the_window(
    browser: Browser, stuttered: str, width: int
) -> None:
    from playwright.sync_api import expect

    with opened(browser, stuttered, width=width) as page:
        page.wait_for_selector("text=Ended lately")
        page.locator("tbody .link").first.click()
        page.wait_for_selector("aside")
        for index in range(4):
            page.locator("main .figure details.how summary").nth(index).press("Enter")
            mine = page.locator("main .figure details.how").nth(index)
            expect(mine).to_have_attribute("open", "")
            expect(page.locator(OPEN)).to_have_count(1)
            wait_until(lambda: _lies_within(page, width))  # it is moved once it is open
        page.keyboard.press("Escape")
        expect(page.locator(OPEN)).to_have_count(0)
        expect(page.locator("aside")).to_have_count(1)
        page.locator("main .figure details.how summary").first.click()
        page.locator(".lead").click(position={"x": 4, "y": 4})
        expect(page.locator(OPEN)).to_have_count(0)
        page.keyboard.press("Escape")
        page.wait_for_selector("aside", state="detached")


def test_ticks_of_a_short_time_differ(browser: Browser, stuttered: str) -> None:
    """Where a view is of milliseconds, ticks had one text, or a millisecond twice."""
    with opened(browser, stuttered) as page:
        page.wait_for_selector("text=Ended lately")
        texts = page.evaluate(
            """async () => {
              const { drawAxis } = await import("./pages/timeline/drawing.js");
              const ticks = [];
              const context = new Proxy({}, {
                get: (_, name) => (name === "fillText" ? (text) => ticks.push(text) : () => {}),
                set: () => true,
              });
              const all = [];
              for (const span of [0.002, 0.013, 0.1, 7]) {
                const [begin, width] = [41.7, 1300];
                const x = (at) => ((at - begin) / span) * width;
                drawAxis(context, {}, { begin, end: begin + span, x, left: 0, width }, 0, 20);
                all.push(ticks.splice(0));
              }
              return all;
            }"""
        )
    for ticks in texts:
        assert len(ticks) > 3
        assert len(set(ticks)) == len(ticks)
        seconds = [float(tick.rpartition(":")[2]) for tick in ticks]
        gaps = [(late - early) % 60 for early, late in pairwise(seconds)]
        assert max(gaps) == pytest.approx(min(gaps), abs=1e-6)


def test_who_stuttered_leaves_its_button_under_the_pointer(
    browser: Browser, stuttered: str
) -> None:
    with opened(browser, stuttered, width=1280) as page:
        page.click("nav >> text=Timeline")
        buttons = page.locator(".timeline .buttons button")
        buttons.first.wait_for()
        before = [buttons.nth(at).bounding_box() for at in range(buttons.count())]
        page.click("text=Who stuttered?")
        page.wait_for_selector("aside")
        after = [buttons.nth(at).bounding_box() for at in range(buttons.count())]
        assert after == before


def test_the_way_back_from_a_comparison_is_what_was_compared(
    browser: Browser, stuttered: str
) -> None:
    with opened(browser, stuttered) as page:
        page.wait_for_selector("text=Ended lately")  # the steps have come
        page.click("nav >> text=Timeline")
        page.click("text=Who stuttered?")
        page.wait_for_selector("aside")
        page.click("text=Compare")
        page.wait_for_selector(".compare")
        page.click("text=Back to the timeline")
        page.wait_for_selector("text=Who stuttered?")
        assert "end=" in page.evaluate("location.hash")


def test_a_page_that_has_not_all_steps_says_at_least(browser: Browser, stuttered: str) -> None:
    """After 2,048 further steps a new page knows less of the request: its figure is a bound."""
    api = stuttered.removesuffix("/inspect/")
    with opened(browser, stuttered) as page:
        page.wait_for_selector("text=Ended lately")
        assert "\u2265" not in ended(page)
    last = httpx.get(f"{api}/v1/inspect").json()["last_step"]
    body = {"prompt": "the quick", "max_tokens": 230, "ignore_eos": True}
    while httpx.get(f"{api}/v1/inspect").json()["last_step"] < last + 2000:
        httpx.post(f"{api}/v1/completions", json=body, timeout=60).raise_for_status()
    with opened(browser, stuttered) as page:
        page.wait_for_selector("text=Ended lately")
        rows = ended(page).splitlines()
        assert any("\u2265" in row for row in rows), rows
        assert not all("\u2265" in row for row in rows), rows


def test_asked_again_the_next_stutter_is_shown(browser: Browser, stuttered: str) -> None:
    with opened(browser, stuttered) as page:
        page.wait_for_selector("text=Ended lately")
        page.click("nav >> text=Timeline")
        names = []
        for _ in range(2):
            page.click("text=Who stuttered?")
            page.wait_for_selector("aside h2")
            names.append(page.locator("aside h2").first.inner_text())
        assert names[0] != names[1]


def test_the_timeline_opens_where_the_chosen_request_ran(browser: Browser, stuttered: str) -> None:
    with opened(browser, stuttered) as page:
        page.wait_for_selector("text=Ended lately")
        page.locator("section:has(h2:text('Ended lately')) tbody tr").last.click()
        time.sleep(11)  # longer than what is in view at first
        page.click("nav >> text=Timeline")
        page.wait_for_selector("text=Who stuttered?")
        assert "end=" in page.evaluate("location.hash")
