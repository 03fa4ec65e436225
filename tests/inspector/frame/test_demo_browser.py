"""Protects: demo traffic in a real browser shows on a real engine what it says it shows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.inspector.browser import needs_browser, opened, violations
from tests.inspector.showing import showing
from tests.server.running import running_server, wait_until
from tests.server.tiny import CONTEXT, tiny_engine
from twostroke.core.config import ObservabilityConfig

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = needs_browser
EMPTY_PAGES = ("live", "timeline", "request", "kv")
OVER = ".demo-strip >> text=Close"
# Stops a run as its first requests are sent: a click from here may come after its end.
STOP_EARLY = """() => new MutationObserver((_, watch) => {
  const strip = document.querySelector(".demo-strip");
  if (!strip?.textContent.includes("of 9 requests sent")) return;
  watch.disconnect();
  [...strip.querySelectorAll("button")].find((one) => one.textContent.includes("Stop")).click();
}).observe(document.body, { childList: true, subtree: true, characterData: true })"""


@contextmanager
def empty_server(**options: Any) -> Iterator[str]:
    """The address of a server that has answered nothing."""
    with (
        tiny_engine(observability=ObservabilityConfig(step_events=20_000), **options) as engine,
        running_server(engine) as url,
    ):
        yield url


def send(page: Page, title: str) -> None:
    page.click(f".demo button >> text={title}")
    page.wait_for_selector(".demo-strip >> text=answered")
    page.wait_for_selector(OVER, timeout=60_000)
    assert "are answered" in page.locator(".demo-strip").inner_text()


def asked(url: str, path: str) -> Any:
    return httpx.get(f"{url}/v1/inspect{path}").json()


def notes(url: str, name: str) -> list[Any]:
    return [one for note in asked(url, "/steps?count=4096")["notes"] for one in note[name] or []]


@pytest.mark.parametrize("width", [1440, 1024, 390])
def test_empty_pages_explain_themselves_and_offer_it(browser: Browser, width: int) -> None:
    with (
        empty_server() as url,
        opened(browser, f"{url}/inspect/#/live", width=width, color_scheme="dark") as page,
    ):
        for name in EMPTY_PAGES:
            page.goto(f"{url}/inspect/#/{name}")
            page.wait_for_selector(".demo button")
            assert page.locator(".demo button").count() == 4
            assert violations(page) == []
            assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_long_prompt_makes_chats_stutter(browser: Browser) -> None:
    with empty_server() as url, opened(browser, f"{url}/inspect/#/timeline") as page:
        send(page, "A long prompt amid chats")
        assert violations(page) == []
        ended = asked(url, "/state")["ended"]
        assert len(ended) == 9
        prompts = sorted(request["num_prompt_tokens"] for request in ended)
        assert prompts == [40] * 8 + [CONTEXT - 16]
        assert {request["labels"]["user"] for request in ended} == {"demo"}
        page.click(".demo-strip >> text=Close")
        assert page.locator(".demo-strip").count() == 0
        page.click("button >> text=Who stuttered?")
        page.wait_for_selector("aside")


def test_a_shared_prefix_is_found(browser: Browser) -> None:
    with empty_server() as url, opened(browser, f"{url}/inspect/#/kv") as page:
        send(page, "A shared prefix")
        ended = asked(url, "/state")["ended"]
        cached = sorted(request["num_cached_tokens"] for request in ended)
        assert cached[0] == 0
        assert all(tokens >= CONTEXT // 2 - 16 for tokens in cached[1:])
        assert len(cached) == 8
        page.wait_for_selector("[aria-label^='Tree of']")
        page.click(".demo-strip >> text=Close")
        page.goto(f"{url}/inspect/#/live")
        send(page, "A shared prefix")  # another run finds nothing of this one
        again = asked(url, "/state")["ended"][8:]
        assert sum(request["num_cached_tokens"] < 16 for request in again) == 1


def test_kv_pressure_preempts(browser: Browser) -> None:
    with (
        empty_server(kv_cache_memory=2**17) as url,
        opened(browser, f"{url}/inspect/#/live") as page,
    ):
        send(page, "KV pressure")
        assert len(notes(url, "preempted")) > 0
        page.click(".demo-strip a")
        page.wait_for_selector("text=in view")
        assert violations(page) == []


def test_an_overload_queues(browser: Browser) -> None:
    with empty_server() as url, opened(browser, f"{url}/inspect/#/live") as page:
        send(page, "An overload")
        steps = asked(url, "/steps?count=4096")["steps"]
        assert max(steps["waiting"]) >= 12
        assert "max_num_seqs" in {held[1] for held in notes(url, "held_back")}
        assert len(asked(url, "/state")["ended"]) == 24


def test_it_can_be_sent_again_without_leaving_the_page(browser: Browser) -> None:
    """The buttons stayed grey after the first time."""
    with empty_server() as url, opened(browser, f"{url}/inspect/#/live") as page:
        for _ in range(2):
            send(page, "A shared prefix")
            page.click(".demo-strip >> text=Close")
        assert len(asked(url, "/state")["ended"]) == 16


def test_where_priorities_count_it_lets_others_go_before(browser: Browser) -> None:
    with (
        empty_server(policy="priority") as url,
        opened(browser, f"{url}/inspect/#/live") as page,
    ):
        sent: list[Any] = []
        page.on("request", lambda request: sent.append((request.url, request.post_data)))
        send(page, "A shared prefix")
        bodies = [json.loads(body) for url, body in sent if url.endswith("/v1/completions")]
        assert len(bodies) >= 2
        assert all(body["priority"] > 0 for body in bodies)


def test_it_can_be_stopped_and_says_why_it_would_show_nothing(browser: Browser) -> None:
    memory = 2**25  # more tokens than a demo fills
    with (
        empty_server(kv_cache_memory=memory) as url,
        opened(browser, f"{url}/inspect/#/live") as page,
    ):
        assert page.locator(".demo button >> text=KV pressure").is_disabled()
        page.wait_for_selector("text=a short demo does not fill it")
        page.evaluate(STOP_EARLY)
        page.click(".demo button >> text=A long prompt")
        page.wait_for_selector(".demo-strip >> text=stopped after")
        wait_until(lambda: asked(url, "/state")["running"] == [])
        assert violations(page) == []


def test_a_refusal_is_told(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> None:
    from tests.gateway.test_usage import ALICE
    from twostroke.gateway.gateway import Gateway
    from twostroke.gateway.options import GatewayOptions

    gateway = Gateway(GatewayOptions(api_key=(ALICE,), tokens_per_minute=100))
    with tiny_engine() as engine, running_server(engine, gateway=gateway) as url:
        context = browser.new_context()
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.goto(f"{url}/inspect/#/live")
        page.fill("#key", ALICE)
        page.keyboard.press("Enter")
        page.click(".demo button >> text=An overload")
        page.wait_for_selector(".demo-strip.failed >> text=the server refused it")
        context.close()


def test_a_recording_offers_none(browser: Browser) -> None:
    with showing("recording") as address, opened(browser, f"{address}#/live?at=30") as page:
        page.wait_for_selector("footer >> text=step 30")
        assert page.locator(".demo").count() == 0
