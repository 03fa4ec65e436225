"""Protects: the page of a request in a real browser: stations, text, gaps, blocks; harmlessly."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.inspector.browser import needs_browser, opened, violations
from tests.inspector.recorded import events, recording
from tests.inspector.showing import page_of
from tests.server.running import running_server
from tests.server.tiny import tiny_engine
from twostroke.inspector.content import ContentBook
from twostroke.inspector.recording import Recording
from twostroke.inspector.source import Kind
from twostroke.observability.events import StepEvent

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = needs_browser
HOSTILE = (
    "<script>document.title='hacked'</script>\u202ecba\u202c\u200b\x07 \U0001f600 \u05d0\u05d1"
)

# Of an answer in one piece, written quickly or not.
ANSWERED = "ol.stations >> text=/first byte at|all of it at once/"


@contextmanager
def server(*, content: bool) -> Iterator[str]:
    book = ContentBook() if content else None
    observers = [] if book is None else [book]
    with (
        tiny_engine(observers=observers, max_num_batched_tokens=32) as engine,
        running_server(engine, content=book) as url,
    ):
        yield url


@pytest.fixture(scope="module")
def live() -> Iterator[str]:
    with server(content=True) as url:
        yield url


def ask(url: str, prompt: str = HOSTILE, **fields: Any) -> str:
    body = {"prompt": prompt, "max_tokens": 40, "ignore_eos": True, "seed": 5} | fields
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=30)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


@contextmanager
def showing(browser: Browser, url: str, request_id: str, **options: Any) -> Iterator[Page]:
    address = f"{url}/inspect/#/request?request={request_id}"
    with opened(browser, address, **options) as page:
        page.wait_for_selector("ol.stations li")
        yield page


@contextmanager
def showing_file(kind: Kind, path: Any = None) -> Iterator[str]:
    source = Recording(path or recording(), kind)
    assert source.wait_until_read(20)
    with page_of(source) as address:
        yield address.removesuffix("/inspect/")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_request_is_shown_from_its_head_to_its_last_byte(
    browser: Browser, live: str, theme: str, width: int
) -> None:
    request_id = ask(live, logprobs=0)
    with showing(browser, live, request_id, width=width, color_scheme=theme) as page:
        page.wait_for_selector(ANSWERED)
        names = page.locator("ol.stations .name").all_inner_texts()
        assert names[:4] == ["received", "body read", "tokenised", "checked, sent on"]
        assert names[4] == "queue" and names[-3:] == ["first token", "decode", "answer"]
        assert [name for name in names if name.startswith("prefill")]
        page.wait_for_selector(".tokens.output .p0, .tokens.output .p5")
        page.wait_for_selector("text=It has given its blocks back")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert violations(page) == []


def test_stations_are_the_servers_own_times(browser: Browser, live: str) -> None:
    request_id = ask(live)
    with showing(browser, live, request_id) as page:
        page.wait_for_selector(ANSWERED)
        call = httpx.get(f"{live}/v1/inspect/request?id={request_id}").json()["call"]
        read = call["stations"][0]
        seconds = read["end"] - call["received"]
        shown = page.locator("ol.stations li", has_text="body read").locator(".num").inner_text()
        number, unit = shown.replace("\u00a0", " ").split()
        factor = {"µs": 1e-6, "ms": 1e-3, "s": 1.0}[unit]
        assert float(number) * factor == pytest.approx(seconds, rel=0.02)


def test_tokens_are_read_with_the_keyboard(browser: Browser, live: str) -> None:
    request_id = ask(live, "the quick brown fox", logprobs=0)
    with showing(browser, live, request_id) as page:
        page.wait_for_selector(".tokens.output span")
        page.locator(".tokens.output").focus()
        page.keyboard.press("End")
        page.keyboard.press("ArrowLeft")
        content = httpx.get(f"{live}/v1/inspect/tokens?id={request_id}").json()
        about = page.locator("p.token").last.inner_text()
        assert f"token {content['ids'][-2]}," in about
        assert f"of seed 5 at position {len(content['ids']) - 2}" in about
        assert f"{content['draws'][-2]:.6f}" in about
        assert "probability" in about
        page.locator(".tokens.prompt span").first.hover()
        page.wait_for_selector(f"p.token >> text=token {content['ids'][0]},")


def test_hostile_text_is_text(browser: Browser, live: str) -> None:
    request_id = ask(live, user=HOSTILE)
    with showing(browser, live, request_id) as page:
        page.wait_for_selector(".tokens.prompt span")
        shown = page.locator("main").inner_text()
        assert "<script>" in re.sub(r"\s", "", page.locator(".tokens.prompt").inner_text())
        assert not set("\u202e\u202c\u200b\x07") & set(shown)
        assert page.title() == "twostroke inspector"
        assert page.locator(".tokens script").count() == 0
        # Letters that are written from right to left stay inside their token.
        direction = "getComputedStyle(document.querySelector('.tokens span')).unicodeBidi"
        assert page.evaluate(direction) == "isolate"


def test_a_megabyte_of_emoji_and_lone_surrogates_are_shown_at_once(
    browser: Browser, live: str
) -> None:
    """No model of ours has such tokens; a server that is broken or hostile may send them."""
    request_id = ask(live)
    texts = ["\U0001f600" * 600, "\ud800", "\u202e" * 3000, "</span><img src=x onerror=alert(1)>"]
    number = 512
    answer = {
        "num_prompt": number,
        "num_output": number,
        "begin": 0,
        "ids": list(range(number)),
        "texts": [texts[i % 4] for i in range(number)],
        "special": [],
        "logprobs": [None] * number,
        "draws": [None] * number,
        "seed": "1",
        "temperature": 1.0,
    }
    body = json.dumps(answer)  # lone surrogates as escapes
    assert len(body) > 10**6
    address = f"{live}/inspect/#/request?request={request_id}"
    with opened(browser, f"{live}/inspect/") as page:
        page.route("**/v1/inspect/tokens*", lambda route: route.fulfill(body=body))
        page.goto(address)
        page.wait_for_selector(".tokens.prompt span")
        began = time.monotonic()
        page.locator(".tokens.prompt").focus()
        page.keyboard.press("End")
        page.wait_for_selector("p.token >> text=token 511,")
        assert time.monotonic() - began < 10
        shown = page.locator(".tokens.prompt").inner_text()
        assert len(shown) < 200_000 and "\u202e" not in shown
        assert page.locator(".tokens img").count() == 0


def test_without_the_flag_the_page_says_how_to_see_text(browser: Browser) -> None:
    with server(content=False) as url:
        request_id = ask(url, "the quick brown fox")
        with showing(browser, url, request_id) as page:
            page.wait_for_selector("text=--inspect-content")
            assert "quick" not in page.locator("main").inner_text()
            assert violations(page) == []


def test_a_running_request_shows_its_blocks_and_grows(browser: Browser, live: str) -> None:
    stop = threading.Event()

    def keep_asking() -> None:
        while not stop.is_set():
            ask(live, "the quick", max_tokens=230)

    thread = threading.Thread(target=keep_asking)
    thread.start()
    try:
        with opened(browser, f"{live}/inspect/#/request") as page:
            page.wait_for_selector(".blocks .cells canvas")
            page.wait_for_selector("text=/\\d+ blocks of 4 tokens/")
            assert violations(page) == []
    finally:
        stop.set()
        thread.join(timeout=60)


def test_each_gap_names_its_step_and_its_neighbours(browser: Browser) -> None:
    """Against the naive way: the steps of the file between two of the request's tokens."""
    request_id = events()[5].scheduled[0].request_id
    steps_of = [e.step for e in events() if any(s.request_id == request_id for s in e.scheduled)]
    last = steps_of[-1]
    with showing_file("recording") as url:
        address = f"{url}/inspect/#/request?request={request_id}&at={last}"
        with opened(browser, address) as page:
            page.wait_for_selector(".gaps canvas")
            page.locator(".gaps canvas").focus()
            own: list[StepEvent] = [
                event
                for event in events()
                if any(s.request_id == request_id and s.num_new_tokens for s in event.scheduled)
            ]
            for number in range(6):
                page.keyboard.press("ArrowRight")
                begin, end = own[number], own[number + 1]
                page.wait_for_selector(f"text=From token {number + 1} to {number + 2}:")
                shown = page.locator(".gaps p[aria-live]").inner_text().replace(",", "")
                inside = [e for e in events() if begin.step < e.step <= end.step]
                steps = [e.step for e in inside]
                named = f"Step {steps[0]}" if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"
                assert named in shown
                shares = [s for e in inside for s in e.scheduled if s.request_id != request_id]
                prompts = {s.request_id for s in shares if s.num_prompt_tokens}
                decoding = {s.request_id for s in shares} - prompts
                for share in shares:
                    if share.num_prompt_tokens and len(prompts) <= 4:
                        assert f"{share.num_prompt_tokens} prompt tokens" in shown
                if decoding:
                    assert f"{len(decoding)} decoding" in shown
            page.locator(".gaps p[aria-live] .link").first.click()
            page.wait_for_selector("aside >> text=/Step \\d/")
            # The request stays while a step of it is looked at.
            assert page.locator("#which").input_value() == request_id
            assert violations(page) == []


