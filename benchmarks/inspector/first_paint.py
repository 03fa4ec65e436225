"""When the page first paints, and how many bytes it loads: a fresh browser context each time.

python -m benchmarks.inspector.first_paint [--times 7] [--pages chat live timeline learn plan]

A server of pilot and Chromium share the machine. Figures are the browser's own
(``performance.getEntriesByType("paint")``), in milliseconds since it asked for the address.
"""

from __future__ import annotations

import argparse
import json
from statistics import median
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from benchmarks.inspector.traffic import serving
from tests.inspector.browser import running_browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PAGES = ("chat", "live", "timeline", "request", "kv", "model", "learn", "plan", "doctor")
PAINTS = """() => new Promise(resolve => {
  const read = () => performance.getEntriesByType("paint");
  const told = () => {
    const paints = Object.fromEntries(read().map(one => [one.name, one.startTime]));
    if (!("first-contentful-paint" in paints)) return setTimeout(told, 20);
    const files = performance.getEntriesByType("resource");
    const [page] = performance.getEntriesByType("navigation");
    const sum = files.reduce((total, file) => total + file.transferSize, page.transferSize);
    resolve({...paints, bytes: sum, files: files.length + 1});
  };
  told();
})"""
CONTENT = "header nav"  # what the page's own script draws first


def paint_once(browser: Browser, address: str) -> dict[str, Any]:
    """One look with an empty cache."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    hosts: set[str] = set()
    try:
        page = context.new_page()
        page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
        page.goto(address)
        page.wait_for_selector(CONTENT)
        drawn = page.evaluate("performance.now()")
        found = dict(page.evaluate(PAINTS))
    finally:
        context.close()
    return {**found, "navigation": drawn, "hosts": len(hosts)}


def measure(pages: tuple[str, ...], times: int) -> dict[str, Any]:
    """Medians by page; ``worst`` is the largest first contentful paint."""
    found = {}
    with serving() as url, running_browser() as browser:
        paint_once(browser, f"{url}/inspect/")  # the server's first answers are its slowest
        for name in pages:
            looks = [paint_once(browser, f"{url}/inspect/#/{name}") for _ in range(times)]
            found[name] = {
                "first_paint_ms": round(median(look["first-paint"] for look in looks)),
                "first_contentful_paint_ms": round(
                    median(look["first-contentful-paint"] for look in looks)
                ),
                "worst_ms": round(max(look["first-contentful-paint"] for look in looks)),
                "navigation_drawn_ms": round(median(look["navigation"] for look in looks)),
                "kilobytes": round(median(look["bytes"] for look in looks) / 1000, 1),
                "hosts": max(look["hosts"] for look in looks),
            }
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=7)
    parser.add_argument("--pages", nargs="+", default=list(PAGES))
    given = parser.parse_args()
    print(json.dumps(measure(tuple(given.pages), given.times), indent=1))


if __name__ == "__main__":
    main()
