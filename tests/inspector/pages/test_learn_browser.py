"""Protects: the chapters of Learn in a real browser: on pilot itself, on a recording, by keys.

Figures are the server's own measurements or runs of its simulator; nothing is scripted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.inspector.browser import needs_browser, opened, violations
from tests.inspector.showing import showing
from tests.server.running import running_process, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = needs_browser
SLOW_MS = 90_000  # measuring takes as long as the machine lets it
FIGURE = ".learn-figure"
HOSTILE = "<script>document.title='hacked'</script>\u202eabc\u202c" + "\U0001f600" * 40
NEED_A_MODEL = ("way", "tokens", "sampling")


@pytest.fixture(scope="module")
def live() -> Iterator[str]:
    """The address of the page over pilot."""
    with running_process("-m", "twostroke", "serve", "pilot", "--port", "0") as server:
        yield f"{server.url()}/inspect/"


def open_chapter(page: Page, address: str, chapter: str) -> None:
    page.wait_for_selector("footer >> text=step")  # before that a new address may be lost
    page.goto(f"{address}#/learn?chapter={chapter}")
    page.wait_for_selector(f"nav a[aria-current=step][href$='{chapter}']")


def predict(page: Page, choice: int = 0) -> str:
    """Take a choice; what came out, as the page says it."""
    page.locator(".choices button").nth(choice).click()
    page.wait_for_selector(".choices .right", timeout=SLOW_MS)
    return page.locator(".learn-predict").inner_text()


def ask(page: Page) -> str:
    page.locator(".learn-question button").click()
    page.wait_for_selector(".learn-question [aria-live] p", timeout=SLOW_MS)
    return page.locator(".learn-question").inner_text()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pilot_itself_answers_what_the_page_asks(browser: Browser, live: str, theme: str) -> None:
    with opened(browser, live, color_scheme=theme) as page:
        open_chapter(page, live, "tokens")
        assert "It is 4: “st”, “raw”, “ber”, “ry”." in predict(page, 1)
        assert "Right." in page.locator(".learn-predict").inner_text()
        assert re.search(r"English: 14 tokens .* German: \d\d for the same", ask(page))
        assert violations(page) == []
        open_chapter(page, live, "sampling")
        predict(page)
        assert page.locator(".choices .right").inner_text().startswith("It falls")
        drawn = re.findall(r"%, (\d+)", page.locator(FIGURE).inner_text())
        assert 30 <= sum(map(int, drawn)) <= 40  # two tokens may read alike
        assert "1: “" in ask(page)
        assert violations(page) == []


def test_the_cache_of_pilot_finds_what_begins_alike(browser: Browser, live: str) -> None:
    with opened(browser, live) as page:
        open_chapter(page, live, "prefix-caching")
        assert "28: 512 were cached" in predict(page, 1)
        assert "leaves 0 cached tokens" in ask(page)
        page.locator(f"{FIGURE} >> text=H100, simulated").click()
        page.wait_for_selector(f"{FIGURE} >> text=Llama 3.1 8B on an H100", timeout=SLOW_MS)


def test_strokes_of_pilot_are_its_own_steps(browser: Browser, live: str) -> None:
    with opened(browser, live) as page:
        open_chapter(page, live, "decode")
        said = predict(page)
        assert "pilot here" in said
        assert "On a simulated H100 it is" in said
        assert page.locator(".learn-strokes i.prefill").count() == 1
        assert page.locator(".learn-strokes i.decode").count() == 31  # the prompt gives the first


def test_a_sentence_is_tried_on_pilot(browser: Browser, live: str) -> None:
    with opened(browser, live) as page:
        open_chapter(page, live, "misconceptions")
        claims = page.locator(".learn-claims li")
        for number in (1, 4):
            claims.nth(number).locator("text=Not true").first.click()
            claims.nth(number).locator("b").wait_for(timeout=SLOW_MS)
        assert "after" in claims.nth(4).inner_text().lower()
        page.wait_for_selector(f"{FIGURE} >> text=next token")
        assert violations(page) == []


@pytest.mark.parametrize(
    ("chapter", "right", "reply"),
    [
        ("prefill", "Up to 40 times", "A token takes"),
        ("decode", "More than 30 times", "After 32 tokens a pass takes"),
        ("kv-cache", "About 100 times", "Llama 3.1 8B: 128"),
        ("batching", "Less than 1.5 times", "continuous batching"),
        ("chunking", "More than 20 usual gaps", "the longest gap falls from"),
        ("paging", "All 24", "requests lost their blocks"),
        ("prefix-caching", "About 28", "leaves 0 cached tokens"),
        ("speculation", "2 to 3 times", "64 together"),
        ("disaggregation", "Less than a fifth", "At 50 GB/s they take"),
        ("what-to-watch", "TTFT: many times longer", "At 16 a second TTFT falls"),
        ("sums", "About 200", "Four devices write"),
    ],
)
def test_chapters_run_in_the_simulator_where_no_model_does(
    browser: Browser, recorded: str, chapter: str, right: str, reply: str
) -> None:
    with opened(browser, recorded) as page:
        open_chapter(page, recorded, chapter)
        assert "Predict first" in page.locator(FIGURE).inner_text()
        predict(page)
        assert page.locator(".choices .right").inner_text().startswith(right)
        assert reply in ask(page)
        assert "imulated" in page.locator(FIGURE).inner_text()
        assert "NaN" not in page.locator("main").inner_text()
        assert "undefined" not in page.locator("main").inner_text()
        assert violations(page) == []


def test_chapters_that_need_a_model_say_how_to_start_one(browser: Browser) -> None:
    with showing("simulation") as address, opened(browser, address) as page:
        for chapter in NEED_A_MODEL:
            open_chapter(page, address, chapter)
            page.wait_for_selector(f"{FIGURE} >> text=twostroke serve pilot")
            assert page.locator(".choices").count() == 0
            assert violations(page) == []
        open_chapter(page, address, "misconceptions")
        assert page.locator(".learn-claims >> text=a model must run").count() == 3
        page.locator(".learn-claims button").first.click()
        page.wait_for_selector(f"{FIGURE} >> text=arithmetic", timeout=SLOW_MS)


def test_symptoms_lead_to_causes_and_to_pages(browser: Browser, recorded: str) -> None:
    with opened(browser, recorded) as page:
        open_chapter(page, recorded, "symptoms")
        page.click("text=An answer stands still")
        page.wait_for_selector(f"{FIGURE} >> text=A long prompt in that step")
        assert violations(page) == []
        page.locator(f"{FIGURE} a").first.click()
        page.wait_for_selector("text=Who stuttered?")


def test_drafts_that_cost_half_a_pass_do_not_pay(browser: Browser, recorded: str) -> None:
    with opened(browser, recorded) as page:
        open_chapter(page, recorded, "speculation")
        predict(page)
        page.wait_for_selector(f"{FIGURE} >> text=a pass gives at most 3.33 tokens")
        for mean in ("1.70", "2.19", "2.77", "3.06", "3.20"):  # no luck of one answer in them
            page.wait_for_selector(f"{FIGURE} >> text={mean}")
        page.locator(f"{FIGURE} label:has-text('a draft costs') input").fill("5")
        page.wait_for_selector(f"{FIGURE} >> text=Best: 1 guess,")  # 1.7 tokens for 1.5 passes
        page.locator(f"{FIGURE} label:has-text('a draft is right') input").fill("1")
        page.wait_for_selector(f"{FIGURE} >> text=Best: no guess at all")
        assert violations(page) == []


def test_memory_sums_say_what_does_not_fit_and_what_a_million_tokens_cost(
    browser: Browser, recorded: str
) -> None:
    with opened(browser, recorded) as page:
        open_chapter(page, recorded, "sums")
        predict(page, 1)
        figure = page.locator(FIGURE)
        assert "for a million output tokens" in figure.inner_text()
        page.click(f"{FIGURE} >> text=70B")
        page.wait_for_selector(f"{FIGURE} >> text=It does not fit")
        assert violations(page) == []


def test_what_is_heard_of_streams_and_turns_is_tried(browser: Browser, recorded: str) -> None:
    with opened(browser, recorded) as page:
        open_chapter(page, recorded, "misconceptions")
        claims = page.locator(".learn-claims li")
        for number, said in ((5, "take"), (6, "were in the prefix cache")):
            claims.nth(number).locator("text=Not true").first.click()
            claims.nth(number).locator("b").wait_for(timeout=SLOW_MS)
            assert "Not true." in claims.nth(number).locator("b").inner_text()
            assert said in claims.nth(number).inner_text()
        assert violations(page) == []


def test_keys_address_and_memory_keep_the_chapter(browser: Browser, recorded: str) -> None:
    with opened(browser, recorded) as page:
        page.wait_for_selector("footer >> text=step")
        page.keyboard.press("g")
        page.keyboard.press("e")
        page.wait_for_selector("text=Chapter 1 of 16")
        wait_until(lambda: "chapter=way" in page.evaluate("location.hash"), 15)
        for _ in range(7):
            page.keyboard.press("n")
        page.wait_for_selector("text=Chapter 8 of 16: Chunking")
        page.keyboard.press("p")
        page.wait_for_selector("text=Chapter 7 of 16")
        page.keyboard.press("n")
        wait_until(lambda: "chapter=chunking" in page.evaluate("location.hash"), 15)
        wait_until(lambda: page.evaluate("document.activeElement.id") == "learn-title", 15)
        predict(page)
        page.keyboard.press("Escape")  # deselects; the chapter stays
        wait_until(lambda: "chapter=chunking" in page.evaluate("location.hash"), 15)
        page.reload()
        page.wait_for_selector("text=Chapter 8 of 16")
        page.wait_for_selector(".choices .right", timeout=SLOW_MS)  # the guess is still there
        page.keyboard.press("g")
        page.keyboard.press("l")
        wait_until(lambda: "chapter" not in page.evaluate("location.hash"), 15)
        page.goto(f"{recorded}#/learn")
        page.wait_for_selector("text=Chapter 8 of 16")
        page.goto(f"{recorded}#/learn?chapter=nothing")
        page.wait_for_selector("text=Chapter 1 of 16")


def test_hostile_and_endless_text_is_only_text(browser: Browser, live: str) -> None:
    with opened(browser, live) as page:
        open_chapter(page, live, "tokens")
        predict(page)
        page.fill("#learn-text", HOSTILE)
        wait_until(lambda: page.locator(".learn-tokens span").count() > 40, 30)
        shown = page.locator(".learn-tokens").inner_text()
        assert "\u202e" not in shown
        assert page.title() == "twostroke inspector"
        page.evaluate(
            """() => {
              const area = document.getElementById("learn-text");
              area.value = "\U0001f600".repeat(300000);
              area.dispatchEvent(new Event("input", { bubbles: true }));
            }"""
        )
        facts = page.locator(f"{FIGURE} .facts")
        wait_until(lambda: "1,000" in facts.inner_text(), 30)


def test_narrow_chapters_do_not_scroll_sideways(browser: Browser, recorded: str) -> None:
    with opened(browser, recorded, width=390, height=844) as page:
        for chapter in ("chunking", "paging"):
            open_chapter(page, recorded, chapter)
            predict(page)
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
            assert page.evaluate("document.querySelector('main').scrollWidth") <= 390
            assert violations(page) == []


def test_a_chapter_asks_with_the_readers_key(browser: Browser, tmp_path: Path) -> None:
    from tests.gateway.test_usage import ALICE, gateway_with_keys
    from tests.server.running import running_server
    from tests.server.tiny import tiny_engine

    with (
        tiny_engine() as engine,
        running_server(engine, gateway=gateway_with_keys(tmp_path)) as url,
    ):
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"{url}/inspect/")
        page.fill("#key", ALICE)
        page.keyboard.press("Enter")
        page.wait_for_selector("text=No requests yet")
        open_chapter(page, f"{url}/inspect/", "tokens")
        assert "It is" in predict(page)
        context.close()


def test_entries_of_vocabularies_and_chances_are_read_right(
    browser: Browser, recorded: str
) -> None:
    with opened(browser, recorded) as page:
        found = page.evaluate(
            """async () => {
              const { spelled } = await import("./pages/learn/server.js");
              const { reshaped } = await import("./pages/learn/sampling.js");
              const logs = [0.5, 0.3, 0.2].map(Math.log);
              return {
                texts: ["\u0120dog", "\u010a", "\u00c3\u00bc", "\u00c3", "\u2581Hund"].map(spelled),
                same: reshaped(logs, 1, 3),
                hot: reshaped(logs, 1e9, 3),
                cold: reshaped(logs, 0, 3),
                two: reshaped(logs, 1, 2),
              };
            }"""
        )
    assert found["texts"] == [" dog", "\n", "ü", "\ufffd", " Hund"]
    assert found["same"] == pytest.approx([0.5, 0.3, 0.2])
    assert found["hot"] == pytest.approx([1 / 3] * 3)
    assert found["cold"] == [1, 0, 0]
    assert found["two"] == pytest.approx([0.625, 0.375])
