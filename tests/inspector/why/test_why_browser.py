"""Protects: Live says what bounds the server, and a request what it waited for."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.inspector.browser import needs_browser, opened, violations
from tests.inspector.model.described import describe_tiny
from tests.inspector.recorded import events, recording
from tests.inspector.showing import showing
from tests.server.running import running_server
from tests.server.tiny import tiny_engine
from twostroke.simulator.cost.shown_costs import facts_of_recording

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = needs_browser


@pytest.fixture(scope="module")
def simulated() -> Iterator[str]:
    with showing("simulation", recording(), facts_of_recording("llama-3.1-8b", "h100")) as address:
        yield address


def test_live_says_what_bounds_the_server_and_leads_to_the_roofline(
    browser: Browser, simulated: str
) -> None:
    with opened(browser, f"{simulated}#/live?at=300") as page:
        page.wait_for_selector(".bound >> text=Bound by its queue")
        lead = page.locator(".bound").inner_text()
        assert "all places are taken" in lead
        assert "memory bandwidth is the limit" in lead
        panel = page.locator(".whypanel").inner_text()
        assert "No further user" in panel
        assert "all places taken" in panel
        assert violations(page) == []
        page.click(".bound a")
        page.wait_for_selector("text=Decode of one request computes")


def test_after_the_queue_more_users_fit(browser: Browser, simulated: str) -> None:
    last = events()[-1].step - 40
    with opened(browser, f"{simulated}#/live?at={last}") as page:
        page.wait_for_selector(".whypanel >> text=more users like these fit now")
        page.wait_for_selector(".bound >> text=Bound by memory bandwidth")


@pytest.mark.parametrize("width", [390, 1024])
def test_a_request_says_what_it_waited_for(browser: Browser, simulated: str, width: int) -> None:
    late = max(
        (event.time - share.queued_since, share.request_id)
        for event in events()
        for share in event.scheduled
        if share.queued_since is not None
    )[1]
    with opened(browser, f"{simulated}#/request?request={late}", width=width) as page:
        page.wait_for_selector(".whypanel li >> text=all places taken")
        assert "before its first step" in page.locator(".whypanel").inner_text()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert violations(page) == []
    with opened(browser, f"{simulated}#/live?request={late}", width=width) as page:
        page.wait_for_selector("aside >> text=/in the queue before its first step: .*taken/")


def test_the_panel_beside_live_names_how_many_places_were_taken(browser: Browser) -> None:
    body = {"prompt": "the quick", "max_tokens": 60, "ignore_eos": True}
    with tiny_engine(max_num_seqs=2) as engine, running_server(engine) as url:
        with ThreadPoolExecutor() as pool:
            answers = [
                pool.submit(httpx.post, f"{url}/v1/completions", json=body) for _ in range(6)
            ]
            ids = [answer.result().json()["id"] for answer in answers]
        waits = [httpx.get(f"{url}/v1/inspect/waits?id={name}").json() for name in ids]
        late = max(waits, key=lambda each: float(each["queue"].get("max_num_seqs", 0)))
        with opened(browser, f"{url}/inspect/#/live?request={late['request_id']}") as page:
            page.wait_for_selector("aside >> text=/before its first step: all 2 places were taken/")


def test_a_server_that_rests_says_what_bound_it(browser: Browser) -> None:
    with (
        tiny_engine() as engine,
        running_server(engine, describe_model=describe_tiny) as url,
    ):
        for tokens in (40, 1):  # the latest step is a single prompt
            body = {"prompt": "the quick brown fox", "max_tokens": tokens, "ignore_eos": True}
            httpx.post(f"{url}/v1/completions", json=body).raise_for_status()
        with opened(browser, f"{url}/inspect/#/live") as page:
            page.wait_for_selector(
                ".bound >> text=/Waits for requests.*When it last ran: bound by/"
            )
            page.wait_for_selector(".whypanel >> text=like these fit beside those of lately")
            page.wait_for_selector(".whypanel >> text=(a tenth longer than now; --target sets")


@pytest.mark.parametrize(
    ("model", "words"),
    [(None, "nothing tells which model ran"), ("llama-3.1-8b", "no sheet describes this device")],
)
def test_what_is_not_known_is_said(browser: Browser, model: str | None, words: str) -> None:
    facts = facts_of_recording(model, None) if model else None
    with showing("simulation", recording(), facts) as address:
        with opened(browser, f"{address}#/live?at={events()[-1].step - 40}") as page:
            page.wait_for_selector(f".bound >> text=What bounds its steps is not known: {words}")
            page.click(".bound a")
            page.wait_for_selector("h2")
        with opened(browser, f"{address}#/live?at=300") as page:
            # A queue is told all the same.
            page.wait_for_selector(".bound >> text=Bound by its queue: all places are taken")
