"""Protects: what page Next token asks the server for does not pass for a user's request."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.inspector.browser import needs_browser, opened
from tests.server.running import running_server, wait_until
from tests.server.tiny import tiny_engine

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = needs_browser
SIMULATED = 60_000  # milliseconds
USERS = 3
OWN = "of page Next token"


def ask(url: str, prompt: str) -> str:
    body = {"prompt": prompt, "max_tokens": 40, "ignore_eos": True}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=30)
    return str(answer.json()["id"])


def own(url: str, tokens: int) -> str:
    body: dict[str, Any] = {"prompt": "the dog", "max_tokens": tokens, "ignore_eos": True}
    return str(httpx.post(f"{url}/v1/inspect/distribution", json=body).json()["id"])


@pytest.fixture(scope="module")
def live() -> Iterator[str]:
    """Three requests at once, one alone, then two of page Next token: a draw, and an answer."""
    with tiny_engine() as engine, running_server(engine) as url:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda number: ask(url, "the quick fox " * (1 + number)), range(USERS)))
        ask(url, "alone")
        own(url, 1)
        own(url, 30)
        yield url


def records(url: str) -> list[dict[str, Any]]:
    """Those that have ended, the latest first."""
    ended: list[dict[str, Any]] = httpx.get(f"{url}/v1/inspect/state").json()["ended"]
    return sorted(ended, key=lambda record: float(record["arrival_time"]), reverse=True)


def test_they_are_marked(live: str) -> None:
    marks = [record["labels"].get("inspector") for record in records(live)]
    assert marks == ["next token", "next token", *[None] * (USERS + 1)]


def test_the_newest_request_and_step_are_a_users(browser: Browser, live: str) -> None:
    alone = records(live)[2]["request_id"]
    with opened(browser, f"{live}/inspect/#/request") as page:
        page.wait_for_selector("ol.stations li")
        assert page.input_value("#which") == alone
        options = page.locator("#which option").all_inner_texts()
        assert [OWN in text for text in options] == [True, True, *[False] * (USERS + 1)]
        last = page.evaluate("import('./lib/store.js').then(({ store }) => store.lastStep)")
        page.keyboard.press("g")
        page.keyboard.press("l")
        page.wait_for_selector(".panel.step h2")
        shown = int(re.sub(r"\D", "", page.locator(".panel.step h2 button").inner_text()))
        assert shown == last - 31  # a draw is a step, and the answer as many as its tokens
        ended = page.locator("section:has(h2:text('Ended lately')) tbody tr")
        assert ended.count() == USERS + 1
        assert "4 in the last minute" in page.locator("h2:text('Ended lately')").inner_text()


def test_their_times_are_in_no_figure(browser: Browser, live: str) -> None:
    with opened(browser, f"{live}/inspect/#/live") as page:
        page.wait_for_selector("text=Ended lately")
        counts = page.evaluate(
            "import('./lib/store.js').then(({ store }) => [store.ttft.length, store.tpot.length])"
        )
        assert counts == [USERS + 1, USERS + 1]


def test_a_comparison_is_of_requests_that_ran_at_once(browser: Browser, live: str) -> None:
    with opened(browser, f"{live}/inspect/#/timeline?") as page:
        page.wait_for_selector("text=Who stuttered?")
        wait_until(lambda: page.locator("button:text('Compare')").is_enabled(), 15)
        page.click("text=Compare")
        page.wait_for_selector("text=Both sides are simulated", timeout=SIMULATED)
        lead = page.locator(".compare .lead").inner_text()
        assert f"these {USERS} requests take" in lead


def test_one_request_alone_is_compared_in_good_grammar(browser: Browser) -> None:
    with tiny_engine() as engine, running_server(engine) as url:
        ask(url, "alone")
        own(url, 5)
        with opened(browser, f"{url}/inspect/#/timeline") as page:
            page.wait_for_selector("text=Who stuttered?")
            wait_until(lambda: page.locator("button:text('Compare')").is_enabled(), 15)
            page.click("text=Compare")
            page.wait_for_selector("text=Both sides are simulated", timeout=SIMULATED)
            assert "this request takes" in page.locator(".compare .lead").inner_text()
