"""Protects: the page in a real browser: every view of a live engine, a recording, a simulation.

Nothing is scripted: the engine is real, the steps are its own.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.inspector.browser import needs_browser, opened, violations
from tests.inspector.recorded import events
from tests.inspector.showing import showing
from tests.server.running import running_server, wait_until
from tests.server.tiny import tiny_engine
from twostroke.core.config import ObservabilityConfig

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = needs_browser
HOSTILE = "<script>document.title='hacked'</script>\u202eabc\u202c" + "\U0001f600" * 40
REMEMBERED = ObservabilityConfig(step_events=50_000)
PAGES = ("live", "timeline", "request", "kv")
SEEN = {
    "live": "text=Running",
    "timeline": "text=Who stuttered?",
    "request": "ol.stations li",
    "kv": "text=Block map",
}


@pytest.fixture(scope="module")
def live() -> Iterator[str]:
    """A server under load: five clients that ask again and again."""
    stop = threading.Event()
    with tiny_engine(observability=REMEMBERED) as engine, running_server(engine) as url:

        def ask(number: int) -> None:
            with httpx.Client(timeout=20) as client:
                while not stop.is_set():
                    body = {
                        "prompt": "the quick brown fox " * (1 + 2 * number),
                        "max_tokens": 120,
                        "ignore_eos": True,
                        "user": HOSTILE if number == 0 else f"user {number}",
                    }
                    client.post(url + "/v1/completions", json=body)

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(5)]
        for thread in threads:
            thread.start()
        yield f"{url}/inspect/"
        stop.set()
        for thread in threads:
            thread.join(timeout=30)


def step_shown(page: Page) -> int:
    return int(re.sub(r"\D", "", page.locator("footer .num").first.inner_text()))


def wait_for_step(page: Page, step: int) -> None:
    deadline = time.monotonic() + 10
    while step_shown(page) != step:
        assert time.monotonic() < deadline, f"step {step_shown(page)} is shown, not {step}"
        time.sleep(0.02)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_page_shows_a_live_engine_without_a_violation(
    browser: Browser, live: str, theme: str
) -> None:
    with opened(browser, live, color_scheme=theme) as page:
        for name in PAGES:
            page.goto(f"{live}#/{name}")
            page.wait_for_selector(SEEN[name])
            assert violations(page) == []
        page.goto(f"{live}#/live")
        page.locator("tbody .link").first.click()
        page.wait_for_selector("aside")
        assert violations(page) == []


def test_narrow_pages_do_not_scroll_sideways(browser: Browser, live: str) -> None:
    with opened(browser, live, width=390, height=844) as page:
        for name in PAGES:
            page.goto(f"{live}#/{name}")
            page.wait_for_selector(SEEN[name])
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
            assert violations(page) == []


def test_live_numbers_are_the_engines_own(browser: Browser, live: str) -> None:
    with opened(browser, live) as page:
        page.wait_for_selector(".step h2")
        page.keyboard.press("Space")
        page.wait_for_selector("footer >> text=Go on")
        step = step_shown(page)
        api = live.replace("/inspect/", "/v1/inspect")
        shown = page.locator(".step h2").inner_text()
        merged = re.search(r"in (\d+) steps", shown)  # where the page was slower than the engine
        begin = step - (int(merged[1]) if merged else 1) + 1
        steps = httpx.get(f"{api}/steps?from={begin}&to={step}").json()["steps"]
        assert f"{sum(steps['tokens'])} of {sum(steps['budget']):,} tokens" in shown
        assert f"at={step}" in page.evaluate("location.hash")


def test_a_hostile_label_is_text(browser: Browser, live: str) -> None:
    with opened(browser, live) as page:
        page.wait_for_selector("text=Running")
        page.fill("#find", "<script>")
        page.locator("tbody .link").first.click()
        page.wait_for_selector("aside dd >> text=<script>")
        shown = page.locator("aside").inner_text()
        assert "\u202e" not in shown
        assert len(shown) < 3000
        assert page.title() == "twostroke inspector"


def test_keys_do_what_the_help_says(browser: Browser, recorded: str) -> None:
    with opened(browser, f"{recorded}#/live?at=60") as page:
        wait_for_step(page, 60)
        for key, name in (("t", "timeline"), ("r", "request"), ("k", "kv"), ("l", "live")):
            page.keyboard.press("g")
            page.keyboard.press(key)
            page.wait_for_selector(SEEN[name])
            assert page.evaluate("location.hash").startswith(f"#/{name}")
        page.keyboard.press(".")
        wait_for_step(page, 61)
        page.keyboard.press(",")
        page.keyboard.press(",")
        wait_for_step(page, 59)
        page.keyboard.press("f")
        wait_for_step(page, events()[-1].step)
        page.keyboard.press("?")
        page.wait_for_selector("dialog")
        assert violations(page) == []
        page.keyboard.press("Escape")
        page.wait_for_selector("dialog", state="detached")
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.id") == "find"
        page.keyboard.type("space and g t")
        assert page.evaluate("location.hash").startswith("#/live")
        page.keyboard.press("Escape")
        page.keyboard.press("g")
        page.keyboard.press("t")
        page.wait_for_selector(SEEN["timeline"])
        page.keyboard.press("w")
        page.wait_for_selector("text=7.00 s in view")
        page.keyboard.press("a")
        page.wait_for_function("location.hash.includes('end=')")  # written with the next frame


def test_a_link_leads_to_view_moment_and_selection(browser: Browser, recorded: str) -> None:
    request_id = events()[0].scheduled[0].request_id
    with opened(browser, f"{recorded}#/timeline?request={request_id}&at=40&span=1.5") as page:
        wait_for_step(page, 40)
        page.wait_for_selector(f"aside >> text=Request {request_id}")
        page.wait_for_selector("text=1.50 s in view")
        page.locator("aside >> button >> text=Request").click()
        page.wait_for_selector("ol.stations li")
        assert page.evaluate("location.hash").startswith(f"#/request?span=1.5&request={request_id}")
        wait_for_step(page, 40)


def test_a_recording_plays_pauses_and_goes_faster(browser: Browser, recorded: str) -> None:
    with opened(browser, recorded) as page:
        page.click("footer >> text=Play")
        page.wait_for_selector("footer >> text=Pause")
        page.select_option("#speed", "10")
        wait_until(lambda: step_shown(page) > 30, 15)
        page.keyboard.press("Space")
        page.wait_for_selector("footer >> text=Play")
        step = step_shown(page)
        time.sleep(0.3)
        assert step_shown(page) == step
        running = int(page.locator("h2:has-text('Running') .num").inner_text())
        assert running == events()[step].num_running
        page.goto(f"{recorded}#/kv")
        page.wait_for_selector(".map canvas[tabindex]")  # the map of blocks, not of counts
        held = events()[step].total_blocks - events()[step].free_blocks
        page.wait_for_selector(f"text={held:,} of {events()[step].total_blocks:,} blocks held")
        time.sleep(0.3)
        assert step_shown(page) == step  # a link without a moment keeps the one that is shown


def test_every_page_shows_a_simulation(browser: Browser) -> None:
    with showing("simulation") as address, opened(browser, f"{address}#/live?at=90") as page:
        page.wait_for_selector("header >> text=simulation")
        for name in PAGES:
            page.goto(f"{address}#/{name}?at=90")
            page.wait_for_selector(SEEN[name])
            wait_for_step(page, 90)
            assert violations(page) == []


def test_a_page_asks_for_the_key_and_goes_on_with_it(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from tests.gateway.test_usage import ADMIN, gateway_with_keys

    gateway = gateway_with_keys(tmp_path_factory.mktemp("keys"))
    with tiny_engine() as engine, running_server(engine, gateway=gateway) as url:
        context = browser.new_context()
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.goto(f"{url}/inspect/")
        page.fill("#key", ADMIN)
        page.keyboard.press("Enter")
        page.wait_for_selector("text=No requests yet")
        context.close()


def test_a_key_that_sees_its_own_requests_is_shown_no_false_figure(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Counts of the whole engine are not sent to it: their zeros are no full cache."""
    from tests.gateway.test_usage import ALICE, bearer, gateway_with_keys

    gateway = gateway_with_keys(tmp_path_factory.mktemp("keys"))
    with tiny_engine() as engine, running_server(engine, gateway=gateway) as url:
        body = {"prompt": "the dog", "max_tokens": 9, "ignore_eos": True}
        answer = httpx.post(f"{url}/v1/completions", json=body, headers=bearer(ALICE))
        assert answer.status_code == 200
        context = browser.new_context()
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.goto(f"{url}/inspect/")
        page.fill("#key", ALICE)
        page.keyboard.press("Enter")
        page.wait_for_selector("text=Ended lately")
        page.wait_for_selector(".bound >> text=an admin key shows it")
        text = page.locator("main").inner_text()
        assert "KV held" not in text
        assert " of 0 tokens" not in text
        assert "those of other keys are not shown" in text or "Idle" in text
        page.goto(f"{url}/inspect/#/kv")
        page.wait_for_selector("text=an admin key shows it")
        assert "blocks held" not in page.locator("main").inner_text()
        context.close()


