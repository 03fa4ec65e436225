"""Protects: nothing that was said is lost, mixed up, or written on after it was deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.inspector.browser import needs_browser, opened
from tests.inspector.pages.test_chat_browser import bodies, say, scripted
from tests.server.running import running_server, wait_until
from tests.server.tiny import tiny_engine

if TYPE_CHECKING:
    from playwright.sync_api import Browser, FilePayload, Page

pytestmark = needs_browser
STORED = "Object.keys(localStorage).filter(name => name.startsWith('twostroke-chat:')).length"
FIRST = ".chats li >> text=the first"


def start_answer(page: Page, text: str) -> None:
    """Say something, and wait for the first words of the answer."""
    page.fill("#say", text)
    page.keyboard.press("Enter")
    page.wait_for_selector(".answer[aria-busy=true] >> text=on on")


def place(page: Page) -> str:
    return str(page.evaluate("location.hash"))


def delete(page: Page, title: str) -> None:
    page.once("dialog", lambda dialog: dialog.accept())
    page.hover(f".chats li >> text={title}")
    page.click(f"[aria-label='Delete {title}']")
    page.wait_for_selector(f".chats li >> text={title}", state="detached")


def test_a_deleted_conversation_is_stopped_and_stays_deleted(browser: Browser) -> None:
    with scripted(browser, "on ", seconds=0.03, endless=True) as (page, engine):
        start_answer(page, "the first")
        delete(page, "the first")
        wait_until(lambda: len(engine.aborted) == 1, 10)
        page.wait_for_timeout(700)  # longer than what changes waits to be kept
        assert page.evaluate(STORED) == 0


def test_nothing_is_deleted_unasked(browser: Browser) -> None:
    with scripted(browser, "an answer") as (page, _):
        say(page, "the first")
        page.once("dialog", lambda dialog: dialog.dismiss())
        page.hover(FIRST)
        page.click("[aria-label='Delete the first']")
        assert page.locator(FIRST).count() == 1


def test_another_answer_ends_the_one_before(browser: Browser) -> None:
    with scripted(browser, "on ", seconds=0.03, endless=True) as (page, engine):
        start_answer(page, "the first")
        page.click(".said >> text=Edit")
        page.fill("#edit", "another")
        page.click(".edit >> text=Send")
        wait_until(lambda: len(engine.aborted) == 1, 10)
        page.wait_for_selector(".answer[aria-busy=true]")
        page.click("text=Stop")
        wait_until(lambda: len(engine.aborted) == 2, 10)


def test_a_message_that_is_changed_leaves_the_focus_where_it_is(browser: Browser) -> None:
    focused = "document.activeElement.innerText || document.activeElement.id"
    with scripted(browser, "on ", seconds=0.03, endless=True) as (page, _):
        start_answer(page, "the first")
        page.click(".said >> text=Edit")
        page.wait_for_function("() => document.activeElement.id === 'edit'")
        page.focus(".composer >> text=Stop")
        page.wait_for_timeout(300)
        assert page.evaluate(focused) == "Stop"
        page.click(".edit >> text=Cancel")
        assert page.evaluate(focused) == "say"


def test_a_double_click_sends_and_does_not_stop(browser: Browser) -> None:
    with scripted(browser, "on ", seconds=0.03, endless=True) as (page, engine):
        page.fill("#say", "the first")
        page.dblclick("button.primary")
        page.wait_for_selector(".answer[aria-busy=true] >> text=on on on")
        assert engine.aborted == []
        page.click("text=Stop")
        page.wait_for_selector("text=You stopped it.")


def test_what_was_begun_stays_in_its_conversation(browser: Browser) -> None:
    with scripted(browser, "an answer") as (page, _):
        sent = bodies(page)
        say(page, "the first")
        page.fill("#say", "begun in the first")
        file: FilePayload = {"name": "a.txt", "mimeType": "text/plain", "buffer": b"of the first"}
        page.set_input_files("#attach", file)
        page.wait_for_selector(".composer .documents")
        page.click("text=New chat")
        page.wait_for_selector(".start")
        assert page.input_value("#say") == ""
        assert page.locator(".composer .documents").count() == 0
        page.fill("#say", "begun in a new one")
        page.evaluate("location.hash = '#/learn'")  # its tab may be in the menu
        page.wait_for_selector(".learn-contents")
        page.go_back()
        page.wait_for_selector(".start")
        assert page.input_value("#say") == "begun in a new one"
        page.click(FIRST)
        page.wait_for_selector(".said")
        assert page.input_value("#say") == "begun in the first"
        page.click("text=Send")
        page.wait_for_selector(".answer >> nth=1")
        assert sent[1]["messages"][-1]["content"] == "begun in the first"
        assert sent[1]["documents"] == [{"title": "a.txt", "text": "of the first"}]
        page.click("text=New chat")
        assert page.input_value("#say") == "begun in a new one"


def test_back_and_forward_lead_to_a_new_chat_and_never_to_a_deleted_one(browser: Browser) -> None:
    with scripted(browser, "an answer") as (page, _):
        say(page, "the first")
        first = place(page)
        page.click("text=New chat")
        page.wait_for_selector(".start")
        page.wait_for_function("() => location.hash === '#/chat'")
        page.go_back()
        page.wait_for_selector(".said >> text=the first")
        page.wait_for_function(f"() => location.hash === {first!r}")
        page.go_forward()
        page.wait_for_selector(".start")
        page.wait_for_function("() => location.hash === '#/chat'")
        say(page, "the second")
        second = place(page)
        page.click("nav >> text=KV")
        page.wait_for_function("() => location.hash.startsWith('#/kv')")
        page.click("nav >> text=Chat")
        page.wait_for_function(f"() => location.hash === {second!r}")
        length = page.evaluate("history.length")
        delete(page, "the first")
        delete(page, "the second")
        page.wait_for_function("() => location.hash === '#/chat'")
        assert page.evaluate("history.length") == length
        for name in ("kv", "chat", "chat"):
            page.go_back()
            page.wait_for_function(f"() => location.hash.startsWith('#/{name}')")
            page.wait_for_timeout(100)
        assert place(page) == "#/chat"
        assert page.evaluate("history.length") == length
        page.wait_for_selector(".start")


def test_two_tabs_keep_what_both_say(browser: Browser) -> None:
    with scripted(browser, "on ", seconds=0.03, endless=True) as (page, engine):
        start_answer(page, "the first")
        page.wait_for_function(f"() => {STORED} === 1")
        other = page.context.new_page()
        other.goto(page.url)
        other.wait_for_selector(".said >> text=the first")
        other.wait_for_selector("text=Another tab of this page is writing it.")
        other.click("text=Regenerate")
        wait_until(lambda: len(engine.submitted) == 2, 10)
        other.wait_for_selector(".answer[aria-busy=true] >> text=on on on")
        assert page.locator(".answer[aria-busy=true]").count() == 1  # it is still shown
        other.click("text=Stop")
        other.wait_for_selector("text=You stopped it.")
        page.click("text=Stop")
        page.wait_for_selector("text=You stopped it.")
        page.wait_for_selector("text=of 2")
        other.close()
        page.reload()
        page.wait_for_selector("text=of 2")
        for _ in range(2):
            page.wait_for_selector(".answer >> text=You stopped it.")
            page.locator(".versions button:enabled").first.click()


@pytest.mark.parametrize("refused", ["setItem", "getItem"])
def test_a_browser_that_keeps_nothing_loses_nothing_meanwhile(
    browser: Browser, refused: str
) -> None:
    with scripted(browser, "an answer") as (page, _):
        page.evaluate(
            f"""() => {{
              const refuse = () => {{ throw new DOMException("no", "SecurityError"); }};
              Storage.prototype.setItem = refuse;
              Storage.prototype.{refused} = refuse;
            }}"""
        )
        for text in ("the first", "the second"):
            say(page, text)
            page.click("text=New chat")
        assert page.locator(".chats li").count() == 2
        page.wait_for_selector(".composer [role=alert] >> text=lost with this tab")


def test_room_is_made_by_the_oldest_and_it_is_told(browser: Browser) -> None:
    with scripted(browser, "an answer") as (page, _):
        say(page, "the first")
        page.click("text=New chat")
        say(page, "the second")
        page.evaluate("localStorage.setItem('other', 'x'.repeat(5 * 2 ** 20 - 2600))")
        page.click(".chats li >> text=the second")
        say(page, "y" * 300)
        page.wait_for_selector("text=the oldest conversation, the first, was deleted")
        assert page.locator(".chats li").count() == 1
        page.reload()
        page.wait_for_selector(".said >> text=the second")
        assert page.locator(".answer").count() == 2


def test_text_beside_a_picture_is_pasted_and_the_file_field_is_no_stop(browser: Browser) -> None:
    paste = """types => {
      const data = new DataTransfer();
      if (types.includes("text")) data.setData("text/plain", "cells");
      data.items.add(new File(["\\x89PNG\\0"], "image.png", {type: "image/png"}));
      const event = new ClipboardEvent("paste", {clipboardData: data, cancelable: true});
      return document.getElementById("say").dispatchEvent(event);
    }"""
    with scripted(browser, "an answer") as (page, _):
        assert page.evaluate(paste, ["text"])  # left to the browser
        assert page.locator(".composer [role=alert]").count() == 0
        assert not page.evaluate(paste, [])
        page.wait_for_selector("text=image.png is no text")
        page.focus("#say")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.innerText") == "Attach text files"


def test_a_paused_page_says_that_it_is_paused(browser: Browser) -> None:
    with (
        tiny_engine() as engine,
        running_server(engine) as url,
        opened(browser, f"{url}/inspect/#/chat") as page,
    ):
        page.fill(".settings >> text=Most tokens", "3")
        say(page, "the dog")
        page.click("footer >> text=Pause")
        page.wait_for_selector("footer >> text=Go on")
        say(page, "and the fox")
        page.locator(".about >> text=Why").last.click()
        page.wait_for_selector(".why >> text=This page is paused")
        page.click("footer >> text=To now")
        page.wait_for_selector(".why >> text=Its first token came")
