"""Protects: in a real browser: comparing, long ranges, the worst gap's cause, copies."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import httpx
import pytest

from tests.inspector.browser import needs_browser, opened, violations
from tests.inspector.recorded import events
from tests.inspector.test_browser import HOSTILE, REMEMBERED, wait_for_step
from tests.server.running import running_server, wait_until
from tests.server.tiny import tiny_engine

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = needs_browser
VERDICT = "text=Continuous batching saves"
SIMULATED = 60_000  # milliseconds within which a recording is simulated beside other tests


def ink(page: Page, selector: str, share_from: float = 0.0, share_to: float = 1.0) -> int:
    """Pixels that are drawn in a part of a canvas's width."""
    return int(
        page.evaluate(
            """([selector, from, to]) => {
              const canvas = document.querySelector(selector);
              const left = Math.floor(canvas.width * from);
              const wide = Math.max(1, Math.floor(canvas.width * (to - from)));
              const { data } = canvas.getContext("2d").getImageData(left, 0, wide, canvas.height);
              let number = 0;
              for (let at = 3; at < data.length; at += 4) number += data[at] > 128;
              return number;
            }""",
            [selector, share_from, share_to],
        )
    )


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_recording_is_compared_with_static_batches(
    browser: Browser, recorded: str, theme: str
) -> None:
    with opened(browser, f"{recorded}#/timeline?at=1500", color_scheme=theme) as page:
        wait_for_step(page, 1500)
        page.keyboard.press("c")
        page.wait_for_selector(VERDICT, timeout=SIMULATED)
        shown = page.locator("main").inner_text()
        assert "Both sides are simulated." in shown
        off = re.search(
            r"the simulated requests take (?:([\d.]+)\s% (?:less|more)|as much) time (?:than|as)",
            shown,
        )
        assert off is not None
        assert 0 < float(off[1] or 0.1) < 10  # a difference that rounds to 0 is said in words
        assert ink(page, ".sides canvas") > 1000
        assert violations(page) == []
        before = ink(page, ".sides canvas")
        page.keyboard.press("w")
        wait_until(lambda: ink(page, ".sides canvas") != before)
        page.locator("summary >> text=Each request").click()
        page.locator(".compare tbody .link").first.click()
        page.wait_for_selector("aside >> text=Request")
        assert violations(page) == []
        page.click("text=Back to the timeline")
        page.wait_for_selector("text=Who stuttered?")
        assert "compare" not in page.evaluate("location.hash")


def test_other_chunks_and_budgets_are_compared_and_a_link_leads_there(
    browser: Browser, recorded: str
) -> None:
    with opened(browser, f"{recorded}#/timeline?at=1500&compare=budget:64&from=0&to=9") as page:
        page.wait_for_selector("text=With steps of at most 64 tokens", timeout=SIMULATED)
        page.select_option("#against", "chunk")
        page.fill("#tokens", "32")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=With chunks of 32 tokens", timeout=SIMULATED)
        assert "compare=chunk%3A32" in page.evaluate("location.hash")
        page.select_option("#against", "whole")
        page.wait_for_selector("text=With whole prompts", timeout=SIMULATED)


def test_what_cannot_be_compared_is_said(browser: Browser, recorded: str) -> None:
    context = browser.new_context()  # whose console may tell of the refusal
    page = context.new_page()
    page.set_default_timeout(15_000)
    page.goto(f"{recorded}#/timeline?compare=static&from=-9&to=-8")
    page.wait_for_selector("text=Not compared: no request in this range")
    context.close()


def test_a_live_engine_is_compared_and_hostile_labels_stay_text(browser: Browser) -> None:
    with tiny_engine(observability=REMEMBERED) as engine, running_server(engine) as url:

        def ask(number: int) -> None:
            body = {
                "prompt": "the quick brown fox " * (1 + number),
                "max_tokens": 40 + 10 * number,
                "ignore_eos": True,
                "user": HOSTILE,
            }
            httpx.post(url + "/v1/completions", json=body, timeout=30)

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=30)
        with opened(browser, f"{url}/inspect/#/timeline?span=60") as page:
            page.wait_for_selector("text=Who stuttered?")
            page.click("text=Compare")
            page.wait_for_selector("text=Both sides are simulated", timeout=SIMULATED)
            assert "5 requests take" in page.locator(".lead").inner_text()
            assert page.title() == "twostroke inspector"