def test_lost_steps_are_no_gap_and_the_latest_state_hides_no_first_token(
    browser: Browser, recorded: str
) -> None:
    with opened(browser, recorded) as page:
        found = page.evaluate(
            """async () => {
              const { Store } = await import("./lib/store.js");
              const steps = (await (await fetch("../v1/inspect/steps?from=0&to=200")).json());
              const store = new Store();
              const state = await (await fetch("../v1/inspect/state?step=30")).json();
              store.learn({ ...state, ended: [], waiting: [], time: 0 });
              store.append(steps, 0, 40);
              const gaps = () => store.shares.columns.gap.filter((gap) => gap > 0).length;
              const before = gaps();
              store.append({ ...steps, missed: 100 }, 0, 1);
              const owns = [...store.requests.values()];
              return {
                firstTokens: owns.filter((one) => one.firstToken !== null).length,
                counted: store.ttft.length,
                gaps: gaps() - before,
                last: owns.filter((one) => one.lastToken !== null).length,
                shared: new Set(steps.shares.request.filter(
                  (_, at) => steps.shares.row[at] === 0)).size,
              };
            }"""
        )
    assert found["counted"] == found["firstTokens"] > 0
    assert found["gaps"] == 0
    assert found["last"] <= found["shared"]


def test_requests_steps_and_blocks_are_reached_by_keys(
    browser: Browser, recorded: str, live: str
) -> None:
    with opened(browser, f"{recorded}#/timeline?at=60") as page:
        wait_for_step(page, 60)
        page.locator(".plot canvas").focus()
        page.keyboard.press("ArrowDown")
        page.wait_for_selector("aside >> text=Request")
        page.keyboard.press("ArrowLeft")
        page.wait_for_selector("aside >> text=Step 60")
        page.keyboard.press("ArrowLeft")
        page.wait_for_selector("aside >> text=Step 59")
    with opened(browser, f"{live}#/kv") as page:
        page.wait_for_selector(".map canvas[tabindex]")
        page.wait_for_timeout(200)  # until it is drawn
        page.locator(".map canvas").focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_selector("aside >> text=Block 0")
        page.keyboard.press("ArrowRight")
        page.wait_for_selector("aside >> text=Block 1")
        page.keyboard.press("ArrowDown")
        page.wait_for_selector("aside >> text=/Block [1-9][0-9]/")  # a row down, or the last one
        assert violations(page) == []
