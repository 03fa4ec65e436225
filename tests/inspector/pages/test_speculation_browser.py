"""Protects: the page of speculation: a prompt of one's own with its drafts, figures, reasons."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.inspector.browser import needs_browser, opened, violations
from tests.inspector.showing import showing
from tests.inspector.test_browser import HOSTILE, step_shown
from tests.server.running import running_server, wait_until
from twostroke.cli.main import run
from twostroke.core.config import EngineConfig
from twostroke.engine.clients.thread import AsyncEngine
from twostroke.inspector.source import Kind
from twostroke.startup import load_engine

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = needs_browser
ALWAYS = '{"method": "draft", "adaptive": false}'
PROMPT = "What is a KV cache?"


@pytest.fixture(scope="module")
def live() -> Iterator[str]:
    """Pilot, guessed by its smaller sister, always as far as may be."""
    options = {"model": "pilot", "speculative_config": ALWAYS, "max_model_len": 512}
    client = AsyncEngine(load_engine(EngineConfig.from_flat(options)))
    try:
        with running_server(client, served_model_name=("pilot",)) as url:
            body = {"prompt": "The KV cache", "max_tokens": 40, "user": HOSTILE}
            assert httpx.post(f"{url}/v1/completions", json=body, timeout=60).status_code == 200
            yield f"{url}/inspect/#/speculation"
    finally:
        client.close()


@cache
def guessed() -> Path:
    """A simulation whose depth adapts: many guesses come true."""
    path = Path(mkdtemp()) / "guessed.jsonl"
    flags = ["--speculation", "ngram", "--acceptance", "0.8", "--num-requests", "12", "--rate", "6"]
    assert run(["simulate", "llama-3.1-8b", "--gpu", "h100", *flags, "--record", str(path)]) == 0
    return path


def ask(page: Page, prompt: str = PROMPT) -> str:
    """Run a prompt; the verdict below its answer."""
    page.fill("#spec-prompt", prompt)
    page.select_option("#spec-length", "64")
    page.click(".spec-try button >> text=Run")
    verdict = page.locator(".spec-try [role=status]")
    verdict.locator("text=/token by token|were cut|Nothing was guessed/").wait_for(timeout=60_000)
    return verdict.inner_text()


def test_an_own_prompt_shows_its_right_and_wrong_guesses(browser: Browser, live: str) -> None:
    """The text is the API's own, and the counts are those of its usage."""
    url = live.split("/inspect")[0]
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": 64,
        "temperature": 0,
    }
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).json()
    usage = answer["usage"]
    details = usage["completion_tokens_details"]
    with opened(browser, live) as page:
        verdict = ask(page)
        assert "Both answers are the same, token by token." in verdict
        assert f"{usage['completion_tokens']} tokens in" in verdict
        right = details["accepted_prediction_tokens"]
        drafted = right + details["rejected_prediction_tokens"]
        assert f"{right} of {drafted} guesses were right" in verdict
        text = page.evaluate(
            "() => { const copy = document.querySelector('.spec-text').cloneNode(true);"
            " copy.querySelectorAll('rt, .muted').forEach(node => node.remove());"
            " return copy.textContent; }"
        )
        assert text == answer["choices"][0]["message"]["content"]
        assert page.locator(".spec-text ins").count() > 0
        page.click("text=Show its steps")
        page.wait_for_selector("aside >> text=Request")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_has_no_violation(browser: Browser, live: str, theme: str) -> None:
    with opened(browser, live, color_scheme=theme) as page:
        ask(page)
        page.wait_for_selector(".spec-positions canvas")
        assert violations(page) == []


def test_a_narrow_page_does_not_scroll_sideways(browser: Browser, live: str) -> None:
    with opened(browser, live, width=390, height=844) as page:
        ask(page)
        page.wait_for_selector(".spec-depth canvas")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert violations(page) == []


def test_figures_are_those_of_the_steps(browser: Browser) -> None:
    with showing("recording", guessed()) as address:
        steps = httpx.get(address.replace("/inspect/", "/v1/inspect/steps?from=0&to=150")).json()
        shares = steps["shares"]
        rows = [at for at, fresh in enumerate(shares["new"]) if fresh and not shares["prompt"][at]]
        drafted, right = (sum(shares[name][at] for at in rows) for name in ("drafts", "accepted"))
        assert drafted > right > 0
        with opened(browser, f"{address}#/speculation?at=150") as page:
            page.wait_for_selector(f"text={right:,} of {drafted:,} guessed tokens")
            tokens = sum(shares["new"][at] for at in rows)
            page.wait_for_selector(f"text={tokens:,} tokens in {len(rows):,} passes")
            first = sum(shares["accepted"][at] > 0 for at in rows)
            tried = sum(shares["drafts"][at] > 0 for at in rows)
            label = page.locator(".spec-positions canvas").get_attribute("aria-label") or ""
            share = float((re.search(r"1: ([\d.]+)", label) or ["", "-1"])[1])
            assert share == pytest.approx(100 * first / tried, abs=0.06)
            page.wait_for_selector("text=The most tokens a second")
            assert page.locator(".spec-try").count() == 0  # no engine answers here
            assert violations(page) == []


def test_the_page_says_what_to_do_where_nothing_is_guessed(browser: Browser) -> None:
    kinds: list[tuple[Kind, str]] = [
        ("recording", "--record steps.jsonl"),
        ("simulation", "--acceptance"),
    ]
    for kind, words in kinds:
        with showing(kind) as address, opened(browser, f"{address}#/speculation?at=90") as page:
            page.wait_for_selector(f"pre >> text={words}")
            page.wait_for_selector("text=No guess was verified")
            assert violations(page) == []


def _shows_after(page: Page, key: str, selector: str) -> bool:
    """A canvas is there before it listens to keys and before its steps have come."""
    page.keyboard.press(key)
    page.wait_for_timeout(200)
    return page.locator(selector).count() > 0


def test_keys_lead_to_the_page_and_through_its_passes(browser: Browser) -> None:
    with (
        showing("simulation", guessed()) as address,
        opened(browser, f"{address}#/live?at=120") as page,
    ):
        page.wait_for_selector("text=Running")
        page.keyboard.press("g")
        page.keyboard.press("s")
        page.wait_for_selector(".spec-depth canvas")
        page.locator(".spec-depth canvas").focus()
        wait_until(lambda: _shows_after(page, "ArrowLeft", "aside >> text=Step"))
        before = page.locator("aside h2").first.inner_text()
        page.keyboard.press("ArrowLeft")
        page.wait_for_function(
            "before => document.querySelector('aside h2').innerText !== before", arg=before
        )
        page.keyboard.press("Escape")
        page.wait_for_selector("aside", state="detached")
        assert step_shown(page) == 120


def test_hostile_prompts_and_answers_are_text(browser: Browser, live: str) -> None:
    with opened(browser, live) as page:
        ask(page, HOSTILE + " <img src=x onerror=alert(1)> Say it again.")
        assert page.title() == "twostroke inspector"
        assert page.locator(".spec-text script, .spec-text img").count() == 0
        assert "\u202e" not in page.locator(".spec-text").inner_text()
