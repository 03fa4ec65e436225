"""Protects: Back and Forward, the search, and recordings that wait to be played."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.inspector.browser import needs_browser, opened, violations
from tests.inspector.recorded import events
from tests.server.running import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = needs_browser


def place(page: Page) -> str:
    return str(page.evaluate("location.hash.split('?')[0]"))


def address(page: Page) -> str:
    return str(page.evaluate("location.hash"))


def test_back_and_forward_lead_through_pages(browser: Browser, recorded: str) -> None:
    with opened(browser, f"{recorded}#/live?at=60", width=1440) as page:
        page.wait_for_selector("footer >> text=step 60")
        for name in ("Timeline", "KV", "Model"):
            page.click(f"nav >> text={name}")
            page.wait_for_function(f"() => location.hash.startsWith('#/{name.lower()}')")
        for name in ("kv", "timeline", "live"):
            page.go_back()
            page.wait_for_function(f"() => location.hash.startsWith('#/{name}')")
            current = page.locator("nav [aria-current]").inner_text().lower()
            assert current == {"live": "overview"}.get(name, name)
            assert "at=60" in address(page)
        page.go_forward()
        page.wait_for_function("() => location.hash.startsWith('#/timeline')")


def test_back_undoes_a_selection_and_moments_make_no_entries(
    browser: Browser, recorded: str
) -> None:
    with opened(browser, f"{recorded}#/live?at=60", width=1440) as page:
        page.wait_for_selector("footer >> text=step 60")
        rows = page.locator("tbody .link.mono, tbody .mono .link")
        rows.nth(0).click()
        page.wait_for_function("() => location.hash.includes('request=')")
        first = page.locator("aside h2").inner_text()
        page.wait_for_timeout(800)  # longer than a walk through selections
        rows.nth(1).click()
        page.wait_for_function(
            f"() => !document.querySelector('aside h2').innerText.includes({first!r})"
        )
        for _ in range(3):
            page.keyboard.press(".")
        page.wait_for_function("() => location.hash.includes('at=63')")
        page.go_back()
        wait_until(lambda: page.locator("aside h2").inner_text() == first, 10)
        page.go_back()
        page.wait_for_selector("aside", state="detached")
        assert place(page) == "#/live"


def test_a_walk_through_selections_is_one_entry(browser: Browser, recorded: str) -> None:
    with opened(browser, f"{recorded}#/timeline?at=90") as page:
        page.wait_for_selector("footer >> text=step 90")
        before = page.evaluate("history.length")
        page.focus(".plot canvas")
        for _ in range(6):
            page.keyboard.press("ArrowDown")
        page.wait_for_selector("aside")
        page.wait_for_timeout(50)
        assert page.evaluate("history.length") == before + 1
        page.go_back()
        page.wait_for_selector("aside", state="detached")


def test_chapters_have_entries_and_no_trap(browser: Browser, recorded: str) -> None:
    with opened(browser, f"{recorded}#/live?at=60", width=1440) as page:
        page.wait_for_selector("footer >> text=step 60")
        page.click("nav >> text=Learn")
        page.wait_for_selector(".learn-contents")
        page.wait_for_function("() => location.hash.includes('chapter=')")
        chapters = [address(page)]
        for _ in range(2):
            page.keyboard.press("n")
            page.wait_for_function(f"() => location.hash !== {chapters[-1]!r}")
            chapters.append(address(page))
        for chapter in reversed(chapters[:-1]):
            page.go_back()
            page.wait_for_function(f"() => location.hash === {chapter!r}")
        page.go_back()
        page.wait_for_function("() => location.hash.startsWith('#/live')")


def test_a_search_goes_through_the_whole_recording(browser: Browser, recorded: str) -> None:
    last = events()[-1].finished[-1].request_id
    with opened(browser, f"{recorded}#/learn?at=1") as page:
        page.wait_for_selector("footer >> text=step 1")
        page.fill("#find", last)
        page.keyboard.press("Enter")
        page.wait_for_selector(f"footer >> text=step {events()[-1].step:,}")
        assert place(page) == "#/request"
        assert f"request={last}" in address(page)
        page.go_back()
        page.wait_for_function("() => location.hash.startsWith('#/learn')")
        page.fill("#find", "-")
        page.keyboard.press("Enter")
        page.wait_for_selector(".found li >> nth=7")
        page.wait_for_selector(".found >> text=52 more")
        assert violations(page) == []
        page.locator(".found button").first.click()
        page.wait_for_function("() => location.hash.startsWith('#/request')")
        page.fill("#find", "no such thing")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=No request in the recording has no such thing.")
        page.keyboard.press("Escape")
        page.keyboard.press("Escape")
        assert page.locator(".found").count() == 0


def test_a_recording_waits_at_its_end_and_plays_from_its_beginning(
    browser: Browser, recorded: str
) -> None:
    with opened(browser, recorded) as page:
        end = f"footer >> text=step {events()[-1].step:,}"
        page.wait_for_selector(end)
        page.wait_for_selector("footer >> text=Play")
        assert page.locator("nav >> text=Overview").count() == 1
        assert page.locator("nav >> text=Live").count() == 0
        page.wait_for_timeout(300)
        assert page.locator(end).count() == 1
        # The list and the figures are of the same minute.
        ended = sum(len(event.finished) for event in events())
        page.wait_for_selector(f"h2:has-text('Ended lately') >> text={ended} in the last minute")
        page.select_option("#speed", "10")
        page.click("footer >> text=Play")
        page.wait_for_selector("footer >> text=Pause")
        page.wait_for_function("() => document.querySelector('footer .num').innerText !== 'step 0'")
        page.wait_for_timeout(1300)
        page.keyboard.press("Space")
        page.wait_for_selector("footer >> text=Play")
        step = int(page.locator("footer .num").first.inner_text().split()[1].replace(",", ""))
        assert 0 < step < events()[-1].step
        waiting = events()[step].num_waiting
        title = page.locator("h2:has-text('Waiting, in order') .num")
        shown = f"{waiting}"
        if waiting:
            wait_until(lambda: title.inner_text() == shown, 10)
        tile = page.locator(".figure:has-text('Waiting') .value")
        assert tile.inner_text().strip() == shown


def right_of_tabs(page: Page) -> float:
    """Where the last name ends that is shown."""
    return float(
        page.locator("nav .tabs a").evaluate_all(
            "links => Math.max(...links.filter("
            "link => link.checkVisibility({visibilityProperty: true})"
            ").map(link => link.getBoundingClientRect().right))"
        )
    )


def left_of_menu(page: Page) -> float:
    box = page.locator("nav .more button").bounding_box()
    assert box is not None
    return box["x"]


def test_names_without_room_stand_in_a_menu(browser: Browser, recorded: str) -> None:
    for width in (1024, 390):
        with opened(browser, f"{recorded}#/kv?at=60", width=width) as page:
            page.wait_for_selector("footer >> text=step 60")
            page.click("nav .more button")
            names = page.locator("nav .more a").all_inner_texts()
            assert names[0] == "Learn"
            assert violations(page) == []
            page.focus("nav .more a")
            page.keyboard.press("Escape")
            page.wait_for_selector("nav .more a", state="detached")
            assert page.evaluate("document.activeElement.innerText") == "More"
            page.click("nav .more button")
            page.click("nav .more >> text=Fleet")
            page.wait_for_function("() => location.hash.startsWith('#/fleet')")
            page.wait_for_selector("nav .more button >> text=Fleet")  # it says where one is
            assert page.locator("nav .more a").count() == 0
            hidden = (
                "links => links.filter(link => link.checkVisibility({visibilityProperty: true}))"
            )
            shown = page.locator("nav .tabs a").evaluate_all(
                f"{hidden}.map(link => link.innerText)"
            )
            assert set(shown).isdisjoint(names)
            page.click("nav .more button")
            page.click("nav .more >> text=Speculation")  # the longest: it covers no other name
            page.wait_for_selector("nav .more button >> text=Speculation")
            wait_until(lambda: right_of_tabs(page) <= left_of_menu(page), 10)


def test_the_first_tab_leads_past_the_header(browser: Browser, recorded: str) -> None:
    with opened(browser, f"{recorded}#/kv?at=60") as page:
        page.wait_for_selector("footer >> text=step 60")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.innerText") == "Skip to the page"
        assert violations(page) == []
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.tagName") == "MAIN"
        assert place(page) == "#/kv"


def test_a_name_with_control_opens_beside_the_page(browser: Browser, recorded: str) -> None:
    with opened(browser, f"{recorded}#/kv?at=60", width=1440) as page:
        page.wait_for_selector("footer >> text=step 60")
        with page.context.expect_page() as opening:
            page.click("nav >> text=Model", modifiers=["Control"])
        opening.value.wait_for_load_state()
        assert place(opening.value) == "#/model"
        assert place(page) == "#/kv"