@pytest.mark.parametrize("kind", ["recording", "simulation"])
def test_files_have_blocks_and_say_what_they_have_not(browser: Browser, kind: Kind) -> None:
    at = 150
    event = events()[at]
    ended = {finished.request_id for finished in event.finished}
    share = next(s for s in event.scheduled if s.request_id not in ended)
    with showing_file(kind) as url:
        address = f"{url}/inspect/#/request?request={share.request_id}&at={event.step}"
        with opened(browser, address) as page:
            why = "A simulation has no HTTP" if kind == "simulation" else "no stations over HTTP"
            page.wait_for_selector(f"text={why}")
            text = "computes no text" if kind == "simulation" else "A recording holds no text"
            page.wait_for_selector(f"text={text}")
            page.wait_for_selector(f"text={share.num_blocks} blocks of 16 tokens")
            assert violations(page) == []
            page.goto(f"{url}/inspect/#/kv?at={event.step}")
            page.wait_for_selector(".map canvas[tabindex]")
            held = event.total_blocks - event.free_blocks
            page.wait_for_selector(f"text={held:,} of {event.total_blocks:,} blocks held")
            page.wait_for_timeout(200)  # until it is drawn
            page.locator(".map canvas").focus()
            page.keyboard.press("ArrowRight")
            page.wait_for_selector("aside >> text=/Held by|Free, but|It is empty/")


def test_a_recording_of_an_earlier_version_says_that_its_map_is_by_number(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("old") / "old.jsonl"
    kept = [event.to_dict() | {"block_tables": []} for event in events()[:60]]
    path.write_bytes(b"".join(StepEvent.from_dict(values).to_json() + b"\n" for values in kept))
    with (
        showing_file("recording", path) as url,
        opened(browser, f"{url}/inspect/#/kv?at=40") as page,
    ):
        page.wait_for_selector("text=by number: this recording was made by a version")