def test_nothing_is_compared_before_there_are_steps(browser: Browser) -> None:
    """A click, or the key, asked for a range without length, and its refusal stayed."""
    with (
        tiny_engine() as engine,
        running_server(engine) as url,
        opened(browser, f"{url}/inspect/#/timeline") as page,
    ):
        page.wait_for_selector("text=Nothing has run yet")
        assert page.locator("button", has_text="Compare").count() == 0
        page.keyboard.press("c")
        page.wait_for_timeout(200)
        assert "compare" not in page.evaluate("location.hash")
        body = {"prompt": "the dog", "max_tokens": 9, "ignore_eos": True}
        httpx.post(url + "/v1/completions", json=body, timeout=30)
        page.click("text=Compare")
        page.wait_for_selector(".compare")


def test_a_key_without_the_others_requests_is_told_why(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from tests.gateway.test_usage import ALICE, bearer, gateway_with_keys

    gateway = gateway_with_keys(tmp_path_factory.mktemp("keys"))
    with tiny_engine() as engine, running_server(engine, gateway=gateway) as url:
        body = {"prompt": "the dog", "max_tokens": 9, "ignore_eos": True}
        httpx.post(f"{url}/v1/completions", json=body, headers=bearer(ALICE))
        context = browser.new_context()
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.goto(f"{url}/inspect/#/timeline")
        page.fill("#key", ALICE)
        page.keyboard.press("Enter")
        page.wait_for_selector("text=Who stuttered?")
        page.wait_for_function(
            "() => document.querySelector('.state .word').textContent === 'live'"
        )
        page.click("text=Compare")
        page.wait_for_selector("text=an admin key shows it")
        context.close()


def test_a_recording_is_seen_whole_and_a_click_leads_to_its_moment(
    browser: Browser, recorded: str
) -> None:
    """The store holds what led to a moment; the rest is the server's overview."""
    end = events()[-1].time + events()[-1].duration
    address = f"{recorded}#/timeline?at=60&span={end:.3f}&end={end:.3f}"
    with opened(browser, address) as page:
        wait_for_step(page, 60)
        loaded = "performance.getEntriesByType('resource').map(({ name }) => name).join()"
        wait_until(lambda: "/overview?" in page.evaluate(loaded), 15)
        wait_until(lambda: ink(page, ".plot canvas", 0.7, 0.95) > 500, 15)

        def shows_a_later_moment() -> bool:
            # Before the overview is drawn a click opens a request beside the canvas: close it.
            page.keyboard.press("Escape")
            page.wait_for_selector("aside", state="detached")
            box = page.locator(".plot canvas").bounding_box()
            assert box is not None
            page.mouse.click(box["x"] + 0.8 * box["width"], box["y"] + 0.5 * box["height"])
            for _ in range(40):  # a second click would begin anew
                page.wait_for_timeout(100)
                if int(page.locator("#moment").input_value()) > 200:
                    return True
            return False

        wait_until(shows_a_later_moment, 40)


def test_the_worst_gap_names_what_caused_it(browser: Browser, recorded: str) -> None:
    with opened(browser, f"{recorded}#/timeline?at=1500") as page:
        wait_for_step(page, 1500)
        page.click("text=Who stuttered?")
        page.wait_for_selector("aside >> text=Its longest gap between two tokens")
        told = page.locator("aside .why").last.inner_text()
        named = re.search(r"up to step ([\d,]+)", told)
        cause = re.search(r"computed ([\d,]+) prompt tokens of (\w+)", told)
        assert named is not None
        assert cause is not None
        event = events()[int(named[1].replace(",", ""))]
        shares = {share.request_id: share.num_prompt_tokens for share in event.scheduled}
        assert shares[cause[2]] == int(cause[1].replace(",", ""))
        assert shares[cause[2]] == max(shares.values())


def test_the_cause_of_a_gap_is_what_took_the_time(browser: Browser, recorded: str) -> None:
    """A step that stopped for another reason is not blamed on four prompt tokens beside it."""
    with opened(browser, f"{recorded}#/live?at=60") as page:
        wait_for_step(page, 60)
        found = page.evaluate(
            """async () => {
              const { store } = await import("./lib/store.js");
              const { worstGap } = await import("./lib/stutter.js");
              store.clear();
              const steps = {};
              const at = (name, value) => (steps[name] ??= []).push(value);
              const shares = { row: [], request: [], start: [], tokens: [], prompt: [], new: [],
                               blocks: [], drafts: [], accepted: [] };
              let time = 0;
              const names = ["tokens", "new", "budget", "running", "waiting", "free", "cached",
                             "used", "allocated", "queries", "hits"];
              for (let row = 0; row < 60; row += 1) {
                const prompt = row % 10 === 5 ? 100 : row === 42 ? 4 : 0;
                const duration = row === 42 ? 0.5 : prompt ? 0.03 : 0.01;
                for (const name of names) at(name, 0);
                for (const [name, value] of Object.entries({ step: row, span: 1, time, duration,
                                                             longest: duration, prompt }))
                  at(name, value);
                time += duration;
                for (const [request, ofPrompt] of prompt ? [[0, 0], [1, prompt]] : [[0, 0]])
                  for (const [name, value] of Object.entries({ row, request, start: row,
                      tokens: ofPrompt || 1, prompt: ofPrompt, new: 1, blocks: 1, drafts: 0,
                      accepted: 0 }))
                    shares[name].push(value);
              }
              store.append({ steps, shares, ids: ["reader", "prompter"], notes: [], timings: {} });
              const record = store.requests.get("reader");
              const first = worstGap(record);
              Object.assign(record, { worstRow: 25, worstGap: 0.03, worstBegin: 0 });
              record.worstBegin = store.endOf(24);
              return [first.step, first.cause, worstGap(record).cause];
            }"""
        )
    assert found == [42, "step", "prompts"]


def test_tables_and_figures_can_be_taken_along(browser: Browser, recorded: str) -> None:
    with opened(browser, f"{recorded}#/live?at=300", accept_downloads=True) as page:
        wait_for_step(page, 300)
        page.keyboard.press("e")
        page.wait_for_selector("dialog[aria-label='Copy and save']")
        assert violations(page) == []
        with page.expect_download() as download:
            page.locator("dialog >> text=Save SVG").first.click()
        text = download.value.path().read_text(encoding="utf-8")
        assert ElementTree.fromstring(text).tag.endswith("svg")
        with page.expect_download() as download:
            page.locator("dialog >> text=Save PNG").first.click()
        assert download.value.path().read_bytes().startswith(b"\x89PNG")
        with page.expect_download() as download:
            page.locator("dialog >> text=Save TSV").first.click()
        rows = download.value.path().read_text(encoding="utf-8").splitlines()
        assert rows[0].startswith("request\tage")
        assert len({row.count("\t") for row in rows}) == 1
        page.keyboard.press("Escape")
        page.wait_for_selector("dialog", state="detached")


def test_steps_that_leave_the_store_are_kept_merged(browser: Browser, recorded: str) -> None:
    with opened(browser, recorded) as page:
        found = page.evaluate(
            """async () => {
              const { Store } = await import("./lib/store.js");
              const frame = await (await fetch("../v1/inspect/steps?from=0&to=799")).json();
              const store = new Store(64, 4096, true);
              store.append(frame);
              const sum = (rows, name) => {
                let all = 0;
                for (let row = rows.steps.first; row < rows.steps.end; row += 1)
                  all += rows.steps.get(name, row);
                return all;
              };
              const [level] = store.coarse.levels();
              return {
                spans: [...new Set(Array.from({ length: level.length }, (_, row) =>
                  level.steps.get("span", row)))],
                tokens: sum(level, "tokens") + sum(store, "tokens"),
                whole: frame.steps.tokens.reduce((one, other) => one + other, 0),
                pending: level.taken,
              };
            }"""
        )
    assert found["spans"] == [16]
    assert found["pending"] == 0
    assert found["tokens"] == found["whole"]
