"""Protects: nine questions about a server are answered within three clicks from ``/``.

Demo traffic has run; the reader opens the server's address and knows nothing of the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.inspector.browser import needs_browser, opened, running_browser
from tests.server.running import running_process, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = needs_browser
MOST_CLICKS = 3
SLOW_MS = 120_000  # demo traffic and simulations take as long as the machine lets them
# The latest runs last: its requests waited for places.
DEMOS = ("A long prompt amid chats", "A shared prefix", "An overload")
SERVE = (
    *("-m", "twostroke", "serve", "pilot", "--port", "0", "--max-num-seqs", "8"),
    *("--speculative-config", '{"method": "draft", "adaptive": false}'),
)


class Question(NamedTuple):
    """What is asked, what is clicked, and where the answer stands, as a pattern.

    A click on ``SELECT = value`` chooses in a list.
    """

    name: str
    clicks: tuple[str, ...]
    where: str
    answer: str


def tab(name: str) -> str:
    return f"header nav a:visible >> text=/^{name}$/"


QUESTIONS = (
    Question(
        "why did it wait",
        (tab("Request"),),
        ".whypanel",
        r"all places taken\s+[\d.]+\s(ms|s)\s+before its first step",
    ),
    Question(
        "who stuttered, and whose fault was it",
        (tab("Timeline"), "button >> text=Who stuttered?"),
        "aside",
        r"longest gap.*prompt",
    ),
    Question(
        "what is in the cache",
        (tab("KV"),),
        "main",
        r"cached blocks, held or free\s+\d+[^$]*of these found\s+[1-9][\d,]*",
    ),
    Question(
        "why did speculation not pay",
        (tab("Speculation"),),
        "main",
        r"Guessing (pays|changes little|does not pay): .* with guesses, .* without .* right",
    ),
    Question(
        "which tokens were considered",
        (tab("Next token"),),
        ".rows",
        r"\d\.\d\d?\s+\d+(\.\d+)?\s",  # the model's own chance, and that after the filters
    ),
    Question("bound by what", (tab("Live"),), ".bound", r"[Bb]ound by [a-z]+"),
    Question(
        "what would another chunk size do",
        (tab("Timeline"), "button >> text=Compare", "#against = chunk"),
        ".compare .lead",
        r"With chunks of 256 tokens, (these \d+ requests take|this request takes) .* instead of",
    ),
    Question(
        "one request's way",
        (tab("Learn"), "text=Show it without a guess"),
        ".way-stations",
        r"Queue\s+[\d.]+\s\S+\s+Prefill\s+[\d.]+\s\S+",
    ),
    Question(
        "how many more users",
        (tab("Live"),),
        ".whypanel",
        r"(No further user|\d+ more users?) like these fits? .* at a TPOT of",
    ),
)


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    """The address of a server after demo traffic, sent by its page."""
    with running_process(*SERVE) as server:
        address = server.url()
        with running_browser() as browser, opened(browser, f"{address}/inspect/#/live") as page:
            for title in DEMOS:
                page.click(f".demo button >> text={title}", timeout=SLOW_MS)
                # Answered, or cut after a minute where the machine is slow.
                page.click(".demo-strip >> text=Close", timeout=SLOW_MS)
        yield address


@pytest.fixture(scope="module")
def page_browser(served: str) -> Iterator[Browser]:
    # After the demo: only one browser of Playwright runs in a thread at a time.
    with running_browser() as browser:
        yield browser


def click(page: Page, target: str) -> None:
    chosen, _, value = target.partition(" = ")
    if value:
        page.select_option(chosen, value)
    else:
        page.locator(target).first.click(timeout=SLOW_MS)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.name)
def test_it_is_answered_in_at_most_three_clicks(
    served: str, page_browser: Browser, question: Question
) -> None:
    assert len(question.clicks) <= MOST_CLICKS
    with opened(page_browser, served, width=1440, height=900) as page:
        page.wait_for_selector("#say")  # ``/`` leads to the chat
        for target in question.clicks:
            click(page, target)
        places = page.locator(f"{question.where}:visible")
        wait_until(
            lambda: any(
                re.search(question.answer, text, re.DOTALL) for text in places.all_inner_texts()
            ),
            SLOW_MS / 1000,
            lambda: f"{question.where} says: {places.all_inner_texts()}",
        )
