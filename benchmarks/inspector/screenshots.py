"""Screenshots of every page with live traffic, in two themes, for docs/inspector or to look at.

python -m benchmarks.inspector.screenshots [PAGE ...] [--folder FOLDER --widths 1440 1024 390]

The timeline is a recording's: a browser beside the engine takes its processor, and the longest gap
is then the browser's doing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import httpx

from benchmarks.inspector.traffic import LONG, SYSTEM, send, serving
from tests.inspector.browser import opened, running_browser
from tests.inspector.fleets import fleet_page
from tests.inspector.showing import showing
from twostroke.cli.main import run

if TYPE_CHECKING:
    from playwright.sync_api import Page

FOLDER = Path(__file__).parents[2] / "docs/inspector"
PAGES = (
    *("chat", "live", "compare", "request", "kv", "model", "playground", "learn", "way"),
    *("plan", "doctor"),
)
LEARN = "chunking"  # its figure needs no model and says most at a glance
ADDRESSES = {
    "compare": "timeline?span=8",
    "learn": f"learn?chapter={LEARN}",
    "way": "learn?chapter=way",
}
QUESTIONS = ("What is a KV cache?", "Why is decode slower than prefill?")
Sizes = dict[str, tuple[int, int]]
SIZES: Sizes = {"wide": (1280, 800), "narrow": (390, 844)}
THEMES = ("light", "dark")
SECONDS = 60.0
MAX_BYTES = 200_000
# Bursts of sessions on replicas with little room, so that some requests wait.
FLEET = (
    *("llama-3.1-8b", "--gpu", "h100", "--replicas", "6", "--router", "prefix-affinity"),
    *("--workload", "sessions", "--turns", "5", "--input-len", "1500", "--think-time", "2"),
    *("--num-requests", "1500", "--rate", "70", "--burstiness", "0.15", "--max-num-seqs", "14"),
)
FLEET_STEP = "1600"


def prepare(page: Page, name: str) -> None:
    """Select what a picture of the page should show."""
    if name == "learn":
        show_chapter(page)
    elif name == "way":
        page.click("text=Show it without a guess")
        page.wait_for_selector(".way-stations", timeout=60_000)
        page.click(".way-stations >> text=Layers")
        time.sleep(1.0)
    elif name == "plan":
        page.wait_for_selector("table tbody tr", timeout=60_000)
    elif name == "doctor":
        page.locator("button >> text=/^Look/").click()
        page.wait_for_selector("text=How sure", timeout=120_000)
    elif name == "chat":
        for question in QUESTIONS:
            page.fill("#say", question)
            page.keyboard.press("Enter")
            page.wait_for_selector(".answer[aria-busy=true]")
            page.wait_for_selector(".answer[aria-busy=true]", state="detached", timeout=60_000)
        page.locator(".about >> text=Why").last.click()
        page.evaluate("document.activeElement.blur()")
        time.sleep(0.6)
    elif name == "compare":
        page.click("text=Compare")
        page.wait_for_selector(".sides canvas", timeout=60_000)
        time.sleep(0.5)
    elif name == "playground":
        page.click("text=Write 24")
        page.wait_for_selector(".answer .heat")
        page.locator(".answer .heat").nth(6).click()
        time.sleep(1.0)
        # Another token by hand, then on from there.
        page.locator(".rows li:not(.drawn) .token").nth(1).click()
        page.wait_for_selector(".answer .hand")
        page.click("text=Write 24")
        time.sleep(0.8)
        page.locator(".answer .heat").nth(6).click()
        page.fill("#top_p", "0.85")
        page.fill("#min_p", "0.06")
        page.mouse.move(0, 0)
        page.evaluate(
            "document.activeElement.blur(); document.querySelector('main').scrollTo(0, 0)"
        )
        time.sleep(0.6)


# A chat with documents, of which one does not fit, whose answer is shaded.
CHAT = {
    "messages": [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "What is a KV cache?"},
        {"role": "assistant", "content": "It keeps the keys and values of past tokens."},
        {"role": "user", "content": "Why is decode slower than prefill?"},
    ],
    "documents": [{"text": LONG * 3}, {"text": LONG * 40}],
    "context": {"max_tokens": 320},
    "max_tokens": 220,
    "temperature": 0.9,
    "seed": 7,
    "logprobs": True,
    "stream": True,
}


def ask(url: str) -> str:
    """The id of a request whose page has all there is."""
    answer = httpx.post(f"{url}/v1/chat/completions", json=CHAT, timeout=60)
    answer.raise_for_status()
    return str(json.loads(answer.text.split("\n", 1)[0].removeprefix("data: "))["id"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("pages", nargs="*", help="by default all")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--widths", type=int, nargs="+", help="by default those of the documents")
    given = parser.parse_args()
    given.folder.mkdir(exist_ok=True, parents=True)
    sizes: Sizes = SIZES
    if given.widths:
        sizes = {str(width): (width, 844 if width < 700 else 900) for width in given.widths}
    album = Album(given.folder, sizes)
    chosen = tuple(given.pages)
    if names := [name for name in PAGES if not chosen or name in chosen]:
        album.of_traffic(names)
    for name, take in (
        ("timeline", album.of_recording),
        ("speculation", album.of_speculation),
        ("fleet", album.of_fleet),
    ):
        if not chosen or name in chosen:
            take()


class Album:
    """Takes pictures into a folder, in each size and theme."""

    def __init__(self, folder: Path, sizes: Sizes) -> None:
        self._folder, self._sizes = folder, sizes

    def of_traffic(self, names: list[str]) -> None:
        # Small chunks, so that prompts are seen in several steps beside the decodes.
        with serving("--max-num-batched-tokens", "512", "--inspect-content") as url:
            # On an idle machine, as a visitor would who wants to know what it can do.
            address = f"{url}/v1/inspect/model/measure"
            httpx.post(address, json={}, timeout=120).raise_for_status()
            ended = threading.Event()

            def load() -> None:
                while not ended.is_set():
                    asyncio.run(send(url, 5.0, 12))

            thread = threading.Thread(target=load)
            thread.start()
            time.sleep(12)
            try:
                for page, size, theme in self._pages(f"{url}/inspect/"):
                    self._each(page, url, names, size, theme)
            finally:
                ended.set()
                thread.join()

    def _each(self, page: Page, url: str, names: list[str], size: str, theme: str) -> None:
        for name in names:
            chosen = f"?request={ask(url)}" if name == "request" else ""
            page.goto(f"{url}/inspect/#/{ADDRESSES.get(name, name)}{chosen}")
            time.sleep(1.2)
            prepare(page, name)
            self._keep(page, name, size, theme)
            if name == "compare":
                page.click("text=Back to the timeline")

    def of_recording(self) -> None:
        """The longest gap of traffic that ran without a browser."""
        with TemporaryDirectory() as folder:
            path = Path(folder) / "steps.jsonl"
            with serving("--max-num-batched-tokens", "512", "--record", str(path)) as url:
                asyncio.run(send(url, 8.0, 12))
            last = sum(1 for _ in path.open()) - 1
            with showing("recording", path) as address:
                for page, size, theme in self._pages(f"{address}#/timeline?at={last}"):
                    time.sleep(1.5)
                    page.click("text=Who stuttered?")
                    page.wait_for_selector("aside >> text=Its longest gap")
                    time.sleep(0.4)
                    self._keep(page, "timeline", size, theme)

    def of_speculation(self) -> None:
        """A prompt of the reader's own, beside some traffic."""
        with serving("--speculative-config", '{"method": "draft", "adaptive": false}') as url:
            load = threading.Thread(target=lambda: asyncio.run(send(url, SECONDS / 2, 2)))
            load.start()
            time.sleep(6)
            for page, size, theme in self._pages(f"{url}/inspect/#/speculation"):
                page.click(".spec-try button >> text=Run")
                page.wait_for_selector("[role=status]:has-text('token by token')", timeout=60_000)
                self._keep(page, "speculation", size, theme)
            load.join()

    def of_fleet(self) -> None:
        """A simulation of several replicas."""
        with TemporaryDirectory() as folder:
            path = Path(folder) / "steps.jsonl"
            if run(["simulate", *FLEET, "--record", str(path)]) != 0:
                sys.exit("the simulation failed")
            with fleet_page(Path(folder) / "steps.fleet.jsonl") as address:
                for page, size, theme in self._pages(f"{address}#/fleet?at={FLEET_STEP}"):
                    page.wait_for_selector(".fleet-routes a")
                    time.sleep(0.5)
                    self._keep(page, "fleet", size, theme)

    def _pages(self, address: str) -> Iterator[tuple[Page, str, str]]:
        """The page in each size and theme."""
        with running_browser() as browser:
            for size, (width, height) in self._sizes.items():
                for theme in THEMES:
                    with opened(browser, address, width, height, color_scheme=theme) as page:
                        yield page, size, theme

    def _keep(self, page: Page, name: str, size: str, theme: str) -> None:
        """Take a screenshot."""
        path = self._folder / f"{name}-{size}-{theme}.png"
        page.screenshot(path=path)
        if self._folder == FOLDER and path.stat().st_size > MAX_BYTES:
            sys.exit(f"{path} is larger than {MAX_BYTES} bytes")


def show_chapter(page: Page) -> None:
    """A chapter with its figure: the simulator has answered."""
    page.locator(".choices button").last.click()
    page.wait_for_selector(".choices .right", timeout=60_000)
    time.sleep(0.4)
    if page.viewport_size and page.viewport_size["width"] < 700:
        page.evaluate(
            "document.querySelector('main').scrollTop ="
            " document.querySelector('.learn-figure').offsetTop + 100"
        )
        time.sleep(0.2)


if __name__ == "__main__":
    main()
