"""A real Chromium for the tests of the page, where there is one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
AXE = Path(__file__).parent / "axe/axe.min.js"  # axe-core 4.14.1 as npm has it, MPL-2.0
TIMEOUT_MS = 15_000

needs_browser = pytest.mark.skipif(
    not Path(CHROMIUM).exists(), reason="there is no Chromium (apt-get install chromium)"
)


@contextmanager
def running_browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=FLAGS, timeout=60_000, handle_sigint=False
        )
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(
    browser: Browser, address: str, width: int = 1280, height: int = 800, **options: Any
) -> Iterator[Page]:
    """A page whose console, policy and scripts must stay without an error."""
    context = browser.new_context(viewport={"width": width, "height": height}, **options)
    page = context.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    trouble: list[str] = []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on(
        "console",
        lambda message: trouble.append(message.text) if message.type == "error" else None,
    )
    foreign: list[str] = []
    page.on(
        "request",
        lambda request: (
            None
            if request.url.startswith((address.split("/inspect")[0], "data:", "blob:"))
            else foreign.append(request.url)
        ),
    )
    try:
        page.goto(address)
        yield page
        assert trouble == []
        assert foreign == []
    finally:
        context.close()


def violations(page: Page) -> list[str]:
    """What axe finds against WCAG 2.1 A and AA, a line each."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate(
        "async () => (await axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a',"
        " 'wcag21aa']})).violations.flatMap(rule => rule.nodes.map(node =>"
        " `${rule.id}: ${node.target} ${node.failureSummary}`))"
    )
    return list(found)
