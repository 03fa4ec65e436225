"""Protects: one request's way, from keys to the stream, in a real browser over pilot itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.inspector.browser import needs_browser, opened, violations
from tests.inspector.pages.test_learn_browser import SLOW_MS, ask, open_chapter, predict
from tests.server.running import running_process, running_server
from tests.server.tiny import tiny_engine

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = needs_browser
MESSAGE = "Why is decode slower than prefill?"
SHOWN = ".way-shown"
TIMED = ("Key", "Context", "Tokens", "Queue", "Prefill", "Draw", "Decode", "Stream")


@pytest.fixture(scope="module")
def live() -> Iterator[str]:
    """The address of the page over pilot."""
    with running_process("-m", "twostroke", "serve", "pilot", "--port", "0") as server:
        yield f"{server.url()}/inspect/"


def station(page: Page, name: str) -> str:
    """What a station says, once it is open."""
    page.click(f".way-stations button:has(span:text-is('{name}'))")
    page.wait_for_selector(f"{SHOWN} h3:text-is('{name}')")
    return page.locator(SHOWN).inner_text()


def send(page: Page, message: str) -> None:
    page.fill("#way-text", message)
    page.click("text=Send it")
    page.wait_for_selector(f"{SHOWN} pre:has-text('{message}')", timeout=SLOW_MS)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_stations_are_those_of_a_real_request(browser: Browser, live: str, theme: str) -> None:
    with opened(browser, live, color_scheme=theme, height=1400) as page:
        open_chapter(page, live, "way")
        said = predict(page, 2)
        assert re.search(r"Before the engine .* in the queue .* in the model", said)
        send(page, MESSAGE)
        listed = page.locator(".way-stations").inner_text()
        for name in TIMED:
            assert re.search(rf"{name}\s+[\d.]+\s(µs|ms|s)", listed), name
        assert "/v1/chat/completions" in station(page, "Key")
        assert "this server has no keys" in station(page, "Key")
        context = station(page, "Context")
        assert f"<|im_start|>user\n{MESSAGE}<|im_end|>\n<|im_start|>assistant" in context
        body = {"messages": [{"role": "user", "content": MESSAGE}]}
        tokens = httpx.post(live.replace("inspect/", "tokenize"), json=body).json()["tokens"]
        assert re.findall(r"\b\d+$", station(page, "Tokens"), re.MULTILINE) == [
            str(token) for token in tokens
        ]
        assert "Nothing held it back" in station(page, "Queue") or "It waited" in station(
            page, "Queue"
        )
        prefill = station(page, "Prefill")
        assert re.search(r"\d+ tokens? went through all layers in 1 step", prefill)
        assert "forward" in prefill
        assert re.search(r"\d+ steps?, each with the newest token", station(page, "Decode"))
        stream = station(page, "Stream")
        assert "This browser had the first piece after" in stream
        assert page.locator(f"{SHOWN} .learn-strokes i").count() > 1
        assert violations(page) == []
        page.click("text=This request on the page Request")
        page.wait_for_selector("ol.stations >> text=tokenised")


def test_inside_the_model_attention_is_pilots_own(browser: Browser, live: str) -> None:
    with opened(browser, live, height=1400) as page:
        open_chapter(page, live, "way")
        page.click("text=Show it without a guess")
        page.wait_for_selector(".way-stations", timeout=SLOW_MS)
        send(page, MESSAGE)
        assert "stands for row" in station(page, "Embedding")
        assert "256 numbers" in page.locator(SHOWN).inner_text()
        layers = station(page, "Layers")
        assert "Computed by pilot itself" in layers
        first = re.search(r"would go on with (.*)", layers)
        page.locator(f"{SHOWN} label:has-text('layer') input").fill("7")
        page.wait_for_selector(f"{SHOWN} >> text=8 of 8")
        last = re.search(r"would go on with (\S+)", page.locator(SHOWN).inner_text())
        assert first is not None
        assert last is not None
        body = {
            "tokens": httpx.post(
                live.replace("inspect/", "tokenize"),
                json={"messages": [{"role": "user", "content": MESSAGE}]},
            ).json()["tokens"]
        }
        inside = httpx.post(live.replace("inspect/", "v1/inspect/inside"), json=body, timeout=60)
        heads = inside.json()["layers"][7]["attention"]
        number = len(body["tokens"])
        row = [sum(head[-number + at] for head in heads) / 40 for at in range(number)]
        shares = [
            float(share)
            for share in re.findall(r"([\d.,]+)\s%", page.locator(f"{SHOWN} table").inner_text())
        ]
        assert shares == pytest.approx(sorted(row, reverse=True)[: len(shares)], rel=0.01)
        page.locator(".way-looks button").first.click()
        page.wait_for_selector(f"{SHOWN} td >> text=100")  # the first token sees itself alone
        assert violations(page) == []
        logits = station(page, "Logits")
        assert last[1] in logits
        draw = station(page, "Draw")
        assert "the request had drawn the same token" in draw
        assert violations(page) == []


def test_the_same_again_is_found_in_the_cache(browser: Browser, live: str) -> None:
    with opened(browser, live) as page:
        open_chapter(page, live, "way")
        page.click("text=Show it without a guess")
        page.wait_for_selector(".way-stations", timeout=SLOW_MS)
        send(page, "Tell me of blocks, and of the cache that keeps them all.")
        said = ask(page)
        assert re.search(r"tokens were in the prefix cache then, 16 now", said)


@pytest.mark.parametrize("width", [390, 1024])
def test_it_fits_small_screens(browser: Browser, live: str, width: int) -> None:
    with opened(browser, live, width=width, height=844) as page:
        open_chapter(page, live, "way")
        page.click("text=Show it without a guess")
        page.wait_for_selector(".way-stations", timeout=SLOW_MS)
        for name in ("Keyboard", "Layers", "Draw", "Stream"):
            station(page, name)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert (
                page.evaluate(
                    "document.querySelector('.learn-figure').scrollWidth -"
                    " document.querySelector('.learn-figure').clientWidth"
                )
                <= 0
            ), name
        assert violations(page) == []


def test_another_model_shows_pilot_inside_and_says_so(browser: Browser) -> None:
    with (
        tiny_engine() as engine,
        running_server(engine) as url,
        opened(browser, f"{url}/inspect/", height=1400) as page,
    ):
        open_chapter(page, f"{url}/inspect/", "way")
        page.click("text=Show it without a guess")
        page.wait_for_selector(".way-stations", timeout=SLOW_MS)
        assert "the embedded model, with its own tokens" in station(page, "Layers")
