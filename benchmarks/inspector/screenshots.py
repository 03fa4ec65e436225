"""Screenshots of every page with live traffic, at two widths in two themes, for docs/inspector.

python -m benchmarks.inspector.screenshots [PAGE ...]

The timeline is a recording's: a browser beside the engine takes its processor, and the longest gap
is then the browser's doing.
"""

from __future__ import annotations

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
PAGES = ("chat", "live", "compare", "request", "kv", "model", "playground", "learn")
LEARN = "chunking"  # its figure needs no model and says most at a glance
ADDRESSES = {"compare": "timeline?span=8", "learn": f"learn?chapter={LEARN}"}
QUESTIONS = ("What is a KV cache?", "Why is decode slower than prefill?")
SIZES = {"wide": (1280, 800), "narrow": (390, 844)}
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
    FOLDER.mkdir(exist_ok=True)
    of_traffic()
    of_recording()
    of_speculation()
    of_fleet()


def of_traffic() -> None:
    # Small chunks, so that prompts are seen in several steps beside the decodes.
    with serving("--max-num-batched-tokens", "512", "--inspect-content") as url:
        # On an idle machine, as somebody would who wants to know what it can do.
        address = f"{url}/v1/inspect/model/measure"
        httpx.post(address, json={}, timeout=120).raise_for_status()
        load = threading.Thread(target=lambda: asyncio.run(send(url, SECONDS, 12)))
        load.start()
        time.sleep(12)
        with running_browser() as browser:
            for size, (width, height) in SIZES.items():
                for theme in THEMES:
                    address = f"{url}/inspect/"
                    with opened(browser, address, width, height, color_scheme=theme) as page:
                        for name in sys.argv[1:] or PAGES:
                            chosen = f"?request={ask(url)}" if name == "request" else ""
                            page.goto(f"{address}#/{ADDRESSES.get(name, name)}{chosen}")
                            time.sleep(1.2)
                            prepare(page, name)
                            keep(page, name, size, theme)
                            if name == "compare":
                                page.click("text=Back to the timeline")
        load.join()


def of_recording() -> None:
    """The longest gap of traffic that ran without a browser."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "steps.jsonl"
        with serving("--max-num-batched-tokens", "512", "--record", str(path)) as url:
            asyncio.run(send(url, 8.0, 12))
        last = sum(1 for _ in path.open()) - 1
        with showing("recording", path) as address:
            for page, size, theme in pages(f"{address}#/timeline?at={last}"):
                time.sleep(1.5)
                page.click("text=Who stuttered?")
                page.wait_for_selector("aside >> text=Its longest gap")
                time.sleep(0.4)
                keep(page, "timeline", size, theme)


def of_speculation() -> None:
    """A prompt of the reader's own, beside some traffic."""
    with serving("--speculative-config", '{"method": "draft", "adaptive": false}') as url:
        load = threading.Thread(target=lambda: asyncio.run(send(url, SECONDS / 2, 2)))
        load.start()
        time.sleep(6)
        for page, size, theme in pages(f"{url}/inspect/#/speculation"):
            page.click(".spec-try button >> text=Run")
            page.wait_for_selector("[role=status]:has-text('token by token')", timeout=60_000)
            keep(page, "speculation", size, theme)
        load.join()


def of_fleet() -> None:
    """A simulation of several replicas."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "steps.jsonl"
        if run(["simulate", *FLEET, "--record", str(path)]) != 0:
            sys.exit("the simulation failed")
        with fleet_page(Path(folder) / "steps.fleet.jsonl") as address:
            for page, size, theme in pages(f"{address}#/fleet?at={FLEET_STEP}"):
                page.wait_for_selector(".fleet-routes a")
                time.sleep(0.5)
                keep(page, "fleet", size, theme)


def pages(address: str) -> Iterator[tuple[Page, str, str]]:
    """The page in each size and theme."""
    with running_browser() as browser:
        for size, (width, height) in SIZES.items():
            for theme in THEMES:
                with opened(browser, address, width, height, color_scheme=theme) as page:
                    yield page, size, theme


def keep(page: Page, name: str, size: str, theme: str) -> None:
    """Take a screenshot for the documents."""
    path = FOLDER / f"{name}-{size}-{theme}.png"
    page.screenshot(path=path)
    if path.stat().st_size > MAX_BYTES:
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
